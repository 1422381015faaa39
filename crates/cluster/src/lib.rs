//! Ranks of a group: transports, gates and rendezvous.
//!
//! A group of processes runs one model. This crate forms it ([`Cluster`]), moves what the ranks
//! give each other ([`Mesh`] over a [`Link`] to every other rank), notices when one is gone, and
//! forms it again without anybody reloading. It knows no model, no engine and no token: bytes of
//! `ironstar_device::Exchange` come in and go out, and adding them is their owner's business.
//!
//! Start reading at [`Link`], then `flow.rs` for why no send meets an empty queue, `mesh.rs` for
//! the gates, and `control.rs` for how a group comes together.
//!
//! ```
//! use ironstar_cluster::{Limits, Link, MemoryLink, Mesh, Place, Timing, Watch};
//! use ironstar_device::GateKind;
//! let (left, right) = MemoryLink::pair(Limits::GATES);
//! let mut ranks: Vec<Mesh> = [left, right].into_iter().enumerate().map(|(rank, link)| {
//!     let links: Vec<(usize, Box<dyn Link>)> = vec![(1 - rank, Box::new(link))];
//!     let place = Place { rank, ranks: 2, epoch: 0 };
//!     Mesh::new(place, links, Timing::default(), Watch::default()).expect("one other rank")
//! }).collect();
//! for (rank, mesh) in ranks.iter_mut().enumerate() {
//!     mesh.post(GateKind::Ffn, &[rank as u8; 4]).expect("both are there");
//! }
//! let mut all = [9; 8];
//! ranks[0].wait(&mut all).expect("both have posted");
//! assert_eq!(all, [0, 0, 0, 0, 1, 1, 1, 1]);
//! ```

mod alone;
mod control;
mod error;
mod flow;
mod group;
mod launch;
mod link;
mod mesh;
mod message;
mod pace;
mod profile;
mod self_test;
pub mod sim;
mod stream;
mod sum;
mod watch;

pub use alone::Alone;
pub use control::{
    Channel, Deadlines, Formed, Hub, Identity, Join, Key, LinkHello, Member, PREAMBLE_BYTES,
    Preamble, Purpose, Roster, Settings, Transport, VerbsWord, Word, connect_verbs,
};
pub use error::{Error, Refusal};
pub use flow::Flow;
pub use group::Cluster;
pub use launch::{DEFAULT_PORT, Launch, launch};
pub use link::{
    ByteLink, Bytes, Limits, Link, LinkError, MemoryLink, ShmLink, ShmSize, Taken, TcpLink,
    VerbsAddress, VerbsConnection, VerbsLink, VerbsSettings, tune,
};
#[cfg(feature = "mpi")]
pub use link::{Mpi, MpiLink, MpiPlace, MpiSettings};
pub use mesh::{BROADCAST_BYTES_MAX, Mesh, Place, Timing};
pub use message::{Damage, HEADER_BYTES, Header, copy_payload, payload_sum};
pub use pace::Pace;
pub use profile::{GateEvent, GateProfile, GateReport, GateTimes, Recorder};
pub use self_test::{LinkTime, StepCost, measure, measure_hop, measure_orders, measure_sizes};
pub use stream::{RECORD_BYTES_MAX, Record, Stream};
pub use sum::{copy_summed, placed_sum};
pub use watch::Watch;
