//! Rendezvous and control: who belongs to the group, and whether all are still there.
//!
//! Rank 0 opens a [`door`]; the others knock. Both sides say magic and version in the clear, prove
//! the shared key (Noise NNpsk0) where there is one, and exchange [`words`], which are JSON in
//! frames of a bounded length. When all ranks have come, each gets the roster, makes its links and
//! says so; the group starts when all have. From then on a [`monitor`] thread for each connection
//! sends a beat and takes the other's.
//!
//! A group that breaks is formed again in the same way, under the next epoch: the ranks that are
//! left come back with their rank and keep their process.

mod channel;
mod door;
mod hub;
mod links;
mod member;
mod monitor;
mod verbs;
mod words;

pub use channel::{Channel, Key, PREAMBLE_BYTES, Preamble};
pub use hub::Hub;
pub use member::Member;
pub use verbs::{VerbsWord, connect_verbs};
pub use words::{Join, LinkHello, Purpose, Roster, Word};

use crate::link::VerbsSettings;
use crate::mesh::{Mesh, Timing};
use crate::stream::Stream;
use std::path::PathBuf;
use std::time::Duration;

/// What carries the gates of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// TCP between any machines.
    Tcp,
    /// Shared memory of one machine.
    Shm,
    /// RDMA: Thunderbolt, RoCE, InfiniBand.
    Verbs,
    /// Whatever MPI has between the processes that its launcher started; needs the feature `mpi`.
    Mpi,
}

impl Transport {
    /// Every transport with its name.
    pub const NAMES: [(&'static str, Transport); 4] = [
        ("tcp", Transport::Tcp),
        ("shm", Transport::Shm),
        ("verbs", Transport::Verbs),
        ("mpi", Transport::Mpi),
    ];

    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, it)| *it == self).map_or("", |(name, _)| name)
    }
}

/// What all ranks of a group must have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// Digest of the model: its table of tensors and their bytes as far as they are summed.
    pub model: String,
    /// How it is cut over ranks, and whatever else of the settings changes results.
    pub layout: String,
    /// Version of the program, for messages only.
    pub build: String,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From a connection to the end of its handshake.
    pub handshake: Duration,
    /// Until all ranks are there, loading of a replacement included.
    pub form: Duration,
    /// Until the links are made once all ranks are there.
    pub links: Duration,
    /// How long a control connection may be silent.
    pub silence: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(2),
            form: Duration::from_secs(300),
            links: Duration::from_secs(5),
            silence: Duration::from_secs(3),
        }
    }
}

/// What a rank must know to be part of a group.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What it has in common with the others.
    pub identity: Identity,
    /// The shared key; without one nobody beyond this machine is spoken to.
    pub key: Option<Key>,
    /// The cable between the machines is private: links of gates are not encrypted, and with no
    /// key at all other machines are spoken to.
    pub trusted_link: bool,
    /// Where files of shared memory are made.
    pub folder: PathBuf,
    /// Which RDMA device, where RDMA carries the gates.
    pub verbs: VerbsSettings,
    /// Which MPI, where that carries the gates.
    #[cfg(feature = "mpi")]
    pub mpi: crate::link::MpiSettings,
    /// How long things may take.
    pub deadlines: Deadlines,
    /// How gates wait.
    pub timing: Timing,
    /// Whether every two ranks get a stream of records beside the gates. Rank 0's counts.
    pub streams: bool,
}

/// What one rank has of an epoch.
pub struct Formed {
    /// Its gates.
    pub mesh: Mesh,
    /// By rank, its streams; none if they were not asked for, and none to itself.
    pub streams: Vec<Option<Stream>>,
    /// The last step that all ranks have committed.
    pub committed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let shm = PathBuf::from("/dev/shm");
        Self {
            identity: Identity::default(),
            key: None,
            trusted_link: false,
            folder: if shm.is_dir() { shm } else { PathBuf::from("/tmp") },
            verbs: VerbsSettings::default(),
            #[cfg(feature = "mpi")]
            mpi: crate::link::MpiSettings::default(),
            deadlines: Deadlines::default(),
            timing: Timing::default(),
            streams: false,
        }
    }
}

/// 64 bits that nobody can guess who has not seen them: names of files, and of processes.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
