//! Whole models through the GPU's kernels, run on the CPU by the host driver: the oracle shapes in
//! exact mode against DeepSeek's published code, and the nano model as users run it against the CPU
//! backend. The kernels are checked while they run, and slow: a few tokens each.
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

use crate::common::{Fixture, Rows, Runner, argmax, default_mode, distance, divergence, exact};
use ironstar_device::{Gpu, GpuConfig, Shortcuts};
use ironstar_gguf::{Gguf, TensorInfo, Writer};
use ironstar_model::testing::Tiny;
use ironstar_model::{At, LogitsFor, Model, Observer, Options, Output, State, Step, Wanted, What};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Of logits in exact mode, as for the CPU backend.
const TOLERANCE: f32 = 1e-3;
/// Mean divergence between GPU and CPU on the default path, where sums of norms and attention have
/// other lanes and a rounded value may fall on the other side.
const DIVERGENCE: f64 = 3e-3;

/// A session on the GPU's kernels.
struct GpuRunner {
    gpu: Gpu,
    model: Model,
    state: State,
}

impl GpuRunner {
    fn new(gguf: &Gguf, drafter: Option<&Gguf>, float_products: bool, options: Options) -> Self {
        let config = GpuConfig { float_products, ..GpuConfig::default() };
        GpuRunner::on(Gpu::host(config).unwrap(), gguf, drafter, options)
    }

    fn on(mut gpu: Gpu, gguf: &Gguf, drafter: Option<&Gguf>, options: Options) -> Self {
        let model = Model::load(gguf, drafter, &mut gpu, options, &mut |_| {}).unwrap();
        let state = model.new_state(&mut gpu, 512).unwrap();
        GpuRunner { gpu, model, state }
    }

    fn step(&mut self, tokens: &[u32], observer: Option<&mut dyn Observer>) -> Output {
        let drafts = if self.model.has_drafter() { LogitsFor::All } else { LogitsFor::None };
        let wanted = Wanted { logits: LogitsFor::All, drafts };
        let step = Step::single(tokens, self.state.position());
        let states = &mut [&mut self.state];
        let out =
            self.model.forward_observed(&mut self.gpu, &step, states, &wanted, observer).unwrap();
        self.model.commit(&mut self.state, tokens.len()).unwrap();
        out
    }

    /// Logits and draft logits of tokens from the start, in steps of these lengths.
    fn cuts(&mut self, tokens: &[u32], lengths: &[usize]) -> Rows {
        self.state.truncate(0).unwrap();
        let (mut rest, mut rows) = (tokens, Rows::default());
        for length in lengths {
            let (now, later) = rest.split_at(*length);
            rows.add(&self.step(now, None));
            rest = later;
        }
        assert!(rest.is_empty(), "the lengths are those of the tokens");
        rows
    }
}

/// Ids that a pass shows.
#[derive(Default)]
struct Ids(HashMap<At, Vec<u32>>);

impl Observer for Ids {
    fn floats(&mut self, _: At, _: usize, _: &mut [f32]) -> bool {
        false
    }

    fn ids(&mut self, at: At, _: usize, ids: &[u32]) {
        self.0.entry(at).or_default().extend_from_slice(ids);
    }
}

#[test]
fn oracle_shapes_in_exact_mode() {
    const POSITIONS: usize = 34;
    for (tiny, name) in [(Tiny::flash(), "flash"), (Tiny::pro(), "pro")] {
        let fixture = Fixture::open(&format!("oracle/official_{name}_exact.safetensors"));
        let ids = &fixture.tokens("ids")[..POSITIONS];
        let (_, options) = exact();
        let mut gpu = GpuRunner::new(&tiny.gguf(), Some(&tiny.drafter()), true, options);
        let mut seen = Ids::default();
        let out = gpu.step(ids, Some(&mut seen));

        let width = tiny.shape.vocabulary;
        let (golden, rows) = (fixture.f32("logits_full"), fixture.int("rows"));
        let mut compared = 0;
        for (row, golden) in rows.iter().zip(golden.chunks(width)) {
            let row = usize::try_from(*row).unwrap();
            if row < POSITIONS {
                let gap = distance(out.logits.row(row), golden);
                assert!(gap < TOLERANCE, "{name}: logits of {row}: {gap}");
                compared += 1;
            }
        }
        assert!(compared > 4, "{compared} golden rows");
        let best: Vec<i64> = out
            .logits
            .values()
            .chunks(width)
            .map(|row| i64::try_from(argmax(row)).unwrap())
            .collect();
        assert_eq!(best, fixture.int("argmax_full")[..POSITIONS], "{name}");
        for layer in 0..tiny.shape.layers {
            let found = &seen.0[&At { layer, what: What::Experts }];
            let wanted = fixture.int(&format!("topk.{layer}"));
            let found: Vec<i64> = found.iter().map(|&id| id.into()).collect();
            assert_eq!(found, wanted[..found.len()], "{name}: experts of layer {layer}");
        }
        // The CPU agrees with the same code to a fraction of the tolerance.
        let mut cpu = Runner::new(&tiny.gguf(), Some(&tiny.drafter()), exact(), 512);
        let wanted = cpu.cuts(ids, [POSITIONS]);
        let gap = distance(out.logits.values(), &wanted.logits);
        assert!(gap < TOLERANCE, "{name}: CPU and GPU {gap}");
        let gap = distance(out.drafts.values(), &wanted.drafts);
        assert!(gap < TOLERANCE, "{name}: drafts of CPU and GPU {gap}");
    }
}

