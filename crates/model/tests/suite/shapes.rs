//! No size is compiled in: models of random shapes run, and give one answer however they are cut.
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

use crate::common::{Runner, default_mode, exact};
use ironstar_device::Isa;
use ironstar_model::deepseek_v4::{CHAIN_MAX, Kind, TensorSpec};
use ironstar_model::testing::{Encoded, Tiny, encode};
use ironstar_model::{Model, Options, RowStorage, Shape};
use ironstar_quant::Format;
use proptest::prelude::*;

fn shape() -> impl Strategy<Value = Shape> {
    let widths = (1usize..4, 1usize..4, 1usize..3, 1usize..5, 1usize..4, prop::bool::ANY);
    let attention = (1usize..40, 1usize..5, 1usize..12, 0usize..2, 1usize..3);
    let experts = (1usize..9, 1usize..5, 2usize..90, 0usize..3);
    let ratios = prop::collection::vec(prop::sample::select(vec![0, 4, 4, 128]), 1..4);
    let eps = (1usize..5, 1usize..8, 0.5f32..12.0);
    (widths, attention, experts, ratios, eps).prop_map(
        |(w, a, e, ratios, (streams, passes, limit))| {
            let (width, q_rank, groups, heads_per_group, rank, wide) = w;
            let (window, index_heads, index_top_k, nope, output) = a;
            let (experts, used, vocabulary, hashed) = e;
            let rope_width = if wide { 64 } else { 16 };
            Shape {
                layers: ratios.len(),
                vocabulary,
                width: 32 * width,
                streams,
                sinkhorn_iterations: passes,
                heads: groups * heads_per_group,
                head_width: rope_width + 64 * nope,
                rope_width,
                q_rank: 32 * q_rank,
                output_groups: groups,
                output_rank: 32 * rank,
                window,
                index_heads,
                index_top_k,
                experts,
                experts_used: used.min(experts),
                expert_width: 32 * output,
                hash_layers: hashed.min(ratios.len()),
                expert_scale: 1.0 + limit / 8.0,
                swiglu_limits: vec![limit; ratios.len()],
                ratios,
                ..Tiny::flash().shape
            }
        },
    )
}

/// Q8_0 experts and dense matrices where rows are whole blocks; a head of 16 dims leaves rows of
/// other widths, which stay in F16.
fn quantised(spec: &TensorSpec, values: &[f32]) -> Encoded {
    match spec.kind {
        Kind::Routed | Kind::Dense if spec.dims[0].is_multiple_of(32) => {
            encode(Format::Q8_0, values)
        }
        Kind::Vector | Kind::Table => encode(Format::F32, values),
        _ => encode(Format::F16, values),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(1),
        ..Default::default()
    })]

    #[test]
    fn random_shapes_give_one_answer(
        shape in shape(),
        seed in 0u64..1000,
        cuts in prop::collection::vec(1usize..60, 0..5),
        length in 2usize..140,
    ) {
        let tiny = Tiny { seed, shape };
        let tokens = match tiny.shape.vocabulary {
            2 => vec![1; length],
            _ => tiny.tokens(length),
        };
        let scalar = default_mode(1, Some(Isa::Scalar));
        let (float, fast) = (exact(), default_mode(2, None));
        let gguf = tiny.gguf_as(&quantised);
        let drafter = tiny.drafter_as(&quantised);
        let run = |mode, cuts: &[usize]| {
            let mut runner = Runner::new(&gguf, Some(&drafter), mode, length);
            let rows = runner.cuts(&tokens, cuts.iter().copied());
            (rows, runner.saved())
        };
        let (whole, saved) = run(scalar, &[]);
        let (cut, saved_cut) = run(fast, &cuts);
        cut.assert_same_bits(&whole, "default");
        prop_assert!(saved == saved_cut);
        prop_assert!(whole.logits.iter().chain(&whole.drafts).all(|v| v.is_finite()));
        prop_assert_eq!(whole.logits.len(), length * tiny.shape.vocabulary);
        let (whole, _) = run(float.clone(), &[]);
        let (cut, _) = run(float, &cuts);
        cut.assert_same_bits(&whole, "exact");
    }

    #[test]
    fn metadata_carries_every_shape(shape in shape()) {
        let tiny = Tiny { seed: 1, shape };
        prop_assert_eq!(Shape::from_metadata(tiny.gguf().metadata()).unwrap(), tiny.shape);
    }
}

/// The plan of V4 Flash at a full context, against the numbers of spec 9.2 (which count rows
/// alone): 128 Ki tokens hold 907 MB in two-byte rows.
#[test]
fn the_memory_plan_is_the_specs() {
    let mut ratios: Vec<usize> =
        (2..43).map(|layer| if layer % 2 == 0 { 4 } else { 128 }).collect();
    ratios.splice(0..0, [0, 0]);
    let flash = Shape {
        layers: 43,
        vocabulary: 129_280,
        width: 4096,
        heads: 64,
        head_width: 512,
        window: 128,
        ratios,
        swiglu_limits: vec![10.0; 43],
        ..Tiny::flash().shape
    };
    let options = Options { round_trips: false, rows: RowStorage::Bf16, ..Options::default() };
    let bytes = |options: &Options, what: &str| {
        let plan = Model::memory_plan(&flash, 128 << 10, options, true);
        plan.iter().find(|line| line.what == what).unwrap().bytes
    };
    // 21 layers of 32768 rows and 20 of 1024, 512 wide, two bytes each.
    assert_eq!(bytes(&options, "compressed rows"), 2 * 512 * (21 * 32_768 + 20 * 1024));
    // Index rows without round trips are f32; packed they are 68 bytes instead of 256 as f16.
    assert_eq!(bytes(&options, "indexer rows"), 4 * 128 * 21 * 32_768);
    let f16 = bytes(&options, "compressed rows") + bytes(&options, "indexer rows") / 2;
    assert_eq!(f16 / 1_000_000, 901, "the rest of 907 MB is rings");
    assert_eq!(bytes(&Options::default(), "indexer rows"), 68 * 21 * 32_768);
    // The draft block's ring has room for the chain that it guesses ahead.
    let slots = u64::try_from(44 * (128 + 64) + CHAIN_MAX).unwrap();
    assert_eq!(bytes(&options, "window rings"), 2 * 512 * slots);
    assert!(bytes(&options, "scratch") > 512 * 64 * 512 * 4);
}
