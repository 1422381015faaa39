//! Answers from a file instead of a model: for tests of clients and of this server.
//!
//! A playbook is JSON. Each reply has conditions on the prompt and pieces of text; the first whose
//! conditions hold is given:
//!
//! ```json
//! {
//!   "step_ms": 0, "row_us": 0, "context": 100000, "reuse": true,
//!   "replies": [
//!     {"when": ["weather"], "unless": ["sunny"], "text": ["It ", "rains."], "piece_ms": 50}
//!   ],
//!   "other": ["Hello."]
//! }
//! ```
//!
//! `when` and `unless` are looked for in the whole prompt as text, markers included; `last` only
//! in what follows the last user's marker. A piece is a string, in which markers are control
//! tokens, or a list of bytes. `fault` is `{"after": TOKENS, "kind": "error" | "panic" | "nan"}`
//! and `delay` is `{"after": TOKENS, "ms": N}`, counted from the prompt's end; negative numbers
//! are within it.

use super::Model;
use ironstar_engine::Speculation;
use ironstar_engine::sampler::Settings;
use ironstar_engine::scheduler::scripted::{Fault, Reply, Script};
use ironstar_engine::scheduler::{Client, Clock, Limits, Scheduler, SystemClock, spawn};
use ironstar_text::chat::{Effort, Release, Thinking};
use ironstar_text::{PRE_TOKENIZER, Parts, Tokenizer};
use ironstar_wire::Profile;
use serde::Deserialize;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A file of prepared answers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Playbook {
    /// Milliseconds of a step of no rows.
    #[serde(default)]
    pub step_ms: u64,
    /// Microseconds of each row.
    #[serde(default)]
    pub row_us: u64,
    /// Tokens of a session.
    #[serde(default = "default_context")]
    pub context: usize,
    /// Tokens of all sessions together that there is memory for; no bound where nothing is said.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Whether sessions start where earlier ones have been.
    #[serde(default = "default_reuse")]
    pub reuse: bool,
    /// Most sessions at a time.
    #[serde(default = "default_sessions")]
    pub sessions: usize,
    /// Whether the model reasons where a request does not say.
    #[serde(default = "default_thinking")]
    pub thinking: bool,
    /// Most rows of a step.
    #[serde(default = "default_rows")]
    pub step_rows: usize,
    /// Answers with their conditions.
    #[serde(default)]
    pub replies: Vec<Line>,
    /// The answer where no condition holds.
    #[serde(default)]
    pub other: Vec<Piece>,
}

fn default_context() -> usize {
    1 << 20
}

fn default_reuse() -> bool {
    true
}

fn default_sessions() -> usize {
    64
}

fn default_thinking() -> bool {
    true
}

fn default_rows() -> usize {
    512
}

/// One prepared answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Texts that the prompt must have.
    #[serde(default)]
    pub when: Vec<String>,
    /// Texts that it must not have.
    #[serde(default)]
    pub unless: Vec<String>,
    /// Texts that it must have after its last user's marker.
    #[serde(default)]
    pub last: Vec<String>,
    /// The answer.
    #[serde(default)]
    pub text: Vec<Piece>,
    /// How often the answer is repeated; 1 where nothing is said.
    #[serde(default)]
    pub times: Option<usize>,
    /// Milliseconds before each piece.
    #[serde(default)]
    pub piece_ms: u64,
    /// What goes wrong.
    #[serde(default)]
    pub fault: Option<FaultAt>,
    /// A step that takes long.
    #[serde(default)]
    pub delay: Option<DelayAt>,
}

/// Text or bytes.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Piece {
    /// Text with markers.
    Text(String),
    /// Bytes, which need not be whole characters.
    Bytes(Vec<u8>),
}

/// Where something goes wrong.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultAt {
    /// Tokens after the prompt's end.
    pub after: isize,
    /// What.
    pub kind: Kind,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The device fails.
    Error,
    /// The engine panics.
    Panic,
    /// The logits are not numbers.
    Nan,
}

