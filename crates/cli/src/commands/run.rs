//! `ironstar run`: one answer, or a chat.

mod chat;

use crate::answer::{Answer, Answerer};
use crate::failure::Failure;
use crate::flags::Run;
use crate::{asking, interrupt, loading, print, ranks};
use ironstar_engine::{CancelFlag, Finish};
use ironstar_text::Channel;
use ironstar_text::chat::Thinking;
use serde_json::json;
use std::hash::{BuildHasher, Hasher};
use std::io::{IsTerminal, Write};

/// Dim text and back, for reasoning on a terminal.
const DIM: &str = "\x1b[2m";

/// Runs the command.
pub fn run(flags: &Run) -> Result<(), Failure> {
    let given = flags.prompt.prompt.is_some() || flags.prompt.prompt_file.is_some();
    let is_chat = !given && std::io::stdin().is_terminal();
    if is_chat && (flags.json || flags.prompt.raw || flags.dumping.dump.is_some()) {
        return Err(Failure::caller(
            "--json, --raw and --dump need a prompt: -p TEXT, --prompt-file FILE or a pipe",
        ));
    }
    let text = if is_chat {
        String::new()
    } else {
        let text = flags.prompt.prompt.as_deref();
        super::input_text(text, flags.prompt.prompt_file.as_deref())?
    };
    if !is_chat && text.is_empty() {
        return Err(Failure::caller(
            "the prompt is empty; give some text with -p, --prompt-file or a pipe",
        ));
    }
    let cancel = interrupt::cancel_on_interrupt()?;
    let mut answerer = Answerer::open(&flags.model)?;
    let dump = super::diff::begin(&mut answerer.engine, &flags.dumping)?;
    if flags.model.model.is_none() {
        note(
            "no model was named (-m FILE): this is the bundled nano model, small enough \
             to try things with",
        );
    }
    if is_chat {
        return chat::run(flags, answerer, &cancel);
    }
    answerer.check_length(&text)?;
    let thinking = asking::thinking(&flags.prompt);
    let ids = if flags.prompt.raw {
        answerer.tokenizer.encode_rendered(&text)
    } else {
        asking::question(&answerer.tokenizer, flags.prompt.system.as_deref(), &text, thinking)?
    };
    let seed = flags.sampling.seed.unwrap_or_else(fresh_seed);
    let mut output = Output::new(flags.json);
    let answer = answerer.answer(
        &ids,
        thinking != Thinking::Off,
        (answerer.settings(&flags.sampling), seed, flags.prompt.tokens),
        &cancel,
        &mut |channel, text| output.text(channel, text, &cancel),
    )?;
    output.end()?;
    if flags.json {
        let gates = ranks::gates_json(&flags.model.ranks);
        print(json(&answerer, &answer, seed, gates).as_bytes())?;
    } else if flags.sampling.logprobs.is_some() {
        note(logprob_lines(&answerer, &answer).trim_end());
    }
    note(&answer.summary(seed));
    super::diff::end(dump.as_ref())?.iter().for_each(|line| note(line));
    ranks::tell_gates(&flags.model.ranks);
    answerer.finish_storing().iter().for_each(|problem| note(problem));
    match answer.finish {
        Finish::Cancelled if output.failure.is_none() => Err(Failure::interrupted()),
        _ => output.failure.map_or(Ok(()), Err),
    }
}

/// A line on standard error.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A seed that differs from run to run; small enough to type again.
fn fresh_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 32
}

/// Where an answer's text goes while it comes: content to standard output, reasoning to standard
/// error.
struct Output {
    silent: bool,
    dim: bool,
    in_reasoning: bool,
    failure: Option<Failure>,
}

impl Output {
    fn new(silent: bool) -> Self {
        let dim = std::io::stderr().is_terminal();
        Output { silent, dim, in_reasoning: false, failure: None }
    }

