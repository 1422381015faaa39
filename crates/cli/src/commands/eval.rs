//! `ironstar eval`: cases in, right answers counted by kind.

use crate::answer::Answerer;
use crate::eval_cases::{
    Case, Task, answer_tokens_max, first_call, is_answer, parse_cases, right_spans,
};
use crate::failure::Failure;
use crate::flags::Eval;
use crate::progress::Progress;
use crate::{interrupt, loading, print};
use ironstar_engine::sampler::Settings;
use ironstar_engine::{CancelFlag, Control, Finish, Score};
use ironstar_model::Logits;
use std::collections::HashMap;

/// Right and all, of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    right: usize,
    all: usize,
    drafted: usize,
    accepted: usize,
}

/// Runs the command.
pub fn run(flags: &Eval) -> Result<(), Failure> {
    let text = super::read_text(&flags.file)?;
    let wrong = |error| Failure::caller(format!("{}: {error}", flags.file.display()));
    let cases = chosen(parse_cases(&text).map_err(wrong)?, flags);
    let cancel = interrupt::cancel_on_interrupt()?;
    let mut answerer = Answerer::open(&flags.model)?;
    let mut order: Vec<String> = Vec::new();
    let mut tallies: HashMap<String, Tally> = HashMap::new();
    let bar = Progress::new("cases", cases.len() as u64, "cases");
    for (index, case) in cases.iter().enumerate() {
        bar.message(&case.kind);
        let tally = score(&mut answerer, case, &cancel)?;
        if !tallies.contains_key(&case.kind) {
            order.push(case.kind.clone());
        }
        let sum = tallies.entry(case.kind.clone()).or_default();
        sum.right += tally.right;
        sum.all += tally.all;
        sum.drafted += tally.drafted;
        sum.accepted += tally.accepted;
        bar.at(index as u64 + 1);
    }
    drop(bar);
    report(&order, &tallies, flags.json)
}

/// The cases that the flags want.
fn chosen(cases: Vec<Case>, flags: &Eval) -> Vec<Case> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let wanted = |case: &Case| {
        if flags.kind.as_ref().is_some_and(|kind| !case.kind.starts_with(kind.as_str())) {
            return false;
        }
        let count = seen.entry(case.kind.clone()).or_default();
        *count += 1;
        flags.limit.is_none_or(|limit| *count <= limit)
    };
    let mut cases = cases;
    cases.retain(wanted);
    cases
}

fn score(answerer: &mut Answerer, case: &Case, cancel: &CancelFlag) -> Result<Tally, Failure> {
    match &case.task {
        Task::Spans { ids, spans } => {
            let best = likeliest(answerer, ids, cancel)?;
            let right = right_spans(ids, spans, &best);
            Ok(Tally { right, all: spans.len(), ..Tally::default() })
        }
        Task::Answer { prompt, answer } => {
            output(answerer, &case.kind, prompt, cancel, |text| is_answer(text, answer))
        }
        Task::Call { prompt, call } => output(answerer, &case.kind, prompt, cancel, |text| {
            first_call(text).as_ref() == Some(call)
        }),
    }
}

/// The likeliest token after each position.
fn likeliest(
    answerer: &mut Answerer,
    ids: &[u32],
    cancel: &CancelFlag,
) -> Result<Vec<u32>, Failure> {
    let engine = &mut answerer.engine;
    let mut session = engine.session(ids.len()).map_err(loading::from_engine)?;
    let mut best = Vec::with_capacity(ids.len());
    let mut on_row = |row: ironstar_engine::Scored<'_>| {
        best.push(Logits::likeliest(row.logits).unwrap_or(0));
        Control::Continue
    };
    session
        .score(engine, ids, Score::default(), &mut on_row, cancel)
        .map_err(loading::from_engine)
        .map(|()| best)
}

/// The greedy answer to a rendered prompt, and whether it is right.
fn output(
    answerer: &mut Answerer,
    kind: &str,
    prompt: &str,
    cancel: &CancelFlag,
    is_right: impl Fn(&str) -> bool,
) -> Result<Tally, Failure> {
    let ids = answerer.tokenizer.encode_rendered(prompt);
    let settings = (Settings::greedy(), 0, Some(answer_tokens_max(kind)));
    let answer = answerer.answer(&ids, false, settings, cancel, &mut |_, _| {})?;
    if answer.finish == Finish::Cancelled {
        return Err(Failure::interrupted());
    }
    // Markers inside the answer count as text here: the cases are written that way.
    let eos = answerer.tokenizer.eos();
    let ids: Vec<u32> =
        answer.tokens.iter().map(|token| token.id).filter(|id| Some(*id) != eos).collect();
    let text = String::from_utf8_lossy(&answerer.tokenizer.decode(&ids)).into_owned();
    Ok(Tally {
        right: usize::from(is_right(&text)),
        all: 1,
        drafted: answer.speculation.drafted,
        accepted: answer.speculation.accepted,
    })
}

fn report(order: &[String], tallies: &HashMap<String, Tally>, json: bool) -> Result<(), Failure> {
    let rows = order.iter().filter_map(|kind| Some((kind, tallies.get(kind)?)));
    if json {
        let kinds: serde_json::Map<_, _> = rows
            .map(|(kind, tally)| {
                let value = serde_json::json!({
                    "right": tally.right, "all": tally.all,
                    "drafted": tally.drafted, "accepted": tally.accepted,
                });
                (kind.clone(), value)
            })
            .collect();
        return print(format!("{}\n", serde_json::Value::Object(kinds)).as_bytes());
    }
    let lines: String = rows
        .map(|(kind, tally)| {
            let drafts = match tally.drafted {
                0 => String::new(),
                drafted => format!(", {} of {drafted} drafts right", tally.accepted),
            };
            format!("{kind}: {} of {}{drafts}\n", tally.right, tally.all)
        })
        .collect();
    print(lines.as_bytes())
}
