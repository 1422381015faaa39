//! Every block format in a whole model: as the type of the experts, and of the dense matrices.
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

use crate::common::{Rows, Runner, divergence};
use ironstar_device::CpuConfig;
use ironstar_gguf::{Gguf, TensorKind};
use ironstar_model::deepseek_v4::{Kind, TensorSpec};
use ironstar_model::testing::{Tiny, encode};
use ironstar_model::{Options, RowStorage, Shape};
use ironstar_quant::{Activation, Format};

/// Crosses a group of 128.
const TOKENS: usize = 150;

/// Mean divergence, in nats, of int8 activations from float ones on the same weights. Measured
/// 2026-11-29: 3e-4 (Q8_0 experts) to 1.7e-2 (dense Q4_0), the mix 1.0e-2. This random model has
/// steep logits and near ties in every choice; the nano model stays at 3e-3.
const DIVERGENCE: f64 = 2e-2;

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

fn run(gguf: &Gguf, float_products: bool) -> Rows {
    let cpu = CpuConfig { threads: 2, isa: None, float_products };
    let options = Options { round_trips: false, rows: RowStorage::F32, ..Options::default() };
    Runner::new(gguf, None, (cpu, options), TOKENS).cuts(&tiny().tokens(TOKENS), [100, 1])
}

/// The same model with every tensor's values in F32.
fn in_floats(gguf: &Gguf) -> Gguf {
    let decoded = |spec: &TensorSpec, values: &[f32]| {
        let info = gguf.tensor(&spec.name).unwrap();
        let TensorKind::Block(format) = info.kind else { panic!("{} is a table", spec.name) };
        let mut back = vec![0.0; values.len()];
        (format.info().decode)(&gguf.bytes(info).unwrap(), &mut back);
        encode(Format::F32, &back)
    };
    tiny().gguf_as(&decoded)
}

/// The float products of a file are those of its decoded values in F32, and the default path is as
/// close to them as its activations allow: equal, where these are floats.
fn compare(gguf: &Gguf, activation: Activation, what: &str) {
    let float = run(gguf, true);
    float.assert_same_bits(&run(&in_floats(gguf), false), what);
    let default = run(gguf, false);
    if activation == Activation::F32 {
        return default.assert_same_bits(&float, what);
    }
    let width = tiny().shape.vocabulary;
    let pairs = float.logits.chunks(width).zip(default.logits.chunks(width));
    let mean = pairs.map(|(a, b)| divergence(a, b)).sum::<f64>() / TOKENS as f64;
    assert!(mean > 0.0 && mean < DIVERGENCE, "{what}: divergence {mean}");
}

/// One format in one class of tensors, the others in F32.
fn check(format: Format, kind: Kind) {
    let in_format = |spec: &TensorSpec, values: &[f32]| {
        encode(if spec.kind == kind { format } else { Format::F32 }, values)
    };
    let info = format.info();
    let what = format!("{} in {kind:?}", info.name);
    compare(&tiny().gguf_as(&in_format), info.activation, &what);
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

/// Mixes go by layer: gate and up in one format, down in another, and other ones in the next layer;
/// even gate and up may differ.
#[test]
fn formats_mix_within_a_model() {
    use ironstar_model::deepseek_v4::{Field, Place};
    let mix = |spec: &TensorSpec, values: &[f32]| {
        let format = match (spec.kind, spec.field, spec.place) {
            (Kind::Routed, Field::ExpertDown, Place::Layer(0)) => Format::Q2K,
            (Kind::Routed, _, Place::Layer(0)) => Format::Iq2Xxs,
            (Kind::Routed, Field::ExpertDown, _) => Format::Q6K,
            (Kind::Routed, Field::ExpertUp, Place::Layer(2)) => Format::Q4K,
            (Kind::Routed, ..) => Format::Mxfp4,
            (Kind::Dense, Field::Embedding | Field::IndexQuery, _) => Format::F16,
            (Kind::Dense, Field::SharedDown, _) => Format::Q4K,
            (Kind::Dense, ..) => Format::Q8_0,
            (Kind::Float, ..) => Format::Bf16,
            _ => Format::F32,
        };
        encode(format, values)
    };
    compare(&tiny().gguf_as(&mix), Activation::Int8x256, "a mix");
}
