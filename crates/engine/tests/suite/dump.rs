//! What a pass computes, tensor by tensor: equal bits however a prompt is cut, near the other
//! backend's, and a planted fault is found where it is.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{options, sync, tiny};
use ironstar_device::{Gpu, GpuConfig};
use ironstar_engine::dump::{Comparison, Dump, DumpError, compare};
use ironstar_engine::{BackendChoice, DrafterChoice, Engine, EngineOptions};
use ironstar_gguf::Gguf;
use ironstar_model::testing::{Tiny, floats};
use std::path::{Path, PathBuf};

/// Prompt, then tokens that are pushed one by one: windows wrap, groups of 4 close.
const PROMPT: usize = 13;
const PUSHED: usize = 4;
/// Of a tensor's rows, between backends: a value that falls on the other side of a rounding to FP8
/// is an eighth away.
const TOLERANCE: f64 = 0.1;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder(name: &str) -> Folder {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dump-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    Folder(folder)
}

/// The dump of a prompt in steps of so many rows and some tokens more.
fn dumped(name: &str, gguf: &Gguf, is_gpu: bool, rows: usize) -> Folder {
    let own = EngineOptions {
        drafter: DrafterChoice::None,
        backend: BackendChoice::Cpu,
        step_rows: rows,
        ..options()
    };
    let mut engine = match is_gpu {
        false => Engine::from_gguf(gguf, None, own, &mut |_| {}).unwrap(),
        true => {
            let gpu = Box::new(Gpu::host(GpuConfig::default()).unwrap());
            Engine::on_backend(gpu, gguf, None, own, &mut |_| {}).unwrap()
        }
    };
    let folder = folder(name);
    let dump = Dump::create(&folder.0, engine.model().shape(), 0..1000).unwrap();
    engine.set_observer(Some(dump.observer()));
    let tokens = tiny(96).tokens(PROMPT + PUSHED);
    let mut session = engine.session(64).unwrap();
    sync(&mut session, &mut engine, &tokens[..PROMPT]);
    for token in &tokens[PROMPT..] {
        session.push(&mut engine, *token).unwrap();
    }
    let (tensors, records) = dump.finish().unwrap();
    assert!(tensors > 30 && records > 500, "{tensors} tensors, {records} records");
    folder
}

fn compared(a: &Folder, b: &Folder) -> Comparison {
    let found = compare(&a.0, &b.0).unwrap();
    assert_eq!((found.positions, found.tokens_part_at), (PROMPT + PUSHED, None));
    assert_eq!(found.only_one, Vec::<String>::new());
    found
}

/// Every kind of tensor that the tiny model has: window, compressors, indexer, experts, head.
#[test]
fn no_tensor_shows_how_a_prompt_was_cut() {
    let gguf = tiny(96).gguf();
    for (is_gpu, name) in [(false, "cpu"), (true, "gpu")] {
        let whole = dumped(&format!("{name}-whole"), &gguf, is_gpu, 64);
        let cut = dumped(&format!("{name}-cut"), &gguf, is_gpu, 5);
        let found = compared(&whole, &cut);
        let parts = found.first_beyond(0.0);
        // Logits are wanted of a prompt's last row only, however it is cut.
        assert!(parts.is_none(), "{name}: {parts:?}");
        for what in ["queries", "kv_rows", "compressed_rows", "index_rows", "index_choice"] {
            let of = |d: &&ironstar_engine::dump::Difference| d.name.ends_with(what);
            assert!(found.tensors.iter().filter(of).any(|d| d.rows.0 > 0), "{name}: {what}");
        }
        let logits = found.tensors.last().unwrap();
        assert_eq!((&logits.name[..], logits.rows), ("logits", (PUSHED + 1, 0)));
    }
}

/// A model with a fault in one tensor.
fn faulty(tensor: &str) -> Gguf {
    let hit = std::cell::Cell::new(false);
    let gguf = tiny(96).gguf_as(&|spec, values| {
        if spec.name != tensor {
            return floats(spec, values);
        }
        hit.set(true);
        let shifted = values.iter().enumerate().map(|(at, v)| v + (at % 3) as f32);
        floats(spec, &shifted.collect::<Vec<_>>())
    });
    assert!(hit.get(), "the model has {tensor}");
    gguf
}

/// The processor beside itself and beside the card's kernels, with a fault in one tensor of one
/// layer: the first tensor that is apart is what that one makes.
#[test]
fn a_fault_is_found_in_its_layer() {
    let plain = tiny(96).gguf();
    let cpu = dumped("fault-cpu", &plain, false, 64);
    let gpu = dumped("fault-gpu", &plain, true, 64);
    let found = compared(&cpu, &gpu);
    let apart = found.first_beyond(TOLERANCE);
    assert!(apart.is_none(), "{apart:?}");
    assert!(found.first_beyond(0.0).is_some(), "sums of norms have other lanes there");
    let faults = [
        (true, "blk.1.attn_kv_a_norm.weight", "layer.1.kv_rows"),
        (true, "blk.2.exp_probs_b.bias", "layer.2.experts"),
        (false, "blk.2.attn_sinks.weight", "layer.2.attended"),
        (false, "output.weight", "logits"),
    ];
    for (is_gpu, tensor, first) in faults {
        let other = dumped("fault-other", &faulty(tensor), is_gpu, 64);
        let found = compared(&cpu, &other);
        let found = found.first_beyond(if is_gpu { TOLERANCE } else { 0.0 });
        assert_eq!(found.map(|d| &d.name[..]), Some(first), "{tensor}");
    }
}

#[test]
fn only_what_is_asked_is_kept_and_nothing_is_replaced() {
    let own = EngineOptions { drafter: DrafterChoice::None, ..options() };
    let gguf = Tiny::small(7).gguf();
    let mut engine = Engine::from_gguf(&gguf, None, own, &mut |_| {}).unwrap();
    let folder = folder("asked");
    let dump = Dump::create(&folder.0, engine.model().shape(), 3..5).unwrap();
    engine.set_observer(Some(dump.observer()));
    let mut session = engine.session(64).unwrap();
    sync(&mut session, &mut engine, &tiny(96).tokens(9));
    dump.finish().unwrap();
    let found = compare(&folder.0, &folder.0).unwrap();
    assert_eq!(found.positions, 2);
    assert!(found.tensors.iter().all(|d| d.rows.0 <= 2));
    let refused = Dump::create(&folder.0, engine.model().shape(), 0..1);
    assert!(matches!(refused, Err(DumpError::Format { .. })));
}
