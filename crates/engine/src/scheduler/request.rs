//! What is asked of a scheduler, and what it tells.

use super::constraint::Constraint;
use crate::{Blame, CancelFlag, Control, Error, Finish, Generate, SpeculationReport, Token};
use std::time::Duration;

/// Names a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// An answer that is wanted.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The whole prompt.
    pub prompt: Vec<u32>,
    /// How it is answered.
    pub what: Generate,
    /// A small request beside a conversation (a title): it may pass a few waiting ones.
    pub side: bool,
    /// Time from the moment it is received to its end.
    pub deadline: Option<Duration>,
    /// Ends it before the next step.
    pub cancel: CancelFlag,
    /// What may follow in the answer.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Wants [`Event::Prompt`] with so many alternatives a token. The whole prompt is then
    /// evaluated, whatever is there already.
    pub prompt_logprobs: Option<usize>,
    /// Whether the prompt is what its tokens say, so that other tokens of the same text, from which
    /// a stored state goes further, may take their place.
    pub is_text: bool,
}

/// What happens to a request, in this order.
#[derive(Debug)]
pub enum Event {
    /// It waits; sent again when the number changes.
    Queued {
        /// Requests before it.
        ahead: usize,
    },
    /// Its prompt is being read; sent at the start and after each step that read some of it.
    Progress {
        /// Tokens evaluated or reused.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// The next tokens of the prompt with their log probabilities, where those were asked for; the
    /// first token of all has none.
    Prompt(Vec<Token>),
    /// A token of the answer.
    Token(Token),
    /// The last event: it ended as it should, or was cancelled.
    Done {
        /// Why it ended.
        finish: Finish,
        /// How it went.
        stats: Stats,
    },
    /// The last event: it could not be answered.
    Failed {
        /// Why.
        failure: Failure,
        /// How it went until then.
        stats: Stats,
    },
}

/// Receives events on the scheduler's thread; it must not block. What it answers is whether more
/// is wanted.
pub type Sink = Box<dyn FnMut(Event) -> Control + Send>;

/// How an answer went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// How many of those needed no work.
    pub reused: usize,
    /// Tokens of the answer.
    pub tokens: usize,
    /// Time in the queue.
    pub queued: Duration,
    /// Time from there to the end of the prompt.
    pub reading: Duration,
    /// Time from there to the end.
    pub answering: Duration,
    /// Longest time between two tokens of the answer.
    pub gap_max: Duration,
    /// What guessing gained.
    pub speculation: SpeculationReport,
}

/// Why a request was refused or given up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The engine could not do it.
    #[error(transparent)]
    Engine(#[from] Error),
    /// Too many wait already.
    #[error("{waiting} requests wait, and no more than {most} may; try again later")]
    QueueFull {
        /// How many wait.
        waiting: usize,
        /// How many may.
        most: usize,
    },
    /// It can never be admitted.
    #[error(
        "a session of {context} tokens takes {needed} bytes, but all sessions together may take \
         {budget}; use a shorter prompt, a smaller limit of tokens, or give sessions more memory"
    )]
    Memory {
        /// Tokens of prompt and answer.
        context: usize,
        /// Bytes of its state.
        needed: u64,
        /// Bytes of all sessions.
        budget: u64,
    },
    /// Its time is over.
    #[error(
        "{limit_ms} ms were allowed, and they are over after {tokens} tokens of the answer; allow \
         more time, or ask for less"
    )]
    Deadline {
        /// What was allowed.
        limit_ms: u128,
        /// Tokens given until then.
        tokens: usize,
    },
    /// What constrains the answer gave up.
    #[error("the grammar of this answer cannot go on: {0}")]
    Constraint(String),
    /// A fault of this program; other requests go on.
    #[error("the engine failed inside ({0}); the request is lost, please report this")]
    Panic(String),
    /// The scheduler has ended.
    #[error("the engine is stopping; ask again when it runs")]
    Stopped,
}

impl Failure {
    /// Who can do something about it.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Failure::Engine(error) => error.blame(),
            Failure::Memory { .. } => Blame::Input,
            Failure::QueueFull { .. } | Failure::Deadline { .. } | Failure::Stopped => {
                Blame::Environment
            }
            Failure::Panic(_) | Failure::Constraint(_) => Blame::Internal,
        }
    }
}
