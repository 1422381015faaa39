//! DSpark against the plain NumPy pass of `tests/golden/dspark` (README there), which knows nothing
//! of this engine.
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

use crate::common::{Fixture, distance, exact};
use ironstar_device::{Backend, Cpu, Gpu, GpuConfig};
use ironstar_gguf::Gguf;
use ironstar_model::deepseek_v4::{SparkShape, spark_specs};
use ironstar_model::testing::{Tiny, floats};
use ironstar_model::{Drafted, LogitsFor, Model, Options, Step};

const BLOCK: usize = 5;
const VOCABULARY: usize = 512;
/// Last position that the README calls comparable with round trips and one's own model.
const ROUNDED_LAST: usize = 35;

fn numbers() -> SparkShape {
    SparkShape { rank: 16, noise: 500, ..Tiny::flash().spark() }
}

fn file() -> Gguf {
    Tiny::flash().dspark_of(&numbers(), &floats)
}

/// The tensors that no other golden has are the same, value by value.
#[test]
fn the_weights_are_those_of_the_fixture() {
    let (tiny, fixture) = (Tiny::flash(), Fixture::open("dspark/weights.safetensors"));
    let mut compared = 0;
    for spec in spark_specs(&tiny.shape, &numbers()) {
        if fixture.has(&spec.published) {
            assert_eq!(fixture.f32(&spec.published), tiny.values(&spec), "{}", spec.published);
            compared += 1;
        }
    }
    assert_eq!(compared, 9);
}

/// One session that goes through all positions up to `last` and drafts on the way.
fn compare(backend: &mut dyn Backend, name: &str, options: Options, last: usize, bound: f32) {
    let fixture = Fixture::open(&format!("dspark/{name}.safetensors"));
    let ids = fixture.tokens("ids");
    let (positions, anchors) = (fixture.tokens("cases.position"), fixture.tokens("cases.anchor"));
    let (logits, base) = (fixture.f32("logits"), fixture.f32("base_logits"));
    let (drafts, confidence) = (fixture.tokens("drafts"), fixture.f32("confidence"));
    assert_eq!((positions.len(), logits.len()), (12, 12 * BLOCK * VOCABULARY));
    assert_ne!(logits, base, "the Markov head does something");
    let (gguf, spark) = (Tiny::flash().gguf(), file());
    let mut model = Model::load(&gguf, Some(&spark), backend, options, &mut |_| {}).unwrap();
    let mut state = model.new_state(backend, 200).unwrap();
    let mut order: Vec<usize> = (0..positions.len()).collect();
    order.sort_by_key(|&case| positions[case]);
    let mut compared = 0;
    for case in order {
        let position = positions[case] as usize;
        if position > last {
            break;
        }
        let at = state.position();
        if at <= position {
            let step = Step::single(&ids[at..=position], at);
            model.forward(backend, &step, &mut [&mut state], LogitsFor::None).unwrap();
            model.commit(&mut state, position + 1 - at).unwrap();
        }
        let Drafted { tokens, logits: found, confidence: sure } =
            model.draft_tokens(backend, &state, anchors[case], BLOCK).unwrap();
        let what = format!("{name}, case {case} at {position}");
        let wanted = &logits[case * BLOCK * VOCABULARY..][..BLOCK * VOCABULARY];
        let error = distance(found.values(), wanted);
        assert!(error < bound, "{what}: logits differ by {error}");
        assert_eq!(tokens, drafts[case * BLOCK..][..BLOCK], "{what}");
        let error = distance(&sure, &confidence[case * BLOCK..][..BLOCK]);
        assert!(error < bound, "{what}: confidence differs by {error}");
        compared += 1;
    }
    assert_eq!(compared, positions.iter().filter(|&&p| p as usize <= last).count());
}

#[test]
fn exact_drafts_are_those_of_the_fixture() {
    let mut cpu = Cpu::new(exact().0).unwrap();
    compare(&mut cpu, "exact", exact().1, usize::MAX, 3e-4);
}

#[test]
fn drafts_with_round_trips_are_those_of_the_fixture() {
    let options = Options { round_trips: true, ..exact().1 };
    let mut cpu = Cpu::new(exact().0).unwrap();
    compare(&mut cpu, "qat", options, ROUNDED_LAST, 1e-3);
}

/// The kernels of the GPU, run on the CPU by the host driver: slow, so the first four positions.
#[test]
fn exact_drafts_through_the_kernels_of_the_gpu() {
    let config = GpuConfig { float_products: true, ..GpuConfig::default() };
    let mut gpu = Gpu::host(config).unwrap();
    compare(&mut gpu, "exact", exact().1, 3, 1e-3);
}
