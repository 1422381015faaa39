//! Whole tiny models against DeepSeek's own published code (`tests/golden/oracle`; its README says
//! how the numbers were made).
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

use crate::common::{Fixture, Runner, argmax, distance, exact};
use ironstar_model::testing::{Tiny, Uniforms};
use ironstar_model::{At, LogitsFor, Observer, Options, RowStorage, Wanted, What};
use std::collections::HashMap;

/// Logits and everything on the way, in exact mode. The references agree with each other to 7e-5.
const TOLERANCE: f32 = 1e-3;
/// What comes on the way in rounded mode, where single values near a rounding border may flip.
const TOLERANCE_ROUNDED: f32 = 1e-2;
const PROMPT: usize = 370;

/// Everything that a pass shows, rows behind one another.
#[derive(Default)]
struct Seen {
    floats: HashMap<At, Vec<f32>>,
    ids: HashMap<At, Vec<u32>>,
}

impl Observer for Seen {
    fn floats(&mut self, at: At, _: usize, values: &mut [f32]) -> bool {
        self.floats.entry(at).or_default().extend_from_slice(values);
        false
    }

    fn ids(&mut self, at: At, _: usize, ids: &[u32]) {
        self.ids.entry(at).or_default().extend_from_slice(ids);
    }
}

fn models() -> [(Tiny, &'static str); 2] {
    [(Tiny::flash(), "flash"), (Tiny::pro(), "pro")]
}

fn both() -> Wanted<'static> {
    Wanted { logits: LogitsFor::All, drafts: LogitsFor::All }
}

/// The recipe's check values, as its README gives them.
#[test]
fn weights_are_the_oracles() {
    let tiny = Tiny::flash();
    let mut u = Uniforms::new(13, "embed.weight");
    assert_eq!(u.key(), 0xc964_67f0_12bd_30eb);
    assert_eq!([u.next(), u.next()], [0.180_421_528_806_556_82, 0.341_726_680_192_439_24]);
    let specs = ironstar_model::deepseek_v4::tensor_specs(&tiny.shape);
    let embed = tiny.values(&specs[0]);
    assert_eq!(embed[..3], [-1.107_052_3, -0.548_274_9, -0.787_624]);
    assert_eq!(tiny.tokens(6), [0, 97, 155, 162, 143, 292]);
    let gguf = tiny.gguf();
    let table = gguf.tensor("blk.0.ffn_gate_tid2eid.weight").unwrap();
    let ids: Vec<u8> = gguf.bytes(table).unwrap()[..36].iter().step_by(4).copied().collect();
    assert_eq!(ids, [2, 7, 1, 6, 4, 1, 4, 0, 3]);
}

fn rows_of(all: &[f32], rows: &[i64], width: usize) -> Vec<f32> {
    let row = |&r: &i64| &all[usize::try_from(r).unwrap() * width..][..width];
    rows.iter().flat_map(row).copied().collect()
}

/// Compares everything seen with the fixture, at the rows that it keeps.
fn compare(fixture: &Fixture, seen: &Seen, tiny: &Tiny, rows: &[i64], tolerance: f32) {
    let (d, layers) = (tiny.shape.width, tiny.shape.layers);
    let check = |name: String, at: At, width: usize| {
        let (found, wanted) = (&seen.floats[&at], fixture.f32(&name));
        let gap = distance(&rows_of(found, rows, width), &wanted[..rows.len() * width]);
        assert!(gap < tolerance, "{name}: {gap}");
    };
    for layer in 0..layers {
        let at = |what| At { layer, what };
        check(format!("layer_in.{layer}"), at(What::LayerIn), tiny.shape.streams * d);
        check(format!("attn_out.{layer}"), at(What::AttentionOut), d);
        check(format!("ffn_out.{layer}"), at(What::FfnOut), d);
        check(format!("route_w.{layer}"), at(What::ExpertWeights), tiny.shape.experts_used);
    }
    let end = At { layer: layers, what: What::LayerIn };
    check(format!("layer_in.{layers}"), end, tiny.shape.streams * d);
}

