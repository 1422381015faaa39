//! One answer: the bits of a position do not depend on how positions were cut into steps, on
//! neighbours, threads, instruction sets, restoring, taking back, or speculation (DESIGN 5).
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

use crate::common::{Rows, Runner, default_mode, exact, joined, same_bits};
use ironstar_device::{CpuConfig, Isa};
use ironstar_gguf::Gguf;
use ironstar_model::deepseek_v4::{Kind, TensorSpec};
use ironstar_model::testing::{Encoded, Tiny, encode};
use ironstar_model::{LogitsFor, Options, ROLLBACK_ROWS, Wanted};
use ironstar_quant::Format;
use proptest::prelude::*;
use std::sync::LazyLock;

/// Crosses two groups of 128, many windows of 16, and the ring of a window (80 slots).
const TOKENS: usize = 300;
const CONTEXT: usize = 400;

/// Experts in MXFP4, the rest as files have it: Q8_0 and F16.
pub fn quantised(spec: &TensorSpec, values: &[f32]) -> Encoded {
    match spec.kind {
        Kind::Routed => encode(Format::Mxfp4, values),
        Kind::Dense => encode(Format::Q8_0, values),
        Kind::Float => encode(Format::F16, values),
        Kind::Vector | Kind::Table => encode(Format::F32, values),
    }
}

/// A small model, its tokens, and what one pass gives.
pub struct Case {
    pub gguf: Gguf,
    pub drafter: Gguf,
    pub mode: (CpuConfig, Options),
    pub tokens: Vec<u32>,
    pub rows: Rows,
    pub vocabulary: usize,
}

impl Case {
    pub fn new(tiny: &Tiny, quantise: bool, mode: (CpuConfig, Options), tokens: usize) -> Case {
        let (gguf, drafter) = if quantise {
            (tiny.gguf_as(&quantised), tiny.drafter_as(&quantised))
        } else {
            (tiny.gguf(), tiny.drafter())
        };
        let tokens = tiny.tokens(tokens);
        let vocabulary = tiny.shape.vocabulary;
        let mut case = Case { gguf, drafter, mode, tokens, rows: Rows::default(), vocabulary };
        case.rows = case.runner().cuts(&case.tokens.clone(), []);
        assert!(case.rows.logits.iter().chain(&case.rows.drafts).all(|v| v.is_finite()));
        case
    }

    pub fn runner(&self) -> Runner {
        self.runner_in(self.mode.clone())
    }

    pub fn runner_in(&self, mode: (CpuConfig, Options)) -> Runner {
        Runner::new(&self.gguf, Some(&self.drafter), mode, CONTEXT)
    }

    /// The one pass's logits and drafts of the rows from a position on.
    pub fn check(&self, position: usize, rows: usize, output: &ironstar_model::Output, what: &str) {
        let v = self.vocabulary;
        let logits = &self.rows.logits[position * v..][..rows * v];
        same_bits(&output.logits.values()[..rows * v], logits, what);
        let skip = usize::from(position == 0);
        let drafts = &self.rows.drafts[(position + skip - 1) * v..][..(rows - skip.min(rows)) * v];
        same_bits(&output.drafts.values()[..drafts.len()], drafts, what);
    }
}

static EXACT: LazyLock<Case> = LazyLock::new(|| Case::new(&Tiny::small(3), false, exact(), TOKENS));
static ROUNDED: LazyLock<Case> =
    LazyLock::new(|| Case::new(&Tiny::small(4), true, default_mode(1, None), TOKENS));

fn cases() -> [(&'static str, &'static Case); 2] {
    [("exact", &EXACT), ("default", &ROUNDED)]
}

#[test]
fn any_cut_gives_the_same_bits() {
    for (name, case) in cases() {
        let saved = {
            let mut runner = case.runner();
            runner.cuts(&case.tokens, []);
            runner.saved()
        };
        let cuts: [(&str, Vec<usize>); 6] = [
            ("token by token", vec![1; TOKENS]),
            ("prefill and decode", [vec![200], vec![1; 100]].concat()),
            ("on group borders", vec![4, 124, 1, 127, 3, 1]),
            ("around group borders", vec![3, 2, 122, 2, 126, 5, 40]),
            ("longer than every ring", vec![1, 250, 49]),
            ("decode, then a chunk", [vec![1; 20], vec![270]].concat()),
        ];
        for (cut, lengths) in cuts {
            let mut runner = case.runner();
            let rows = runner.cuts(&case.tokens, lengths);
            rows.assert_same_bits(&case.rows, &format!("{name}, {cut}"));
            assert!(runner.saved() == saved, "{name}, {cut}: saved states differ");
        }
    }
}

