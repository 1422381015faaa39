//! Every block format in a whole model: as the type of the experts, and of the dense matrices.
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

mod common;

use common::{Rows, Runner, divergence};
use ironstar_device::CpuConfig;
use ironstar_gguf::TensorKind;
use ironstar_model::deepseek_v4::{Kind, TensorSpec};
use ironstar_model::testing::{Encoded, Tiny, encode};
use ironstar_model::{Options, RowStorage, Shape};
use ironstar_quant::{Activation, Format};

/// Crosses a group of 128.
const TOKENS: usize = 150;

/// Mean divergence, in nats, of int8 activations from float ones on the same weights. This random
/// model has steep logits and near ties in every choice; trained models stay far below.
const DIVERGENCE_32: f64 = 0.02;
const DIVERGENCE_256: f64 = 0.02;

/// All matrices have whole blocks of 256.
fn tiny() -> Tiny {
    let shape = Shape {
        layers: 3,
        q_rank: 256,
        ratios: vec![0, 4, 128],
        hash_layers: 1,
        swiglu_limits: vec![10.0; 3],
        ..Tiny::flash().shape
    };
    Tiny { seed: 5, shape }
}

/// Which tensors get the format; all others are F32.
fn held(kind: Kind, spec: &TensorSpec) -> bool {
    spec.kind == kind
}

/// The values that a format's bytes stand for.
fn decoded(format: Format, values: &[f32]) -> Vec<f32> {
    let (_, bytes) = encode(format, values);
    let mut back = vec![0.0; values.len()];
    (format.info().decode)(&bytes, &mut back);
    back
}

fn run(encode: &dyn Fn(&TensorSpec, &[f32]) -> Encoded, float_products: bool) -> Rows {
    let tiny = tiny();
    let cpu = CpuConfig { threads: 2, isa: None, float_products };
    let options = Options { round_trips: false, rows: RowStorage::F32, ..Options::default() };
    let mut runner = Runner::new(&tiny.gguf_as(encode), None, (cpu, options), TOKENS);
    runner.cuts(&tiny.tokens(TOKENS), [100, 1])
}

/// One format in one class of tensors: the float products of the file are those of its decoded
/// values in F32, and the default path is close to them (equal, where the format is a float).
fn check(format: Format, kind: Kind) {
    let in_format = |spec: &TensorSpec, values: &[f32]| {
        encode(if held(kind, spec) { format } else { Format::F32 }, values)
    };
    let as_floats = |spec: &TensorSpec, values: &[f32]| {
        let values = if held(kind, spec) { decoded(format, values) } else { values.to_vec() };
        encode(Format::F32, &values)
    };
    let name = format.info().name;
    let float = run(&in_format, true);
    float.assert_same_bits(&run(&as_floats, false), name);
    let default = run(&in_format, false);
    let limit = match format.info().activation {
        Activation::F32 => return default.assert_same_bits(&float, name),
        Activation::Int8x32 => DIVERGENCE_32,
        Activation::Int8x256 => DIVERGENCE_256,
    };
    let width = tiny().shape.vocabulary;
    let pairs = float.logits.chunks(width).zip(default.logits.chunks(width));
    let mean = pairs.map(|(a, b)| divergence(a, b)).sum::<f64>() / TOKENS as f64;
    assert!(mean > 0.0 && mean < limit, "{name} in {kind:?}: divergence {mean}");
}

macro_rules! formats {
    ($($test:ident: $format:ident;)*) => {
        $(
            #[test]
            fn $test() {
                check(Format::$format, Kind::Routed);
                check(Format::$format, Kind::Dense);
            }
        )*

        /// A format that is added must be added here.
        #[test]
        fn every_format_is_tested() {
            let tested = [$(Format::$format),*];
            let table = ironstar_quant::FORMATS.iter().map(|info| info.format);
            assert!(table.eq(tested));
        }
    };
}

formats! {
    f32: F32;
    f16: F16;
    bf16: Bf16;
    q4_0: Q4_0;
    q8_0: Q8_0;
    q2_k: Q2K;
    q3_k: Q3K;
    q4_k: Q4K;
    q5_k: Q5K;
    q6_k: Q6K;
    iq2_xxs: Iq2Xxs;
    mxfp4: Mxfp4;
}

/// Mixes go by layer: gate and up in one format, down in another, and other ones in the next layer.
#[test]
fn formats_mix_within_a_model() {
    use ironstar_model::deepseek_v4::{Field, Place};
    let mix = |spec: &TensorSpec, values: &[f32]| {
        let format = match (spec.kind, spec.field, spec.place) {
            (Kind::Routed, Field::ExpertDown, Place::Layer(0)) => Format::Q2K,
            (Kind::Routed, _, Place::Layer(0)) => Format::Iq2Xxs,
            (Kind::Routed, Field::ExpertDown, _) => Format::Q6K,
            (Kind::Routed, ..) => Format::Mxfp4,
            (Kind::Dense, Field::Embedding | Field::IndexQuery, _) => Format::F16,
            (Kind::Dense, Field::SharedDown, _) => Format::Q4K,
            (Kind::Dense, ..) => Format::Q8_0,
            (Kind::Float, ..) => Format::Bf16,
            _ => Format::F32,
        };
        encode(format, values)
    };
    let as_floats = |spec: &TensorSpec, values: &[f32]| {
        let (kind, bytes) = mix(spec, values);
        let TensorKind::Block(format) = kind else { unreachable!("matrices and vectors only") };
        let mut back = vec![0.0; values.len()];
        (format.info().decode)(&bytes, &mut back);
        encode(Format::F32, &back)
    };
    run(&mix, true).assert_same_bits(&run(&as_floats, false), "mix");
    let (float, default) = (run(&mix, true), run(&mix, false));
    let width = tiny().shape.vocabulary;
    let pairs = float.logits.chunks(width).zip(default.logits.chunks(width));
    let mean = pairs.map(|(a, b)| divergence(a, b)).sum::<f64>() / TOKENS as f64;
    assert!(mean > 0.0 && mean < DIVERGENCE_256, "divergence {mean}");
}