/// Expert and index sets at every one of the first `positions`.
fn compare_sets(fixture: &Fixture, seen: &Seen, tiny: &Tiny, positions: usize) {
    let (k, top_k) = (tiny.shape.experts_used, tiny.shape.index_top_k);
    for layer in 0..tiny.shape.layers {
        let found = &seen.ids[&At { layer, what: What::Experts }];
        let wanted = fixture.int(&format!("topk.{layer}"));
        let found: Vec<i64> = found.iter().map(|&id| id.into()).collect();
        assert_eq!(found[..positions * k], wanted[..positions * k], "experts of layer {layer}");
        let name = format!("index_topk.{layer}");
        if tiny.shape.ratios[layer] != 4 {
            assert!(!fixture.has(&name));
            continue;
        }
        let chosen = &seen.ids[&At { layer, what: What::IndexChoice }];
        for (t, wanted) in fixture.int(&name).chunks(top_k).take(positions).enumerate() {
            let live = top_k.min((t + 1) / 4);
            let found = chosen[t * top_k..][..live].iter().rev().map(|&c| i64::from(c));
            let absent = std::iter::repeat_n(-1, top_k - live);
            assert!(found.chain(absent).eq(wanted.iter().copied()), "layer {layer}, position {t}");
        }
    }
}

#[test]
fn exact_mode_in_one_pass() {
    for (tiny, name) in models() {
        let fixture = Fixture::open(&format!("oracle/official_{name}_exact.safetensors"));
        let (ids, rows) = (fixture.tokens("ids"), fixture.int("rows"));
        let mut all = tiny.tokens(ids.len() + 1);
        let vocabulary = tiny.shape.vocabulary;
        let mut runner = Runner::new(&tiny.gguf(), Some(&tiny.drafter()), exact(), 512);
        assert_eq!(all[..ids.len()], ids);
        let mut seen = Seen::default();
        let out = runner.watched(&ids, &both(), Some(&mut seen));

        let logits = out.logits.values();
        let gap = distance(&rows_of(logits, &rows, vocabulary), &fixture.f32("logits_full"));
        assert!(gap < TOLERANCE, "{name}: logits {gap}");
        let best: Vec<i64> =
            logits.chunks(vocabulary).map(|r| i64::try_from(argmax(r)).unwrap()).collect();
        assert_eq!(best, fixture.int("argmax_full"), "{name}");
        compare(&fixture, &seen, &tiny, &rows, TOLERANCE);
        compare_sets(&fixture, &seen, &tiny, ids.len());

        // The draft of position t needs token t + 1, so the last comes from the token after the
        // run.
        let last = runner.model.draft(&mut runner.cpu, &runner.state, all.pop().unwrap()).unwrap();
        let drafts = [out.drafts.values(), last.values()].concat();
        let gap = distance(&rows_of(&drafts, &rows, vocabulary), &fixture.f32("mtp_logits"));
        assert!(gap < TOLERANCE, "{name}: draft logits {gap}");
        let best: Vec<i64> =
            drafts.chunks(vocabulary).map(|r| i64::try_from(argmax(r)).unwrap()).collect();
        assert_eq!(best, fixture.int("mtp_argmax"), "{name}");
    }
}

#[test]
fn exact_mode_prefill_and_decode() {
    for (tiny, name) in models() {
        let fixture = Fixture::open(&format!("oracle/official_{name}_exact.safetensors"));
        let ids = fixture.tokens("ids");
        let mut runner = Runner::new(&tiny.gguf(), None, exact(), 512);
        runner.step(&ids[..PROMPT]);
        let mut decoded = Vec::new();
        for id in &ids[PROMPT..] {
            decoded.extend_from_slice(runner.step(&[*id]).logits.values());
        }
        let gap = distance(&decoded, &fixture.f32("logits_decode"));
        assert!(gap < TOLERANCE, "{name}: {gap}");

        // Every live row of every ring, frontier and cache.
        let saved = runner.saved();
        let payload = saved[HEADER_BYTES..].as_chunks().0.iter().map(|&b| f32::from_le_bytes(b));
        let wanted = live_parts(&fixture, &tiny, ids.len()).into_iter().flat_map(|p| p.values);
        let wanted: Vec<f32> = wanted.collect();
        assert_eq!(payload.len(), wanted.len());
        let known = payload.zip(wanted).filter(|(_, wanted)| !wanted.is_nan());
        let (found, wanted): (Vec<f32>, Vec<f32>) = known.unzip();
        let gap = distance(&found, &wanted);
        assert!(gap < TOLERANCE, "{name}: cached rows {gap}");
    }
}

