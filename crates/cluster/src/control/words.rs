//! What is said on control connections.

use super::verbs::VerbsWord;
use super::{Identity, Transport};
use crate::error::Refusal;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Longest text of any field that another process sends.
const TEXT_BYTES_MAX: usize = 1024;

/// One word of the control protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub enum Word {
    /// A rank wants to be part of the group.
    Join(Join),
    /// A rank of the group makes a link of gates with another.
    Link(LinkHello),
    /// It has it.
    Linked,
    /// Two ranks make an RDMA link.
    Verbs(VerbsWord),
    /// No.
    Refused {
        /// Why, to decide by.
        refusal: Refusal,
        /// Why, to read.
        reason: String,
    },
    /// Others are still missing.
    Waiting {
        /// Ranks that are there, rank 0 included.
        present: usize,
        /// Ranks of the group.
        ranks: usize,
    },
    /// All are there.
    Roster(Roster),
    /// All have their links: the first gate may come.
    Start,
    /// Nothing new.
    Beat,
    /// The sender gave the epoch up.
    Abort {
        /// Why.
        reason: String,
    },
    /// The sender ends in peace.
    Bye,
}

/// Who joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// What it has in common with the group.
    pub identity: Identity,
    /// The rank that it wants, or had.
    pub rank: Option<usize>,
    /// How many ranks it was told of.
    pub ranks: Option<usize>,
    /// Number of the process, the same after a break.
    pub instance: u64,
    /// Whether its gates are to be encrypted.
    pub sealed: bool,
    /// Where it can be reached by ranks above it.
    pub address: SocketAddr,
    /// Last step that it has committed, for those who roll back to a common one.
    pub committed: u64,
}

/// Who makes a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkHello {
    /// The roster's nonce.
    pub nonce: u64,
    /// Its epoch.
    pub epoch: u32,
    /// The rank that speaks.
    pub from: usize,
    /// The rank that it wants.
    pub to: usize,
    /// What the link is for.
    pub purpose: Purpose,
}

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Gates.
    Gates,
    /// Records of a pipeline.
    Records,
}

/// The group of one epoch, as one rank gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// The rank that this roster is for.
    pub rank: usize,
    /// The epoch.
    pub epoch: u32,
    /// Number of this attempt.
    pub nonce: u64,
    /// What carries the gates.
    pub transport: Transport,
    /// Whether every two ranks have a stream of records too.
    pub streams: bool,
    /// Where each rank can be reached, in rank order.
    pub addresses: Vec<SocketAddr>,
    /// The last step that all ranks have committed.
    pub committed: u64,
}

impl Join {
    /// Texts come from outside and go to messages: they are bounded.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        let Identity { model, layout, build } = &self.identity;
        [model, layout, build].iter().all(|text| text.len() <= TEXT_BYTES_MAX)
    }
}
