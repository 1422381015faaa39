//! What the tests of whole models share: fixtures, and a driver that runs steps of any cut.
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

use ironstar_device::{Backend, Cpu, CpuConfig, Isa};
use ironstar_model::{
    LogitsFor, Model, Observer, Options, Output, RowStorage, Span, State, Step, Wanted,
};
use std::collections::HashMap;
use std::path::PathBuf;

/// Arrays of a safetensors file, by name.
pub struct Fixture(HashMap<String, (Vec<usize>, Vec<u8>, String)>);

/// Places for copies of a state, with something in them.
pub fn room(bytes: usize) -> Vec<u8> {
    vec![0xee; bytes]
}

impl Fixture {
    pub fn open(name: &str) -> Fixture {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let size = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + size]).unwrap();
        let data = &bytes[8 + size..];
        let mut all = HashMap::new();
        for (name, entry) in
            header.as_object().unwrap().iter().filter(|(n, _)| *n != "__metadata__")
        {
            let number = |v: &serde_json::Value| usize::try_from(v.as_u64().unwrap()).unwrap();
            let list =
                |key: &str| entry[key].as_array().unwrap().iter().map(number).collect::<Vec<_>>();
            let (shape, range) = (list("shape"), list("data_offsets"));
            let kind = entry["dtype"].as_str().unwrap().to_owned();
            all.insert(name.clone(), (shape, data[range[0]..range[1]].to_vec(), kind));
        }
        Fixture(all)
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub fn shape(&self, name: &str) -> &[usize] {
        &self.0[name].0
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        let (_, bytes, kind) = &self.0[name];
        assert_eq!(kind, "F32", "{name}");
        bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
    }

    /// Whole numbers of any width.
    pub fn int(&self, name: &str) -> Vec<i64> {
        let (_, bytes, kind) = &self.0[name];
        match kind.as_str() {
            "I32" => bytes.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b).into()).collect(),
            "I16" => bytes.as_chunks().0.iter().map(|&b| i16::from_le_bytes(b).into()).collect(),
            "U8" => bytes.iter().map(|&b| b.into()).collect(),
            other => panic!("{name}: {other}"),
        }
    }

    pub fn tokens(&self, name: &str) -> Vec<u32> {
        self.int(name).iter().map(|&i| u32::try_from(i).unwrap()).collect()
    }
}

/// Float weights and activations, no rounding anywhere: the oracles' mode.
pub fn exact() -> (CpuConfig, Options) {
    let cpu = CpuConfig { threads: 1, float_products: true, ..CpuConfig::default() };
    (cpu, Options { round_trips: false, rows: RowStorage::F32, ..Options::default() })
}

/// As users run it.
pub fn default_mode(threads: usize, isa: Option<Isa>) -> (CpuConfig, Options) {
    (CpuConfig { threads, isa, float_products: false }, Options::default())
}

/// One session of a model on its own CPU backend.
pub struct Runner {
    pub cpu: Cpu,
    pub model: Model,
    pub state: State,
}

impl Runner {
    pub fn new(
        gguf: &ironstar_gguf::Gguf,
        drafter: Option<&ironstar_gguf::Gguf>,
        (cpu, options): (CpuConfig, Options),
        context: usize,
    ) -> Runner {
        let mut cpu = Cpu::new(cpu).unwrap();
        let model = Model::load(gguf, drafter, &mut cpu, options, &mut |_| {}).unwrap();
        let state = model.new_state(&mut cpu, context).unwrap();
        Runner { cpu, model, state }
    }

    /// Evaluates and keeps all rows.
    pub fn step(&mut self, tokens: &[u32]) -> Output {
        let drafts = if self.model.has_drafter() { LogitsFor::All } else { LogitsFor::None };
        self.watched(tokens, &Wanted { logits: LogitsFor::All, drafts }, None)
    }

    pub fn watched(
        &mut self,
        tokens: &[u32],
        wanted: &Wanted<'_>,
        observer: Option<&mut dyn Observer>,
    ) -> Output {
        let out = self.tried(tokens, wanted, observer);
        self.model.commit(&mut self.state, tokens.len()).unwrap();
        out
    }

    /// Evaluates and keeps nothing yet.
    pub fn tried(
        &mut self,
        tokens: &[u32],
        wanted: &Wanted<'_>,
        observer: Option<&mut dyn Observer>,
    ) -> Output {
        let step = Step::single(tokens, self.state.position());
        let states = &mut [&mut self.state];
        self.model.forward_observed(&mut self.cpu, &step, states, wanted, observer).unwrap()
    }

    pub fn saved(&mut self) -> Vec<u8> {
        self.state.save(&mut self.cpu).unwrap()
    }

    /// Logits and draft logits of all tokens in steps of these lengths; the rest in one step.
    pub fn cuts(&mut self, tokens: &[u32], lengths: impl IntoIterator<Item = usize>) -> Rows {
        let (mut rest, mut rows) = (tokens, Rows::default());
        for length in lengths {
            let (now, later) = rest.split_at(length.min(rest.len()));
            if !now.is_empty() {
                rows.add(&self.step(now));
            }
            rest = later;
        }
        if !rest.is_empty() {
            rows.add(&self.step(rest));
        }
        rows
    }
}

/// Everything that a run of tokens gave.
#[derive(Clone, Default)]
pub struct Rows {
    pub logits: Vec<f32>,
    pub drafts: Vec<f32>,
}

impl Rows {
    pub fn add(&mut self, output: &Output) {
        self.logits.extend_from_slice(output.logits.values());
        self.drafts.extend_from_slice(output.drafts.values());
    }

    #[track_caller]
    pub fn assert_same_bits(&self, other: &Rows, what: &str) {
        same_bits(&self.logits, &other.logits, what);
        same_bits(&self.drafts, &other.drafts, what);
    }
}

#[track_caller]
pub fn same_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}: lengths");
    let differ = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits());
    assert!(differ.is_none(), "{what}: value {} of {} differs", differ.unwrap(), a.len());
}

/// Largest absolute difference; NaN counts as infinite.
pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let of = |(a, b): (&f32, &f32)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() };
    a.iter().zip(b).map(of).fold(0.0, f32::max)
}

/// Index of the largest value, the lowest of equals.
pub fn argmax(row: &[f32]) -> usize {
    (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
}

/// Kullback-Leibler divergence of softmax(b) from softmax(a), in nats.
pub fn divergence(a: &[f32], b: &[f32]) -> f64 {
    let softmax_log = |row: &[f32]| -> Vec<f64> {
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&v| f64::from(v - top).exp()).sum();
        row.iter().map(|&v| f64::from(v - top) - sum.ln()).collect()
    };
    let (a, b) = (softmax_log(a), softmax_log(b));
    a.iter().zip(&b).map(|(a, b)| a.exp() * (a - b)).sum()
}

/// A span list for several sessions with so many rows each.
pub fn joined(parts: &[(&[u32], usize)]) -> Step {
    let mut step = Step::default();
    for &(tokens, position) in parts {
        let start = step.tokens.len();
        step.tokens.extend_from_slice(tokens);
        step.spans.push(Span { rows: start..step.tokens.len(), position });
    }
    step
}

/// Rows begun so far.
pub fn steps(cpu: &Cpu) -> u64 {
    cpu.counters().steps
}
