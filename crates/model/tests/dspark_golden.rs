//! DSpark against the plain NumPy pass of `tests/golden/dspark` (README there), which knows nothing
//! of this engine.
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

mod common;

use common::{Fixture, Runner, distance, exact};
use ironstar_gguf::Gguf;
use ironstar_model::deepseek_v4::{SparkShape, spark_specs};
use ironstar_model::testing::{Tiny, floats};
use ironstar_model::{Drafted, LogitsFor, Options, Wanted};

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

/// One session that goes through all positions and drafts on the way.
fn compare(name: &str, options: Options, last: usize, bound: f32) {
    let fixture = Fixture::open(&format!("dspark/{name}.safetensors"));
    let ids = fixture.tokens("ids");
    let (positions, anchors) = (fixture.tokens("cases.position"), fixture.tokens("cases.anchor"));
    let (logits, base) = (fixture.f32("logits"), fixture.f32("base_logits"));
    let (drafts, confidence) = (fixture.tokens("drafts"), fixture.f32("confidence"));
    assert_eq!((positions.len(), logits.len()), (12, 12 * BLOCK * VOCABULARY));
    assert_ne!(logits, base, "the Markov head does something");
    let mut runner = Runner::new(&Tiny::flash().gguf(), Some(&file()), (exact().0, options), 200);
    let mut order: Vec<usize> = (0..positions.len()).collect();
    order.sort_by_key(|&case| positions[case]);
    let mut compared = 0;
    for case in order {
        let position = positions[case] as usize;
        if position > last {
            break;
        }
        let at = runner.state.position();
        if at <= position {
            let wanted = Wanted { logits: LogitsFor::None, drafts: LogitsFor::None };
            runner.watched(&ids[at..=position], &wanted, None);
        }
        let (model, cpu) = (&mut runner.model, &mut runner.cpu);
        let Drafted { tokens, logits: found, confidence: sure } =
            model.draft_tokens(cpu, &runner.state, anchors[case], BLOCK).unwrap();
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
    compare("exact", exact().1, usize::MAX, 3e-4);
}

#[test]
fn drafts_with_round_trips_are_those_of_the_fixture() {
    let options = Options { round_trips: true, ..exact().1 };
    compare("qat", options, ROUNDED_LAST, 1e-3);
}
