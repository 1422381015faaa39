//! Why a group was not formed.

use serde::{Deserialize, Serialize};

/// What a rank is refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Another protocol version.
    Version,
    /// No key, another key, or a key where none is used.
    Key,
    /// Another model.
    Model,
    /// The same model cut in another way.
    Layout,
    /// The group has all its ranks.
    Full,
    /// Somebody else has this rank, or there is no such rank.
    Rank,
}

/// Why a group was not formed. The text says what was found, what was wanted, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The other side does not want this rank.
    #[error("refused: {reason}")]
    Refused {
        /// Why, to decide by.
        refusal: Refusal,
        /// Why, to read.
        reason: String,
    },
    /// These settings make no group.
    #[error("{found}, but {wanted}")]
    Settings {
        /// What was set.
        found: String,
        /// What is possible.
        wanted: String,
    },
    /// The system reports an error.
    #[error("{doing} failed: {found}")]
    System {
        /// What was being done.
        doing: String,
        /// What the system says.
        found: String,
    },
    /// What came from the other side is not our protocol.
    #[error("{who} sent {found}, but {wanted}")]
    Wire {
        /// The other side.
        who: String,
        /// What it sent.
        found: String,
        /// What is due.
        wanted: String,
    },
    /// Time is up.
    #[error("not done after {waited_ms} ms: {what}")]
    Late {
        /// How long it was waited.
        waited_ms: u64,
        /// What is missing, and what to do.
        what: String,
    },
}
