//! The trained nano model against golden outputs of the code that trained it
//! (`tests/golden/nano/golden.safetensors`; three implementations agree on it).
//!
//! `models/nano.gguf` holds the routed experts bit for bit; everything else lies there in Q8_0 and
//! F16, so the float weights come from `tests/golden/nano/dense.safetensors`, the published tensors
//! themselves.
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

use crate::common::{Fixture, Runner, argmax, default_mode, divergence, exact};
use ironstar_gguf::safetensors::Checkpoint;
use ironstar_gguf::{Gguf, TensorKind, Value};
use ironstar_model::deepseek_v4::{Kind, TensorSpec, drafter_specs, import, tensor_specs};
use ironstar_model::testing::file_bytes;
use ironstar_model::{Options, RowStorage, Shape};
use ironstar_quant::Format;
use std::path::PathBuf;

const CASES: [&str; 6] = ["story", "fact", "tool", "text", "long", "needle"];
const CHUNK: usize = 512;
const END: usize = 1;

/// Of the top five logits, without round trips.
const TOLERANCE: f32 = 1e-3;
/// Positions whose best token must be the golden one, with round trips.
const AGREEMENT_ROUNDED: f64 = 0.995;
/// Mean divergence of the default path, over all positions and over those of one case.
const DIVERGENCE: f64 = 5e-3;
const DIVERGENCE_CASE: f64 = 3e-2;