    /// Writes a piece; when nobody reads any more, the answer is stopped.
    fn text(&mut self, channel: Channel, text: &str, cancel: &CancelFlag) {
        if self.silent || text.is_empty() {
            return;
        }
        self.switch(channel == Channel::Reasoning);
        if self.in_reasoning {
            let _ = write!(std::io::stderr(), "{text}");
        } else if let Err(failure) = print(text.as_bytes()) {
            self.failure.get_or_insert(failure);
            cancel.raise();
        }
    }

    /// Between the two channels: a change of colour and a new line.
    fn switch(&mut self, to_reasoning: bool) {
        if to_reasoning == self.in_reasoning {
            return;
        }
        self.in_reasoning = to_reasoning;
        let mark = match (self.dim, to_reasoning) {
            (false, true) => "",
            (true, true) => DIM,
            (false, false) => "\n",
            (true, false) => "\x1b[0m\n",
        };
        let _ = write!(std::io::stderr(), "{mark}");
    }

    fn end(&mut self) -> Result<(), Failure> {
        if self.silent || self.failure.is_some() {
            return Ok(());
        }
        self.switch(false);
        print(b"\n")
    }
}

fn json(
    answerer: &Answerer,
    answer: &Answer,
    seed: u64,
    gates: Option<serde_json::Value>,
) -> String {
    let piece = |id: u32| String::from_utf8_lossy(answerer.tokenizer.token_bytes(id)).into_owned();
    let tokens: Vec<serde_json::Value> = answer
        .tokens
        .iter()
        .map(|token| {
            let top: Vec<serde_json::Value> = token
                .top
                .iter()
                .map(|(id, logprob)| (id, piece(*id), logprob))
                .map(|(id, text, logprob)| json!({"id": id, "text": text, "logprob": logprob}))
                .collect();
            json!({
                "id": token.id, "text": piece(token.id), "logprob": token.logprob, "top": top
            })
        })
        .collect();
    let object = json!({
        "model": answerer.name,
        "content": answer.content,
        "reasoning": answer.reasoning,
        "finish": answer.finish_name(),
        "seed": seed,
        "prompt_tokens": answer.prompt.0,
        "completion_tokens": answer.tokens.len(),
        "prompt_seconds": answer.times.0.as_secs_f64(),
        "completion_seconds": answer.times.1.as_secs_f64(),
        "drafted": answer.speculation.drafted,
        "accepted": answer.speculation.accepted,
        "speculation": speculation_json(&answer.speculation),
        "tokens": tokens,
        "gates": gates,
    });
    format!("{object}\n")
}

/// Steps, the drafter's time, and guesses and right ones at each depth of a step.
fn speculation_json(report: &ironstar_engine::SpeculationReport) -> serde_json::Value {
    let depths: Vec<_> = report.depths.iter().take_while(|depth| depth.0 > 0).collect();
    json!({
        "steps": report.steps,
        "plain_steps": report.plain_steps,
        "drafting_seconds": report.drafting.as_secs_f64(),
        "depths": depths,
    })
}

/// A line a token: its log probability and the alternatives.
fn logprob_lines(answerer: &Answerer, answer: &Answer) -> String {
    let piece = |id: u32| String::from_utf8_lossy(answerer.tokenizer.token_bytes(id)).into_owned();
    let mut out = String::new();
    for token in &answer.tokens {
        let logprob = token.logprob.unwrap_or(f64::NAN);
        out.push_str(&format!("{:>9.4} {:<20}", logprob, format!("{:?}", piece(token.id))));
        for (id, logprob) in &token.top {
            out.push_str(&format!(" {:?} {logprob:.4}", piece(*id)));
        }
        out.push('\n');
    }
    out
}

/// The blame of a chat's line editor.
fn from_editor(error: &rustyline::error::ReadlineError) -> Failure {
    Failure::environment(format!("reading the terminal: {error}"))
}

/// Where typed lines are remembered between chats.
fn history_file() -> Option<std::path::PathBuf> {
    loading::state_folder().map(|folder| folder.join("history"))
}