fn nano(name: &str) -> Gguf {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name);
    Gguf::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The default path: any cut gives equal bits, logits are near the CPU's, and the greedy text is
/// the same.
#[test]
fn nano_as_users_run_it() {
    const PROMPT: usize = 13;
    const ANSWER: usize = 4;
    let golden = Fixture::open("nano/golden.safetensors");
    let ids = &golden.tokens("text.ids")[..PROMPT];
    let (config, options) = default_mode(1, None);
    // Launches in another order that their lanes allow, where groups close and where none does.
    let other = GpuConfig { reorder: true, ..GpuConfig::default() };
    let mut gpu =
        GpuRunner::on(Gpu::host(other).unwrap(), &nano("nano.gguf"), None, options.clone());
    let whole = gpu.cuts(ids, &[PROMPT]);
    let pieces = gpu.cuts(ids, &[1, 8, 3, 1]);
    pieces.assert_same_bits(&whole, "steps of other lengths");

    let mut cpu = Runner::new(&nano("nano.gguf"), None, (config, options), 512);
    let wanted = cpu.cuts(ids, [PROMPT]);
    let width = gpu.model.shape().vocabulary;
    let pairs = whole.logits.chunks(width).zip(wanted.logits.chunks(width));
    let sum: f64 = pairs.map(|(gpu, cpu)| divergence(cpu, gpu)).sum();
    let mean = sum / 13.0;
    assert!(mean < DIVERGENCE, "the GPU diverges from the CPU by {mean}");

    let mut next = argmax(&whole.logits[(PROMPT - 1) * width..]);
    for turn in 0..ANSWER {
        let token = [u32::try_from(next).unwrap()];
        let found = argmax(gpu.step(&token, None).logits.row(0));
        let wanted = argmax(cpu.step(&token).logits.row(0));
        assert_eq!(found, wanted, "token {turn} of the answer");
        next = found;
    }
}

