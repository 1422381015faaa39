//! Exact replay of sampled calls.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ironstar_text::chat::{Conversation, Message, ToolCall};
use ironstar_text::{JsonText, Segment};
use serde_json::Value;

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
/// back, unless the client changed them. So the prompt begins with the very tokens of the session
/// that made the calls.
#[derive(Debug)]
pub struct CallMemory {
    bytes_max: usize,
    bytes: usize,
    by_id: HashMap<String, Arc<SampledCalls>>,
    /// Blocks from the oldest on.
    order: VecDeque<Arc<SampledCalls>>,
}

impl Default for CallMemory {
    fn default() -> Self {
        Self::new(256 << 20)
    }
}

impl CallMemory {
    /// Remembers so many bytes at most; the oldest calls are forgotten first.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, by_id: HashMap::new(), order: VecDeque::new() }
    }

    /// Remembers the calls of an answer.
    pub fn remember(&mut self, calls: SampledCalls) {
        let size = bytes(&calls);
        if calls.calls.is_empty() || size > self.bytes_max {
            return;
        }
        let block = Arc::new(calls);
        for call in &block.calls {
            self.by_id.insert(call.id.clone(), Arc::clone(&block));
        }
        self.bytes += size;
        self.order.push_back(block);
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.order.pop_front() else { return };
            self.bytes -= bytes(&oldest);
            for call in &oldest.calls {
                if self.by_id.get(&call.id).is_some_and(|block| Arc::ptr_eq(block, &oldest)) {
                    self.by_id.remove(&call.id);
                }
            }
        }
    }

    /// Bytes that are remembered.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts back the reasoning of remembered turns where the client left it out.
    pub fn restore(&self, conversation: &mut Conversation) {
        for message in &mut conversation.messages {
            let Message::Assistant(turn) = message else { continue };
            let left_out = turn.reasoning.as_deref().is_none_or(|text| text.trim().is_empty());
            if let Some(block) = self.find(&turn.calls).filter(|_| left_out) {
                turn.reasoning = Some(block.reasoning.clone());
            }
        }
    }

    /// What the model wrote for these calls, if they are remembered and unchanged.
    #[must_use]
    pub fn written(&self, calls: &[ToolCall]) -> Option<&[Segment]> {
        self.find(calls).map(|block| &block.written[..])
    }

    fn find(&self, calls: &[ToolCall]) -> Option<&SampledCalls> {
        let block = self.by_id.get(&calls.first()?.id)?;
        let same = block.calls.len() == calls.len()
            && block.calls.iter().zip(calls).all(|(ours, theirs)| {
                ours.id == theirs.id
                    && ours.name.replace("::", "__") == theirs.name.replace("::", "__")
                    && same_json(&ours.arguments, &theirs.arguments)
            });
        same.then_some(block)
    }
}

fn bytes(block: &SampledCalls) -> usize {
    let call = |call: &ToolCall| {
        // The id is a key too; the rest is what the structures take.
        2 * call.id.len() + call.name.len() + call.arguments.len() + 256
    };
    let written: usize = block.written.iter().map(|piece| piece.as_str().len() + 32).sum();
    block.calls.iter().map(call).sum::<usize>() + written + block.reasoning.len()
}

/// Bytes of arguments beyond which only equal texts are the same: values take many times as much.
const PARSED_BYTES_MAX: usize = 4 << 20;

/// Whether two texts are the same JSON to a client that reads numbers as doubles and may reorder
/// keys: both happen on the way, and neither is a change that somebody made.
fn same_json(ours: &str, theirs: &str) -> bool {
    if ours == theirs {
        return true;
    }
    let spaced = |json| JsonText::parse(json).ok();
    if let (Some(ours), Some(theirs)) = (spaced(ours), spaced(theirs))
        && ours == theirs
    {
        return true;
    }
    if ours.len().max(theirs.len()) > PARSED_BYTES_MAX {
        return false;
    }
    let parsed = |json| serde_json::from_str::<Value>(json).ok();
    matches!((parsed(ours), parsed(theirs)), (Some(a), Some(b)) if same_value(&a, &b))
}

/// Values come from the parser, which bounds their depth.
fn same_value(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_value(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let same = |(key, value)| b.get(key).is_some_and(|other| same_value(value, other));
            a.len() == b.len() && a.iter().all(same)
        }
        (a, b) => a == b,
    }
}
