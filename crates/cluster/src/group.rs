//! A rank of a group, whatever carries it: what `ironstar_device::Exchange` asks for, over the
//! gates of the epoch that lives and the rendezvous that makes the next one.

use crate::control::{Formed, Hub, Member, Settings, Transport};
use crate::error::Error;
use crate::mesh::Mesh;
use crate::profile::{GateProfile, Recorder};
use crate::stream::{Record, Stream};
use ironstar_device::{Alarm, Exchange, ExchangeError, GateCounts, GateKind};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long bytes of another rank are waited for: what it computes before it sends them may be
/// long. One that is gone or stands still is noticed on the control connection long before.
const RECORD: Duration = Duration::from_secs(120);

/// One rank's end of a group over real links.
pub struct Cluster {
    role: Role,
    mesh: Mesh,
    streams: Vec<Option<Stream>>,
    /// Of the epochs before.
    counts: GateCounts,
    profile: GateProfile,
    recorder: Option<Recorder>,
    committed: u64,
    /// Records that this end has given.
    records: u64,
    /// Ends behind the links.
    kept: Option<Box<dyn Any + Send>>,
}

enum Role {
    Hub(Box<Hub>),
    Member(Box<Member>),
}

impl Cluster {
    /// Rank 0 of a group whose port is open: waits for the others.
    pub fn lead(mut hub: Hub) -> Result<Self, Error> {
        let formed = hub.form(0)?;
        Ok(Self::new(Role::Hub(Box::new(hub)), formed))
    }

    /// Another rank: joins the group at `hub`.
    pub fn join(mut member: Member) -> Result<Self, Error> {
        let formed = member.form(0)?;
        Ok(Self::new(Role::Member(Box::new(member)), formed))
    }

    /// Opens rank 0's port; [`Hub::address`] says where. Then start the others, and
    /// [`Cluster::lead`].
    pub fn bind(
        address: SocketAddr,
        ranks: usize,
        transport: Transport,
        settings: Settings,
    ) -> Result<Hub, Error> {
        Hub::bind(address, ranks, transport, settings)
    }

    /// Where the time of gates went, over all epochs.
    #[must_use]
    pub fn profile(&self) -> GateProfile {
        let mut sum = self.profile;
        for kind in GateKind::ALL {
            sum.add(kind, *self.mesh.profile().of(kind));
        }
        sum
    }

    /// Keeps something as long as this end of the group lives, and lets it go after the links: what
    /// looks after the other ranks' processes.
    #[must_use]
    pub fn keeping(mut self, kept: impl Any + Send) -> Self {
        self.kept = Some(Box::new(kept));
        self
    }

    /// Whether every two ranks have a stream of records ([`Settings::streams`] of rank 0).
    #[must_use]
    pub fn has_streams(&self) -> bool {
        self.streams.iter().any(Option::is_some)
    }

    fn stream(&self, rank: usize) -> Result<&Stream, ExchangeError> {
        self.mesh.watch().error().map_or(Ok(()), Err)?;
        let stream = self.streams.get(rank).and_then(Option::as_ref);
        stream.ok_or_else(|| ExchangeError::Misuse {
            found: format!("bytes for or of rank {rank} without a stream"),
            wanted: "rank 0 must ask for streams when it makes the group".into(),
        })
    }

    /// Writes every gate from now on into a notebook, whatever epochs come.
    pub fn record_into(&mut self, recorder: Recorder) {
        self.mesh.record_into(recorder.clone());
        self.recorder = Some(recorder);
    }

    /// The last step that all ranks had committed when this epoch began.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// [`Exchange::reform`] for those who count committed steps: this rank's last goes in, and
    /// [`Cluster::committed`] then says the last that all ranks have.
    pub fn reform_from(&mut self, committed: u64) -> Result<u64, ExchangeError> {
        let rank = self.rank();
        if self.mesh.watch().error().is_none() {
            self.abort("the group is formed again");
        }
        // Their threads end with the epoch that is broken.
        self.streams.clear();
        let formed = match &mut self.role {
            Role::Hub(hub) => hub.form(committed),
            Role::Member(member) => member.form(committed),
        };
        // Nobody else is known to be at fault: who was missing stands in the text.
        let other = usize::from(rank == 0);
        let Formed { mesh, streams, committed } = formed
            .map_err(|error| ExchangeError::Lost { rank: other, found: error.to_string() })?;
        self.streams = streams;
        let old = std::mem::replace(&mut self.mesh, mesh);
        if let Some(recorder) = &self.recorder {
            self.mesh.record_into(recorder.clone());
        }
        for kind in GateKind::ALL {
            self.counts.gates[kind as usize] += old.counts().gates[kind as usize];
            self.counts.bytes[kind as usize] += old.counts().bytes[kind as usize];
            self.profile.add(kind, *old.profile().of(kind));
        }
        self.committed = committed;
        Ok(self.epoch())
    }

    /// The stream to `rank` of this epoch, which is the caller's from now on: for a thread of a
    /// pipeline. `None` if there is none ([`Settings::streams`]) or it was taken.
    pub fn take_stream(&mut self, rank: usize) -> Option<Stream> {
        self.streams.get_mut(rank)?.take()
    }

    fn new(role: Role, formed: Formed) -> Self {
        let (counts, profile) = (GateCounts::default(), GateProfile::default());
        let Formed { mesh, streams, committed } = formed;
        let (records, kept, recorder) = (0, None, None);
        Self { role, mesh, streams, counts, profile, recorder, committed, records, kept }
    }
}

impl Exchange for Cluster {
    fn rank(&self) -> usize {
        self.mesh.place().rank
    }

    fn ranks(&self) -> usize {
        self.mesh.place().ranks
    }

    fn post(&mut self, gate: GateKind, mine: &[u8]) -> Result<(), ExchangeError> {
        self.mesh.post(gate, mine)
    }

    fn wait(&mut self, all: &mut [u8]) -> Result<(), ExchangeError> {
        self.mesh.wait(all)
    }

    fn gather(&mut self, gate: GateKind, mine: &[u8], all: &mut [u8]) -> Result<(), ExchangeError> {
        self.mesh.gather(gate, mine, all)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<(), ExchangeError> {
        self.mesh.broadcast(bytes)
    }

    fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), ExchangeError> {
        let tag = self.records;
        self.stream(to)?.send(Record { tag, bytes }, RECORD)?;
        self.records += 1;
        Ok(())
    }

    fn receive(&mut self, from: usize) -> Result<Vec<u8>, ExchangeError> {
        Ok(self.stream(from)?.receive(RECORD)?.bytes)
    }

    fn abort(&mut self, reason: &str) {
        let (rank, reason) = (self.rank(), reason.to_string());
        self.mesh.watch().fail(ExchangeError::Aborted { rank, reason });
    }

    fn reform(&mut self) -> Result<u64, ExchangeError> {
        self.reform_from(self.committed)
    }

    fn epoch(&self) -> u64 {
        u64::from(self.mesh.place().epoch)
    }

    fn alarm(&self) -> Option<Arc<dyn Alarm>> {
        Some(Arc::new(self.mesh.watch().clone()))
    }

    fn counts(&self) -> GateCounts {
        let (mut sum, live) = (self.counts, self.mesh.counts());
        for kind in GateKind::ALL {
            sum.gates[kind as usize] += live.gates[kind as usize];
            sum.bytes[kind as usize] += live.bytes[kind as usize];
        }
        sum
    }
}