/// Bytes of a mapped file that this process has in memory, where the system says so.
fn resident(path: &Path) -> Option<u64> {
    let table = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let mut lines = table.lines().skip_while(|line| !line.ends_with(path.to_str().unwrap()));
    let line = lines.find(|line| line.starts_with("Rss:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

/// A device whose memory is the host's reads weights where the file is mapped if its kernels take
/// the file's layout, and of what it has copied the file's pages are given back. Bits are those of
/// a device with memory of its own.
#[test]
fn weights_in_the_hosts_memory_are_not_there_twice() {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/nano.gguf");
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nano-in-place.gguf");
    std::fs::copy(source, &path).unwrap();
    let (_, options) = default_mode(1, None);
    let config = GpuConfig::default();
    let disabled = GpuConfig { disabled: Shortcuts::MAPPED, ..config };
    let run = |gpu: Gpu| {
        let gguf = Gguf::open(&path).unwrap();
        let mut runner = GpuRunner::on(gpu, &gguf, None, options.clone());
        let (placed, pages) = (runner.gpu.launches(), resident(&path));
        (placed.copied, placed.mapped, pages, runner.cuts(&[5, 77], &[2]))
    };
    let (all, none, pages, wanted) = run(Gpu::host_apart(config).unwrap());
    assert_eq!(none, 0);
    // The vocabulary, and what is small.
    let slack = 4 << 20;
    assert!(pages.is_none_or(|pages| pages + slack > all), "{pages:?} of {all}: all were read");
    let (copied, mapped, pages, rows) = run(Gpu::host(config).unwrap());
    rows.assert_same_bits(&wanted, "read where the file is mapped");
    assert_eq!(copied + mapped, all);
    assert!(mapped > 100_000, "{mapped} bytes of float weights");
    assert!(pages.is_none_or(|pages| pages < mapped + slack), "{pages:?} beside {mapped}");
    let (copied, mapped, pages, rows) = run(Gpu::host(disabled).unwrap());
    rows.assert_same_bits(&wanted, "copied to where the host's memory is");
    assert_eq!((copied, mapped), (all, 0));
    assert!(pages.is_none_or(|pages| pages < slack), "{pages:?} of {all}");
    std::fs::remove_file(path).unwrap();
}

/// A packed file is the same model: its planes are read where the file is mapped, all of them, or
/// copied as they are, or become blocks for who wants those.
#[test]
fn a_packed_model_gives_the_bits_of_the_one_it_was_made_from() {
    let source = nano("nano.gguf");
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nano-packed.gguf");
    let file = std::fs::File::create(&path).unwrap();
    ironstar_gguf::pack(&source, file, &mut |_| {}).unwrap();
    let packed = Gguf::open(&path).unwrap();
    let (_, options) = default_mode(1, None);
    let config = GpuConfig::default();
    let disabled = GpuConfig { disabled: Shortcuts::MAPPED, ..config };
    let run = |gpu: Gpu, gguf: &Gguf| {
        let mut runner = GpuRunner::on(gpu, gguf, None, options.clone());
        let (placed, print) = (runner.gpu.launches(), runner.model.fingerprint());
        ((placed.copied, placed.mapped), print, runner.cuts(&[5, 77, 9], &[2, 1]))
    };
    let ((all, none), print, wanted) = run(Gpu::host_apart(config).unwrap(), &source);
    assert_eq!(none, 0);
    let devices = [
        (Gpu::host(config).unwrap(), (0, all)),
        (Gpu::host(disabled).unwrap(), (all, 0)),
        (Gpu::host_apart(config).unwrap(), (all, 0)),
    ];
    for (gpu, bytes) in devices {
        let (placed, own, rows) = run(gpu, &packed);
        assert_eq!((placed, own), (bytes, print));
        rows.assert_same_bits(&wanted, "a packed file");
    }
    let floats = GpuConfig { float_products: true, ..config };
    let [wanted, found] = [&source, &packed].map(|gguf| {
        let mut runner = GpuRunner::on(Gpu::host(floats).unwrap(), gguf, None, options.clone());
        runner.cuts(&[5], &[1])
    });
    found.assert_same_bits(&wanted, "float weights of a packed file");
    let [wanted, found] = [&source, &packed]
        .map(|gguf| Runner::new(gguf, None, default_mode(1, None), 512).cuts(&[5, 77, 9], [3]));
    found.assert_same_bits(&wanted, "blocks of a packed file");
    std::fs::remove_file(path).unwrap();
}

/// Tokens that close a group, short or long, and those that close none: one by one, in another
/// order that lanes allow, they give the bits of all rows at once.
#[test]
fn groups_that_close_and_those_that_do_not() {
    const FIRST: usize = 125;
    const END: usize = 130;
    let tiny = Tiny::small(9);
    let ids: Vec<u32> = (0..130).map(|i| (7 * i + i / 5) % 60).collect();
    let (_, options) = default_mode(1, None);
    let config = GpuConfig { reorder: true, ..GpuConfig::default() };
    let mut gpu = GpuRunner::on(Gpu::host(config).unwrap(), &tiny.gguf(), None, options);
    let whole = gpu.cuts(&ids, &[END]);
    gpu.state.truncate(FIRST).unwrap();
    let mut ones = Rows::default();
    ids[FIRST..].iter().for_each(|id| ones.add(&gpu.step(&[*id], None)));
    let width = tiny.shape.vocabulary;
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
    assert_eq!(ones.logits.len(), (END - FIRST) * width);
    assert!(ones.logits.iter().zip(&whole.logits[FIRST * width..]).all(same));
}

/// A model whose tensors are made as they are asked for has the bits of the one in a file, on
/// devices that copy them and on those that keep what was made.
#[test]
fn tensors_that_are_made_give_the_bits_of_those_that_are_read() {
    let tiny = Tiny::small(11);
    let (read, source) = (tiny.gguf(), tiny.gguf());
    let mut writer = Writer::new(std::io::empty());
    tiny.shape.to_metadata().into_iter().for_each(|(k, v)| writer.metadata(&k, v).unwrap());
    for tensor in source.tensors() {
        writer.tensor(&tensor.name, tensor.kind, &tensor.dims).unwrap();
    }
    let bytes = move |tensor: &TensorInfo| {
        source.bytes(source.tensor(&tensor.name).unwrap()).unwrap().to_vec()
    };
    let made = Gguf::made("made", &writer, bytes).unwrap();
    let (_, options) = default_mode(1, None);
    let tokens = tiny.tokens(4);
    let config = GpuConfig::default();
    let run = |gpu: Gpu, gguf: &Gguf| {
        let mut runner = GpuRunner::on(gpu, gguf, None, options.clone());
        (runner.cuts(&tokens, &[4]), runner.model.fingerprint())
    };
    let (wanted, print) = run(Gpu::host_apart(config).unwrap(), &read);
    for gpu in [Gpu::host_apart(config).unwrap(), Gpu::host(config).unwrap()] {
        let (rows, own) = run(gpu, &made);
        rows.assert_same_bits(&wanted, "tensors that are made");
        assert_eq!(own, print);
    }
}