#[test]
fn threads_and_instruction_sets_give_the_same_bits() {
    for (name, case) in cases() {
        for isa in Isa::available() {
            for threads in [1, 2] {
                let (cpu, options) = case.mode.clone();
                let cpu = CpuConfig { threads, isa: Some(isa), ..cpu };
                let mut runner = case.runner_in((cpu, options));
                let rows = runner.cuts(&case.tokens, [37, 100, 1, 1]);
                let what = format!("{name}, {} on {threads} threads", isa.name());
                rows.assert_same_bits(&case.rows, &what);
            }
        }
    }
}

#[test]
fn neighbours_do_not_matter() {
    for (name, case) in cases() {
        let mut runner = case.runner();
        let mut other = runner.model.new_state(&mut runner.cpu, CONTEXT).unwrap();
        let mut at = [0, 0];
        // Two sessions at different positions of the same text, then with different row counts.
        for (mine, theirs) in [(0, 150), (10, 7), (130, 1), (1, 1), (100, 80), (1, 2), (1, 1)] {
            let parts: Vec<(&[u32], usize)> = [(mine, at[0]), (theirs, at[1])]
                .into_iter()
                .map(|(count, at)| (&case.tokens[at..at + count], at))
                .filter(|(tokens, _)| !tokens.is_empty())
                .collect();
            let wanted = Wanted { logits: LogitsFor::All, drafts: LogitsFor::All };
            let mut states = vec![&mut runner.state, &mut other];
            states.retain(|s| s.position() == at[1] || mine > 0);
            if mine == 0 {
                states = states.split_off(states.len() - 1);
            }
            let step = joined(&parts);
            let (model, cpu) = (&mut runner.model, &mut runner.cpu);
            let out = model.forward_observed(cpu, &step, &mut states, &wanted, None).unwrap();
            let v = case.vocabulary;
            let want: Vec<f32> = parts
                .iter()
                .flat_map(|(tokens, at)| &case.rows.logits[at * v..][..tokens.len() * v])
                .copied()
                .collect();
            same_bits(out.logits.values(), &want, name);
            let want: Vec<f32> = parts
                .iter()
                .flat_map(|(tokens, at)| at.max(&1) - 1..(at + tokens.len()).max(1) - 1)
                .flat_map(|row| &case.rows.drafts[row * v..][..v])
                .copied()
                .collect();
            same_bits(out.drafts.values(), &want, name);
            for (state, (tokens, _)) in states.into_iter().zip(&parts) {
                model.commit(state, tokens.len()).unwrap();
            }
            at = [at[0] + mine, at[1] + theirs];
        }
    }
}

#[test]
fn a_guess_is_the_draft_row_and_changes_nothing() {
    for (name, case) in cases() {
        let mut runner = case.runner();
        let v = case.vocabulary;
        for (t, length) in [(0, 1), (1, 1), (2, 40), (42, 100), (142, 1)] {
            let out = runner.step(&case.tokens[t..t + length]);
            case.check(t, length, &out, name);
            let next = case.tokens[t + length];
            let unlikely = (next + 1) % u32::try_from(v).unwrap();
            runner.model.draft(&mut runner.cpu, &runner.state, unlikely).unwrap();
            let guess = runner.model.draft(&mut runner.cpu, &runner.state, next).unwrap();
            same_bits(guess.row(0), &case.rows.drafts[(t + length - 1) * v..][..v], name);
        }
    }
}

#[test]
fn restoring_runs_no_rows_and_gives_the_same_bits() {
    use ironstar_device::Backend;
    for (name, case) in cases() {
        let mut first = case.runner();
        for at in [0, 1, 5, 127, 128, 130, 255, 256, 299] {
            let from = first.state.position();
            if at > from {
                first.step(&case.tokens[from..at]);
            }
            let bytes = first.saved();
            let mut second = case.runner();
            // A state with another past, and rows to overwrite.
            second.step(&case.tokens[100..230]);
            let counters = second.cpu.counters();
            second.state.restore(&mut second.cpu, &bytes).unwrap();
            assert_eq!(second.cpu.counters(), counters, "restoring evaluates nothing");
            assert_eq!((second.state.position(), second.saved() == bytes), (at, true));
            let out = second.step(&case.tokens[at..]);
            case.check(at, TOKENS - at, &out, &format!("{name}, restored at {at}"));
        }
    }
}