/// Where a step takes long.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelayAt {
    /// Tokens after the prompt's end.
    pub after: isize,
    /// How long.
    pub ms: u64,
}

/// An engine's thread; joining it gives the script back.
pub type Engine = JoinHandle<Script>;

impl Playbook {
    /// Reads a playbook.
    pub fn parse(json: &str) -> Result<Playbook, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// Starts an engine that plays it, and says what a server must know of it.
    pub fn start(&self, tokenizer: Arc<Tokenizer>) -> std::io::Result<(Model, Client, Engine)> {
        self.start_on(tokenizer, Box::new(SystemClock::default()))
    }

    /// The same, where the times of the play go by on this clock.
    pub fn start_on(
        &self,
        tokenizer: Arc<Tokenizer>,
        clock: Box<dyn Clock>,
    ) -> std::io::Result<(Model, Client, Engine)> {
        let limits = Limits {
            sessions: self.sessions,
            queue: 100_000,
            // A scripted token takes a byte.
            session_bytes: self.memory.unwrap_or(u64::MAX),
            ..Limits::default()
        };
        let script = self.script(&tokenizer, clock);
        let vocabulary = script.facts.vocabulary;
        let scheduler = Scheduler::new(script, Box::new(SystemClock::default()), limits);
        let (client, thread) = spawn(scheduler)?;
        let thinking = if self.thinking { Thinking::On(Effort::High) } else { Thinking::Off };
        let dsml_token = tokenizer.special("｜DSML｜");
        let model = Model {
            name: "scripted".to_owned(),
            aliases: Vec::new(),
            vocabulary,
            context: self.context,
            profile: Profile { release: Release::V0731, thinking, dsml_token, think_tokens: true },
            settings: Settings::greedy(),
            speculation: Speculation::Off,
            tokenizer,
        };
        Ok((model, client, thread))
    }

    fn script(&self, tokenizer: &Arc<Tokenizer>, clock: Box<dyn Clock>) -> Script {
        let end = tokenizer.eos().unwrap_or(0);
        let (other, _) = self.tokens(tokenizer, &self.other);
        let mut script = Script::new(clock, other, end);
        script.facts.vocabulary = usize::try_from(tokenizer.vocab_size()).unwrap_or(1 << 19);
        script.facts.context = self.context;
        script.facts.step_rows = self.step_rows;
        script.step_time = Duration::from_millis(self.step_ms);
        script.row_time = Duration::from_micros(self.row_us);
        script.reuse = self.reuse;
        let (play, tokenizer) = (self.clone(), tokenizer.clone());
        script.choose = Some(Box::new(move |prompt| play.reply(&tokenizer, prompt)));
        script
    }

    /// The reply to a prompt, if one has its conditions.
    fn reply(&self, tokenizer: &Tokenizer, prompt: &[u32]) -> Option<Reply> {
        let bytes = tokenizer.decode(prompt);
        let text = String::from_utf8_lossy(&bytes);
        let last = text.rfind("<｜User｜>").map_or(&*text, |at| &text[at..]);
        let line = self.replies.iter().find(|line| {
            line.when.iter().all(|part| text.contains(part))
                && !line.unless.iter().any(|part| text.contains(part))
                && line.last.iter().all(|part| last.contains(part))
        })?;
        let (mut answer, starts) = self.tokens(tokenizer, &line.text);
        let place = |after: isize| prompt.len().saturating_add_signed(after).saturating_sub(1);
        let mut delays = Vec::new();
        if line.piece_ms > 0 {
            let wait = Duration::from_millis(line.piece_ms);
            // A token is drawn by the step that evaluates the one before it.
            delays.extend(starts.iter().map(|start| (prompt.len() + start - 1, wait)));
        }
        if let Some(delay) = line.delay {
            delays.push((place(delay.after), Duration::from_millis(delay.ms)));
        }
        if let Some(times) = line.times {
            answer = answer.repeat(times);
        }
        let fault = line.fault.map(|fault| {
            let kind = match fault.kind {
                Kind::Error => Fault::Error,
                Kind::Panic => Fault::Panic,
                Kind::Nan => Fault::Nan,
            };
            (place(fault.after), kind)
        });
        Some(Reply { prompt: prompt.to_vec(), answer, fault, delays })
    }