/// Size of a saved state's header.
const HEADER_BYTES: usize = 100;

/// Live values of one buffer.
struct Part {
    values: Vec<f32>,
    /// FP4 rows, when round trips are on.
    index_rows: bool,
}

/// What the fixture has of the state at a position, in the order of a saved state. It was taken
/// after the last token; an earlier position of the same open groups has fewer rows of them.
fn live_parts(fixture: &Fixture, tiny: &Tiny, position: usize) -> Vec<Part> {
    let shape = &tiny.shape;
    let mut parts = Vec::new();
    let mut add = |values: Vec<f32>, index_rows| parts.push(Part { values, index_rows });
    for layer in 0..shape.layers {
        let ring = fixture.f32(&format!("kv_window.{layer}"));
        let row = |t: usize| &ring[t % shape.window * shape.head_width..][..shape.head_width];
        let first = position - (shape.window - 1);
        add((first..position).flat_map(row).copied().collect(), false);
    }
    for (layer, &ratio) in shape.ratios.iter().enumerate().filter(|(_, r)| **r > 0) {
        let open = position % ratio;
        let kv_rows = fixture.f32(&format!("kv_comp.{layer}"));
        for name in ["state_kv", "state_score"] {
            let frontier = fixture.f32(&format!("{name}.{layer}"));
            let (width, d) = (fixture.shape(&format!("{name}.{layer}"))[1], shape.head_width);
            if ratio == 4 {
                add((0..4).flat_map(|r| &frontier[r * width..][..d]).copied().collect(), false);
                add(frontier[4 * width..][..open * width].to_vec(), false);
            } else {
                add(frontier[..open * width].to_vec(), false);
            }
        }
        add(kv_rows[..position / ratio * shape.head_width].to_vec(), false);
        if ratio == 4 {
            add_index(fixture, layer, &mut add, position);
        }
    }
    parts
}

/// The indexer's part: the fixtures have its rows, but not its frontiers, which no row needs before
/// its group closes.
fn add_index(
    fixture: &Fixture,
    layer: usize,
    add: &mut impl FnMut(Vec<f32>, bool),
    position: usize,
) {
    let width = fixture.shape(&format!("index_k.{layer}"))[1];
    for _ in ["values", "scores"] {
        add(vec![f32::NAN; 4 * width], false);
        add(vec![f32::NAN; position % 4 * 2 * width], false);
    }
    let rows = fixture.f32(&format!("index_k.{layer}"));
    add(rows[..position / 4 * width].to_vec(), true);
}

/// Feeds the fixture's streams into every layer and keeps what comes out.
struct Fed<'f> {
    fixture: &'f Fixture,
    seen: Seen,
}

impl Observer for Fed<'_> {
    fn floats(&mut self, at: At, width: usize, values: &mut [f32]) -> bool {
        self.seen.floats(at, width, values);
        if at.what != What::LayerIn {
            return false;
        }
        let streams = self.fixture.f32(&format!("layer_in.{}", at.layer));
        values.copy_from_slice(&streams[streams.len() - width..]);
        true
    }

    fn ids(&mut self, at: At, width: usize, ids: &[u32]) {
        self.seen.ids(at, width, ids);
    }
}