fn root(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn model(name: &str) -> Gguf {
    let path = root("models").join(name);
    Gguf::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The model as published: experts from a GGUF file, all else in F32.
fn published(gguf: &Gguf, specs: &[TensorSpec], metadata: &[(String, Value)]) -> Gguf {
    let path = root("tests/golden/nano/dense.safetensors");
    let dense = Checkpoint::open(&path).unwrap();
    let tensors = specs.iter().map(|spec| {
        let encoded = match spec.kind {
            Kind::Routed => {
                let info = gguf.tensor(&spec.name).unwrap();
                assert_eq!(info.kind, TensorKind::Block(Format::Mxfp4), "{}", spec.name);
                (info.kind, gguf.bytes(info).unwrap().to_vec())
            }
            Kind::Table => {
                let kind = TensorKind::I32;
                (kind, import::part_bytes(&dense, spec, 0, kind, None).unwrap())
            }
            Kind::Vector | Kind::Float | Kind::Dense => {
                let kind = TensorKind::Block(Format::F32);
                (kind, import::part_bytes(&dense, spec, 0, kind, None).unwrap())
            }
        };
        (spec, encoded)
    });
    Gguf::from_bytes(file_bytes(metadata, tensors)).unwrap()
}

fn float_runner(round_trips: bool) -> Runner {
    let (gguf, mtp) = (model("nano.gguf"), model("nano-mtp.gguf"));
    let shape = Shape::from_metadata(gguf.metadata()).unwrap();
    let backbone = published(&gguf, &tensor_specs(&shape), &shape.to_metadata());
    let metadata = import::drafter_metadata(&shape);
    let drafter = published(&mtp, &drafter_specs(&shape), &metadata);
    let (cpu, options) = exact();
    let cpu = ironstar_device::CpuConfig { threads: 2, ..cpu };
    let options = Options { round_trips, rows: RowStorage::F32, ..options };
    Runner::new(&backbone, Some(&drafter), (cpu, options), 3072)
}

/// Logits and draft logits of a whole case.
fn evaluate(runner: &mut Runner, ids: &[u32]) -> crate::common::Rows {
    runner.state.truncate(0).unwrap();
    runner.cuts(ids, vec![CHUNK; ids.len() / CHUNK])
}

/// Positions, and those of them whose best token is the golden one.
#[derive(Default)]
struct Agreement {
    positions: usize,
    same: usize,
}

impl Agreement {
    fn add(&mut self, rows: &[f32], width: usize, golden: impl Iterator<Item = i64>) -> usize {
        let before = self.same;
        let mut count = 0;
        for (row, best) in rows.chunks(width).zip(golden) {
            count += 1;
            self.same += usize::from(i64::try_from(argmax(row)).unwrap() == best);
        }
        assert_eq!(count * width, rows.len());
        self.positions += count;
        count - (self.same - before)
    }

    fn share(&self) -> f64 {
        f64::from(u32::try_from(self.same).unwrap())
            / f64::from(u32::try_from(self.positions).unwrap())
    }
}

#[test]
fn floats_without_round_trips_give_the_golden_numbers() {
    let golden = Fixture::open("nano/golden.safetensors");
    let mut runner = float_runner(false);
    let width = runner.model.shape().vocabulary;
    let mut positions = 0;
    for case in CASES {
        let ids = golden.tokens(&format!("{case}.ids"));
        let rows = evaluate(&mut runner, &ids);
        let top = golden.int(&format!("{case}.exact.top"));
        let values = golden.f32(&format!("{case}.exact.logits"));
        let mut worst = 0f32;
        for (t, row) in rows.logits.chunks(width).enumerate() {
            for (id, value) in top[t * 5..][..5].iter().zip(&values[t * 5..][..5]) {
                worst = worst.max((row[usize::try_from(*id).unwrap()] - value).abs());
            }
        }
        assert!(worst < TOLERANCE, "{case}: a logit differs by {worst}");
        let mut all = Agreement::default();
        let best = top.iter().step_by(5).copied();
        assert_eq!(all.add(&rows.logits, width, best), 0, "{case}: best tokens that differ");
        let draft = golden.int(&format!("{case}.exact.draft")).into_iter();
        assert_eq!(all.add(&rows.drafts, width, draft), 0, "{case}: drafts that differ");
        positions += ids.len();
    }
    assert_eq!(positions, 6493);
}

#[test]
fn floats_with_round_trips_agree_and_the_default_path_stays_close() {
    let golden = Fixture::open("nano/golden.safetensors");
    let mut float = float_runner(true);
    let mut default = Runner::new(
        &model("nano.gguf"),
        Some(&model("nano-mtp.gguf")),
        default_mode(2, None),
        3072,
    );
    let width = float.model.shape().vocabulary;
    let (mut agreement, mut sum) = (Agreement::default(), 0.0);
    for case in CASES {
        let ids = golden.tokens(&format!("{case}.ids"));
        let rows = evaluate(&mut float, &ids);
        let best = golden.int(&format!("{case}.rounded.top")).into_iter().step_by(5);
        agreement.add(&rows.logits, width, best);

        let quick = evaluate(&mut default, &ids);
        let pairs = rows.logits.chunks(width).zip(quick.logits.chunks(width));
        let case_sum: f64 = pairs.map(|(a, b)| divergence(a, b)).sum();
        let mean = case_sum / f64::from(u32::try_from(ids.len()).unwrap());
        assert!(mean < DIVERGENCE_CASE, "{case}: the default path diverges by {mean}");
        sum += case_sum;
    }
    let share = agreement.share();
    assert!(share >= AGREEMENT_ROUNDED, "the golden token is best at {share} of positions");
    let mean = sum / f64::from(u32::try_from(agreement.positions).unwrap());
    assert!(mean < DIVERGENCE, "the default path diverges by {mean}");
}

#[test]
fn greedy_continuations_are_the_golden_ones() {
    let golden = Fixture::open("nano/golden.safetensors");
    let mut runner = float_runner(true);
    let width = runner.model.shape().vocabulary;
    for case in ["story", "fact", "tool"] {
        let rows = evaluate(&mut runner, &golden.tokens(&format!("{case}.ids")));
        let wanted = golden.int(&format!("{case}.greedy"));
        let mut next = argmax(&rows.logits[rows.logits.len() - width..]);
        let mut found = vec![i64::try_from(next).unwrap()];
        while next != END && found.len() < wanted.len() {
            let out = runner.step(&[u32::try_from(next).unwrap()]);
            next = argmax(out.logits.row(0));
            found.push(i64::try_from(next).unwrap());
        }
        assert_eq!(found, wanted, "{case}");
    }
}