    /// Tokens of pieces, and where each piece starts.
    fn tokens(&self, tokenizer: &Tokenizer, pieces: &[Piece]) -> (Vec<u32>, Vec<usize>) {
        let (mut tokens, mut starts) = (Vec::new(), Vec::new());
        for piece in pieces {
            starts.push(tokens.len());
            match piece {
                Piece::Text(text) => tokens.extend(tokenizer.encode_rendered(text)),
                // One token a byte, so that a character can be cut anywhere.
                Piece::Bytes(bytes) => {
                    tokens.extend(bytes.iter().flat_map(|byte| tokenizer.encode_bytes(&[*byte])));
                }
            }
        }
        (tokens, starts)
    }
}

/// Markers of the prompt formats.
const MARKERS: [&str; 10] = [
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜System｜>",
];

/// A vocabulary of single bytes and the markers: small, and every text has tokens.
#[must_use]
pub fn tiny_tokenizer() -> Tokenizer {
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(spelling).collect();
    tokens.extend(MARKERS.iter().map(|marker| marker.as_bytes().to_vec()));
    let mut kinds = vec![1; 256];
    kinds.extend([3; MARKERS.len()]);
    let parts = Parts {
        tokens,
        merges: Vec::new(),
        kinds,
        pre: PRE_TOKENIZER.to_owned(),
        bos: Some(256),
        eos: Some(257),
        pad: Some(258),
    };
    Tokenizer::from_parts(parts).expect("256 bytes and ten markers are a vocabulary")
}

/// A byte in the alphabet of byte-level vocabularies: printable ones are themselves, the others
/// follow from U+0100 on.
fn spelling(byte: u8) -> Vec<u8> {
    let plain = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let character = if plain(byte) {
        char::from(byte)
    } else {
        let before = (0..byte).filter(|b| !plain(*b)).count();
        let code = 0x100 + u32::try_from(before).unwrap_or(0);
        char::from_u32(code).unwrap_or('?')
    };
    character.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_token_and_markers_have_one() {
        let tokenizer = tiny_tokenizer();
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(tokenizer.decode(&tokenizer.encode_bytes(&bytes)), bytes);
        assert_eq!(tokenizer.encode_rendered("a</think>b").len(), 3);
        assert_eq!(tokenizer.encode("</think>").len(), 8, "plain text is no marker");
    }

    #[test]
    fn conditions_choose_and_places_are_counted_from_the_prompts_end() {
        let json = r#"{"replies": [
            {"when": ["tea"], "unless": ["milk"], "text": ["a", [240, 159]]},
            {"last": ["milk"], "text": ["b"], "times": 3, "delay": {"after": 0, "ms": 5},
             "fault": {"after": 2, "kind": "nan"}}
        ]}"#;
        let (play, tokenizer) = (Playbook::parse(json).expect("it is one"), tiny_tokenizer());
        let ask = |text: &str| play.reply(&tokenizer, &tokenizer.encode_rendered(text));
        assert_eq!(ask("tea").map(|reply| reply.answer.len()), Some(3));
        assert!(ask("tea, milk<｜User｜>sugar").is_none());
        let reply = ask("<｜User｜>milk").expect("its condition holds");
        assert_eq!(reply.answer.len(), 3);
        assert_eq!(reply.delays, [(4, Duration::from_millis(5))], "the step of the last token");
        assert_eq!(reply.fault, Some((6, Fault::Nan)));
    }
}
