//! Answers of `/v1/responses` that later requests may go on from: in a folder, where the server has
//! one, so that they outlive it; else, or where the folder fails, in memory.

mod file;
mod shelf;

#[cfg(test)]
mod tests;

pub(crate) use shelf::Shelf;

use ironstar_text::chat::Message;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An answer with what led to it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    /// The conversation without instructions, the answer's own message included.
    pub messages: Vec<Message>,
    /// The body as it was sent.
    pub body: String,
}

/// Answers by id.
pub(crate) struct Answers {
    memory: Mutex<Memory>,
    shelf: Option<Shelf>,
}

impl Answers {
    /// Keeps so many bytes in memory, and what the shelf holds.
    pub fn new(bytes_max: usize, shelf: Option<Shelf>) -> Self {
        Answers { memory: Mutex::new(Memory::new(bytes_max)), shelf }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer with an id. It may read a file.
    pub fn get(&self, id: &str) -> Option<Answer> {
        let found = self.memory().get(id).cloned();
        found.or_else(|| self.shelf.as_ref()?.get(id))
    }

    /// Whether there was such an answer; there is none now.
    pub fn remove(&self, id: &str) -> bool {
        let remembered = self.memory().remove(id);
        let shelved = self.shelf.as_ref().is_some_and(|shelf| shelf.remove(id));
        remembered || shelved
    }

    /// Keeps an answer. When this returns it survives the process, unless it has no folder or the
    /// folder fails; that is told, for the log, the first time of several.
    pub fn keep(&self, id: String, answer: Answer) -> Option<String> {
        let problem = match &self.shelf {
            None => None,
            Some(shelf) => match shelf.keep(&id, &answer) {
                Ok(()) => return None,
                Err(problem) => problem,
            },
        };
        self.memory().keep(id, answer);
        problem
    }
}

/// Answers in memory, as many as fit; the oldest are forgotten first.
#[derive(Debug)]
struct Memory {
    bytes_max: usize,
    bytes: usize,
    answers: HashMap<String, (Answer, usize)>,
    order: VecDeque<String>,
}

impl Memory {
    fn new(bytes_max: usize) -> Self {
        Memory { bytes_max, bytes: 0, answers: HashMap::new(), order: VecDeque::new() }
    }

    fn get(&self, id: &str) -> Option<&Answer> {
        self.answers.get(id).map(|(answer, _)| answer)
    }

    fn remove(&mut self, id: &str) -> bool {
        let Some((_, bytes)) = self.answers.remove(id) else { return false };
        self.bytes -= bytes;
        self.order.retain(|known| known != id);
        true
    }

    fn keep(&mut self, id: String, answer: Answer) {
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
