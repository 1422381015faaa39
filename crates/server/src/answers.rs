//! Answers of `/v1/responses` that later requests may go on from.

use ironstar_text::chat::Message;
use std::collections::{HashMap, VecDeque};

/// An answer with what led to it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The conversation without instructions, the answer's own message included.
    pub messages: Vec<Message>,
    /// The body as it was sent.
    pub body: String,
}

/// Answers by id, as many as fit; the oldest are forgotten first.
#[derive(Debug)]
pub(crate) struct Answers {
    bytes_max: usize,
    bytes: usize,
    answers: HashMap<String, (Answer, usize)>,
    order: VecDeque<String>,
}

impl Answers {
    pub fn new(bytes_max: usize) -> Self {
        Answers { bytes_max, bytes: 0, answers: HashMap::new(), order: VecDeque::new() }
    }

    pub fn get(&self, id: &str) -> Option<&Answer> {
        self.answers.get(id).map(|(answer, _)| answer)
    }

    pub fn remove(&mut self, id: &str) -> bool {
        let Some((_, bytes)) = self.answers.remove(id) else { return false };
        self.bytes -= bytes;
        self.order.retain(|known| known != id);
        true
    }

    pub fn keep(&mut self, id: String, answer: Answer) {
        let bytes = id.len() + answer.body.len() + size_of(&answer.messages);
        if bytes > self.bytes_max {
            return;
        }
        while self.bytes + bytes > self.bytes_max {
            let Some(oldest) = self.order.front().cloned() else { break };
            self.remove(&oldest);
        }
        self.bytes += bytes;
        self.order.push_back(id.clone());
        self.answers.insert(id, (answer, bytes));
    }
}

/// Bytes of the texts of messages, and a little for each.
fn size_of(messages: &[Message]) -> usize {
    let one = |message: &Message| match message {
        Message::System(text)
        | Message::Developer(text)
        | Message::User(text)
        | Message::LatestReminder(text) => text.len(),
        Message::Tool(result) => result.call_id.len() + result.text.len(),
        Message::Assistant(turn) => {
            let calls = turn.calls.iter().map(|c| c.id.len() + c.name.len() + c.arguments.len());
            turn.reasoning.as_ref().map_or(0, String::len)
                + turn.content.len()
                + calls.sum::<usize>()
        }
    };
    messages.iter().map(|message| one(message) + 64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(bytes: usize) -> Answer {
        Answer { messages: Vec::new(), body: "x".repeat(bytes) }
    }

    #[test]
    fn the_oldest_are_forgotten_first_and_the_bytes_add_up() {
        let mut answers = Answers::new(100);
        for id in ["a", "b", "c"] {
            answers.keep(id.into(), answer(39));
        }
        assert!(answers.get("a").is_none() && answers.get("b").is_some());
        answers.keep("huge".into(), answer(1000));
        assert!(answers.get("huge").is_none() && answers.get("c").is_some());
        assert!(answers.remove("b") && !answers.remove("b") && answers.remove("c"));
        assert_eq!((answers.bytes, answers.order.len()), (0, 0));
    }
}
