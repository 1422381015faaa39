//! A model from a hostile file, and a session from hostile saved bytes.

use super::{Target, signature};
use ironstar_device::{Cpu, CpuConfig, Step};
use ironstar_gguf::{Gguf, TensorKind, Writer};
use ironstar_model::deepseek_v4::tensor_specs;
use ironstar_model::testing::Tiny;
use ironstar_model::{Error, LogitsFor, Model, Options, State};
use ironstar_quant::Format;
use std::io::Cursor;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The header of a model file (metadata and tensor table); the data behind it is zeros.
pub const LOAD: Target = Target {
    name: "model-load",
    seeds: || vec![header()],
    dictionary: &[
        b"deepseek4.",
        b"block_count",
        b"expert_count",
        b"attention.head_count",
        b"compress_ratios",
        b"\0\0\x80\x7f",
        b"\0\0\xc0\x7f",
        b"blk.0.",
        b".weight",
    ],
    len_max: 32 * 1024,
    base_bytes: 64 << 20,
    bytes_per_byte: 1024,
    run: load,
};

/// Saved bytes of a session, restored into a model that is right.
pub const RESTORE: Target = Target {
    name: "state-restore",
    seeds: saved,
    dictionary: &[],
    len_max: 256 * 1024,
    base_bytes: 4 << 20,
    bytes_per_byte: 64,
    run: restore,
};

const CONTEXT: usize = 160;
/// Bytes of zeros behind a header: more than the tensors of [`Tiny::small`] take.
const DATA_BYTES: usize = 4 << 20;

fn cpu() -> Cpu {
    let config = CpuConfig { threads: 1, ..CpuConfig::default() };
    Cpu::new(config).expect("a CPU is always there")
}

/// The header of [`Tiny::small`], without hash layers, whose tables would be zeros too.
fn header() -> Vec<u8> {
    let mut tiny = Tiny::small(1);
    tiny.shape.hash_layers = 0;
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    for (key, value) in tiny.shape.to_metadata() {
        writer.metadata(&key, value).expect("keys differ");
    }
    let specs = tensor_specs(&tiny.shape);
    for spec in &specs {
        let dims: Vec<u64> = spec.dims.iter().map(|&dim| dim as u64).collect();
        writer.tensor(&spec.name, TensorKind::Block(Format::F32), &dims).expect("names differ");
    }
    writer.skip(specs.len()).expect("a cursor can go anywhere");
    writer.finish().expect("all tensors were skipped").into_inner()
}

fn load(bytes: &[u8]) -> u64 {
    let mut file = bytes.to_vec();
    file.resize(file.len() + DATA_BYTES, 0);
    match loaded(file) {
        Ok(rows) => rows as u64,
        Err(message) => signature(&message),
    }
}

/// Loads a model and reads three tokens, in two steps.
fn loaded(file: Vec<u8>) -> Result<usize, String> {
    let text = |error: Error| error.to_string();
    let gguf = Gguf::from_bytes(file).map_err(|error| error.to_string())?;
    let mut cpu = cpu();
    let options = Options { step_rows_max: 4, ..Options::default() };
    let mut model = Model::load(&gguf, None, &mut cpu, options, &mut |_| {}).map_err(text)?;
    let context = model.shape().context.min(CONTEXT);
    let mut state = model.new_state(&mut cpu, context).map_err(text)?;
    let rows = step(&mut model, &mut cpu, &mut state, &[0, 1]).map_err(text)?;
    Ok(rows + step(&mut model, &mut cpu, &mut state, &[2]).map_err(text)?)
}

fn step(
    model: &mut Model,
    cpu: &mut Cpu,
    state: &mut State,
    tokens: &[u32],
) -> Result<usize, Error> {
    let step = Step::single(tokens, state.position());
    let logits = model.forward(cpu, &step, &mut [state], LogitsFor::Last)?;
    model.commit(state, tokens.len())?;
    Ok(logits.len())
}

/// A model, its device and a session that is restored over and over.
struct Bench {
    cpu: Cpu,
    model: Model,
    state: State,
}

fn bench() -> MutexGuard<'static, Bench> {
    static BENCH: OnceLock<Mutex<Bench>> = OnceLock::new();
    let make = || {
        let mut cpu = cpu();
        let gguf = Tiny::small(1).gguf();
        let options = Options { step_rows_max: 16, ..Options::default() };
        let model = Model::load(&gguf, None, &mut cpu, options, &mut |_| {});
        let model = model.expect("a model of our own making");
        let state = model.new_state(&mut cpu, CONTEXT).expect("a small context");
        Mutex::new(Bench { cpu, model, state })
    };
    BENCH.get_or_init(make).lock().unwrap_or_else(PoisonError::into_inner)
}

fn saved() -> Vec<Vec<u8>> {
    let mut bench = bench();
    let Bench { cpu, model, state } = &mut *bench;
    let tokens = Tiny::small(1).tokens(CONTEXT);
    let mut saved = Vec::new();
    state.truncate(0).expect("the beginning is always there");
    for chunk in tokens[..150].chunks(15) {
        saved.push(state.save(cpu).expect("there is memory for it"));
        step(model, cpu, state, chunk).expect("tokens of this model");
    }
    saved.push(state.save(cpu).expect("there is memory for it"));
    saved
}

fn restore(bytes: &[u8]) -> u64 {
    let mut bench = bench();
    let Bench { cpu, model, state } = &mut *bench;
    match state.restore(cpu, bytes) {
        Ok(()) => {
            assert_eq!(
                state.save(cpu).expect("there is memory for it"),
                bytes,
                "saved again, it differs"
            );
            let position = state.position();
            if position < CONTEXT {
                step(model, cpu, state, &[3]).expect("a token of this model");
            }
            position as u64
        }
        Err(error) => signature(&error.to_string()),
    }
}