/// Bytes of a state as [`ironstar_model::State::restore`] reads them, under the header of an empty
/// one.
fn saved_state(empty: &[u8], parts: &[Part], position: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    for part in parts {
        if part.index_rows {
            let mut rows = vec![0; part.values.len() / 128 * 68];
            ironstar_quant::fp4::encode_rows(&part.values, &mut rows);
            payload.extend_from_slice(&rows);
        } else {
            payload.extend(part.values.iter().flat_map(|v| v.to_le_bytes()));
        }
    }
    let mut checksum = ironstar_model::Fingerprint::default();
    checksum.add(&payload);
    let number = |n: usize| u64::try_from(n).unwrap().to_le_bytes();
    [&empty[..76], &number(position), &number(payload.len()), &checksum.bytes()[..8], &payload]
        .concat()
}

/// With round trips whole runs are chaotic, but a layer is not: from the reference's cached rows
/// and streams at the last position, every block gives the reference's output.
#[test]
fn rounded_mode_layer_by_layer_from_the_references_state() {
    for (tiny, name) in models() {
        let fixture = Fixture::open(&format!("oracle/official_{name}_qat.safetensors"));
        let ids = fixture.tokens("ids");
        let (cpu, options) = exact();
        let options = Options { round_trips: true, ..options };
        let mut runner = Runner::new(&tiny.gguf(), None, (cpu, options), 512);
        let last = ids.len() - 1;
        let bytes = saved_state(&runner.saved(), &live_parts(&fixture, &tiny, last), last);
        runner.state.restore(&mut runner.cpu, &bytes).unwrap();
        let mut fed = Fed { fixture: &fixture, seen: Seen::default() };
        let wanted = Wanted { logits: LogitsFor::Last, drafts: LogitsFor::None };
        let out = runner.watched(&ids[last..], &wanted, Some(&mut fed));

        let ends_like = |found: &[f32], what: &str| {
            let all = fixture.f32(what);
            let gap = distance(found, &all[all.len() - found.len()..]);
            assert!(gap < TOLERANCE, "{name}, {what}: {gap}");
        };
        for (at, values) in &fed.seen.floats {
            let key = match at.what {
                What::LayerIn => "layer_in",
                What::AttentionOut => "attn_out",
                What::FfnOut => "ffn_out",
                _ => "route_w",
            };
            ends_like(values, &format!("{key}.{}", at.layer));
        }
        ends_like(out.logits.values(), "logits_full");
        for (at, found) in &fed.seen.ids {
            let key = if at.what == What::Experts { "topk" } else { "index_topk" };
            let all = fixture.int(&format!("{key}.{}", at.layer));
            let mut wanted = all[all.len() - found.len()..].to_vec();
            wanted.sort_unstable();
            assert!(found.iter().map(|&id| i64::from(id)).eq(wanted), "{name}, {at:?}");
        }
        assert_eq!(fed.seen.floats.len(), 4 * tiny.shape.layers + 1);
    }
}

#[test]
fn rounded_mode_while_it_is_not_chaotic() {
    for (tiny, name) in models() {
        let fixture = Fixture::open(&format!("oracle/official_{name}_qat.safetensors"));
        let ids = fixture.tokens("ids");
        let rows: Vec<i64> = fixture.int("rows").into_iter().filter(|&r| r <= 31).collect();
        let (cpu, options) = exact();
        let options = Options { round_trips: true, rows: RowStorage::F32, ..options };
        let mut runner = Runner::new(&tiny.gguf(), None, (cpu, options), 512);
        let mut seen = Seen::default();
        let wanted = Wanted { logits: LogitsFor::All, drafts: LogitsFor::None };
        let out = runner.watched(&ids[..32], &wanted, Some(&mut seen));
        let found = rows_of(out.logits.values(), &rows, tiny.shape.vocabulary);
        let gap = distance(&found, &fixture.f32("logits_full")[..found.len()]);
        assert!(gap < TOLERANCE, "{name}: {gap}");
        compare(&fixture, &seen, &tiny, &rows, TOLERANCE_ROUNDED);
        compare_sets(&fixture, &seen, &tiny, 32);
    }
}