/// The farthest that can be taken back, from positions that need the oldest slots: of a window, of
/// a group of 4 and the one before, of a group of 128, and of the draft block.
#[test]
fn the_farthest_way_back_gives_the_same_bits() {
    let wanted = Wanted { logits: LogitsFor::None, drafts: LogitsFor::None };
    for (name, case) in cases() {
        let wrong = vec![7; ROLLBACK_ROWS];
        for at in [1, 7, 16, 90, 127, 128, 201, 255] {
            let what = format!("{name}, back to {at}");
            let mut dropped = case.runner();
            dropped.step(&case.tokens[..at]);
            dropped.tried(&wrong, &wanted, None);
            dropped.model.commit(&mut dropped.state, 0).unwrap();
            let mut rewound = case.runner();
            rewound.step(&case.tokens[..at]);
            wrong.iter().for_each(|&token| drop(rewound.step(&[token])));
            rewound.state.truncate(at).unwrap();
            for mut runner in [dropped, rewound] {
                case.check(at, 1, &runner.step(&case.tokens[at..=at]), &what);
                let left = TOKENS - at - 1;
                case.check(at + 1, left, &runner.step(&case.tokens[at + 1..]), &what);
            }
        }
    }
}

/// What a session may go through.
#[derive(Clone, Debug)]
pub enum Act {
    /// Evaluate and keep so many tokens.
    Step(usize),
    /// Evaluate some right and some wrong tokens, keep only right ones.
    Speculate {
        right: usize,
        wrong: usize,
    },
    /// Go back by so many.
    Back(usize),
    /// Save, start over with wrong tokens, restore.
    Restore,
    /// Guess without effect.
    Guess(u32),
    StartOver,
}

pub fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (1usize..140).prop_map(Act::Step),
        4 => (1usize..4).prop_map(Act::Step),
        4 => (0usize..30, 1usize..34).prop_map(|(right, wrong)| Act::Speculate { right, wrong }),
        3 => (1usize..ROLLBACK_ROWS + 1).prop_map(Act::Back),
        2 => Just(Act::Restore),
        2 => (0u32..96).prop_map(Act::Guess),
        1 => Just(Act::StartOver),
    ]
}

fn live(case: &Case, acts: &[Act]) {
    live_on(case, &mut case.runner(), acts);
}

pub fn live_on(case: &Case, runner: &mut Runner, acts: &[Act]) {
    let wanted = Wanted { logits: LogitsFor::All, drafts: LogitsFor::All };
    let wrong_token = |at: usize| (case.tokens[at % TOKENS] + 1) % 96;
    for act in acts {
        let at = runner.state.position();
        let left = TOKENS - at;
        match *act {
            Act::Step(count) if left > 0 => {
                let count = count.min(left);
                let out = runner.step(&case.tokens[at..at + count]);
                case.check(at, count, &out, &format!("{act:?} at {at}"));
            }
            Act::Speculate { right, wrong } => {
                let right = right.min(left);
                let bad = (0..wrong).map(|i| wrong_token(at + right + i));
                let tokens: Vec<u32> =
                    case.tokens[at..at + right].iter().copied().chain(bad).collect();
                let out = runner.tried(&tokens, &wanted, None);
                if right > 0 {
                    case.check(at, right, &out, &format!("{act:?} at {at}"));
                }
                runner.model.commit(&mut runner.state, right).unwrap();
            }
            Act::Back(count) => {
                let to = at.saturating_sub(count);
                let reachable = to == 0 || to >= runner.state.rewind_floor();
                assert_eq!(runner.state.truncate(to).is_ok(), reachable, "{act:?} at {at}");
            }
            Act::Restore => {
                let bytes = runner.saved();
                let wrong: Vec<u32> = (0..50).map(wrong_token).collect();
                runner.state.truncate(0).unwrap();
                runner.step(&wrong);
                runner.state.restore(&mut runner.cpu, &bytes).unwrap();
            }
            Act::Guess(token) if at > 0 => {
                runner.model.draft(&mut runner.cpu, &runner.state, token).unwrap();
            }
            Act::StartOver => runner.state.truncate(0).unwrap(),
            Act::Step(_) | Act::Guess(_) => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(1),
        ..Default::default()
    })]

    #[test]
    fn any_life_of_a_session_in_exact_mode(acts in prop::collection::vec(act(), 1..14)) {
        live(&EXACT, &acts);
    }

    #[test]
    fn any_life_of_a_session_in_default_mode(acts in prop::collection::vec(act(), 1..14)) {
        live(&ROUNDED, &acts);
    }
}

/// The oracle's models, which are larger and end on other groups.
#[test]
fn whole_models_agree_with_themselves() {
    for (tiny, name) in [(Tiny::flash(), "flash"), (Tiny::pro(), "pro")] {
        let case = Case::new(&tiny, true, default_mode(2, None), 270);
        let rows = case.runner().cuts(&case.tokens, [129, 1, 1, 3, 120, 1]);
        rows.assert_same_bits(&case.rows, name);
    }
}
