use super::predict::{expected_maximum, pipeline_seconds};
use super::*;

/// The file that docs/cluster.md shows.
fn documented() -> Costs {
    let page = include_str!("../../../../docs/cluster.md");
    let (_, rest) = page.split_once("```json\n").expect("docs/cluster.md shows a file of costs");
    let (json, _) = rest.split_once("```").expect("it ends");
    Costs::from_json(json).expect("and it can be read")
}

fn close(found: f64, wanted: f64, what: &str) {
    assert!((found / wanted - 1.0).abs() < 1e-9, "{what}: {found}, not {wanted}");
}

/// Two machines of 46 ms a token, a fifth of it on both, gates of so many us: the table of the
/// design's chapter 8, which was worked out by hand.
fn sparks(gate_us: f64) -> Costs {
    let seconds = gate_us * 1e-6;
    Costs {
        model: ModelCosts {
            name: "Flash".into(),
            layers: 43,
            width: 4096,
            streams: 4,
            vocabulary: 4096,
            rank_counts: vec![1, 2, 4, 8],
            replicated: 0.2,
            routed: 0.3,
        },
        node: NodeCosts {
            decode_seconds: 0.046,
            prefill_seconds: 0.0012,
            prefill_rows: 512,
            batches: Vec::new(),
        },
        parts: Vec::new(),
        link: LinkCosts {
            ranks: 2,
            gates: vec![Timed { bytes: 16_384, seconds }],
            hops: Vec::new(),
            order_seconds: 0.0,
        },
        experts: None,
    }
}

const TWO: Layout = Layout { tensor: 2, stages: 1 };

#[test]
fn two_ranks_are_as_the_design_worked_out() {
    for (gate_us, tokens) in [(13.0, 34.8), (20.0, 34.1), (60.0, 30.5), (100.0, 27.6)] {
        let mut costs = sparks(gate_us);
        // The table counts 86 gates, and no gate of the vocabulary.
        costs.link.order_seconds = 0.0;
        let found = 1.0 / (costs.decode_seconds(TWO) - costs.gate(2048 * 4, 2));
        assert!((found - tokens).abs() < 0.06, "{gate_us} us: {found}");
    }
    close(sparks(13.0).rates(Layout { tensor: 1, stages: 1 }).decode, 1.0 / 0.046, "one rank");
}

#[test]
fn a_part_that_was_measured_is_taken_as_it_is_and_tells_of_others() {
    let mut costs = sparks(20.0);
    costs.parts = vec![PartCosts { ranks: 2, decode_seconds: 0.030, prefill_seconds: 0.0007 }];
    let gates = 87.0 * costs.gate(16_384, 2);
    close(costs.decode_seconds(TWO), 0.030 + gates, "two ranks");
    // 30 of 46 ms on two ranks: 14 ms are on both, so four ranks have 14 + 32 / 4.
    let four = Layout { tensor: 4, stages: 1 };
    let gates = 86.0 * costs.gate(16_384, 4) + costs.gate(4096, 4);
    close(costs.decode_seconds(four), 0.022 + gates, "four ranks");
}

#[test]
fn gates_lie_on_the_lines_between_what_was_measured() {
    let mut costs = sparks(1.0);
    let timed = |(bytes, us): (usize, f64)| Timed { bytes, seconds: us * 1e-6 };
    costs.link.gates = [(1000, 10.0), (2000, 12.0), (4000, 20.0)].map(timed).to_vec();
    for (bytes, ranks, us) in [
        (10, 2, 10.0),
        (1500, 2, 11.0),
        (3000, 2, 16.0),
        (4000, 2, 20.0),
        (6000, 2, 28.0),
        (1000, 4, 16.0),
    ] {
        close(costs.gate(bytes, ranks), us * 1e-6, &format!("{bytes} bytes, {ranks} ranks"));
    }
}

#[test]
fn chunks_fill_a_pipeline_and_the_slowest_stage_sets_its_pace() {
    // All alike: the first chunk passes all stages, each other adds one.
    close(pipeline_seconds(&[2.0; 4], 0.5, 10), 4.0 * 2.0 + 3.0 * 0.5 + 9.0 * 2.0, "alike");
    close(pipeline_seconds(&[1.0, 3.0, 2.0], 0.0, 10), 1.0 + 10.0 * 3.0 + 2.0, "unlike");
    close(pipeline_seconds(&[7.0], 9.0, 3), 21.0, "one stage sends nothing");
    let costs = sparks(20.0);
    let rate = |stages: usize| costs.rates(Layout { tensor: 1, stages }).prefill;
    let one = rate(1);
    close(one, 1.0 / 0.0012, "one stage");
    // 43 layers make stages of 21 and 22; 32 chunks leave one of them empty a while.
    assert!((1.7..1.96).contains(&(rate(2) / one)), "{}", rate(2) / one);
    assert!(costs.decode_seconds(Layout { tensor: 1, stages: 4 }) > 0.046, "one token waits");
}

#[test]
fn the_fullest_of_a_few_groups_is_counted_exactly() {
    close(expected_maximum(&[0.5, 0.5], 1), 1.0, "one draw");
    // Two draws: both in one group half of the time.
    close(expected_maximum(&[0.5, 0.5], 2), 1.5, "two draws");
    close(expected_maximum(&[1.0, 0.0], 6), 6.0, "all in one");
    // Against every sequence of draws.
    let shares = [0.1, 0.2, 0.3, 0.4];
    let mut sum = 0.0;
    for sequence in 0..4usize.pow(6) {
        let (mut of, mut rest, mut weight) = ([0usize; 4], sequence, 1.0);
        for _ in 0..6 {
            of[rest % 4] += 1;
            weight *= shares[rest % 4];
            rest /= 4;
        }
        sum += weight * f64::from(u32::try_from(*of.iter().max().unwrap()).unwrap());
    }
    close(expected_maximum(&shares, 6), sum, "six draws of four");
}

#[test]
fn popular_experts_make_a_rank_busy() {
    let mut costs = sparks(20.0);
    let even = costs.decode_seconds(Layout { tensor: 8, stages: 1 });
    costs.experts = Some(Experts { used: 6, popularity: vec![1.0; 256] });
    assert!((costs.uneven(2, false) - 1.0).abs() < 1e-12, "two ranks halve every expert");
    assert!((costs.uneven(8, true) - 1.0).abs() < 1e-12, "many rows even out");
    let fair = costs.decode_seconds(Layout { tensor: 8, stages: 1 });
    costs.experts.as_mut().unwrap().popularity[..64].fill(4.0);
    let unfair = costs.decode_seconds(Layout { tensor: 8, stages: 1 });
    assert!(even < fair && fair < unfair, "{even} {fair} {unfair}");
    close(costs.uneven(8, true), 4.0 * 4.0 / 7.0, "four of seven choices are in one group");
}

#[test]
fn fleets_grow_with_replicas_and_profit_from_a_router_that_remembers() {
    let mut costs = sparks(20.0);
    costs.node.batches =
        vec![Batch { sessions: 8, seconds: 0.1 }, Batch { sessions: 16, seconds: 0.16 }];
    let single = Layout { tensor: 1, stages: 1 };
    let load = Load { sessions: 64, prompt: 8192, answer: 512, kept: 0.9 };
    let four = costs.fleet(single, 4, load);
    // 16 sessions each: 0.16 s a step, and a tenth of the prompt.
    let each = 819.2 * 0.0012 + 512.0 * 0.16 / 16.0;
    close(four.requests, 4.0 / each, "requests");
    close(four.tokens, 512.0 * 4.0 / each, "tokens");
    assert!(four.tokens_unrouted < four.tokens);
    assert!(costs.fleet(single, 8, load).tokens > four.tokens);
    let alone = costs.fleet(single, 1, load);
    close(alone.tokens, alone.tokens_unrouted, "one replica is always the right one");
}

#[test]
fn every_use_of_64_ranks_uses_them_all() {
    let load = Load { sessions: 64, prompt: 2048, answer: 128, kept: 0.5 };
    let costs = documented();
    for ranks in [1, 2, 4, 8, 16, 32, 64] {
        let lines = costs.plan(ranks, load);
        assert!(!lines.is_empty());
        for line in lines {
            assert_eq!(line.layout.ranks() * line.replicas, ranks, "{}", line.layout.name());
            assert!(line.layout.stages <= costs.model.layers);
            for rate in [line.rates.decode, line.rates.prefill, line.fleet.tokens] {
                assert!(rate > 0.0 && rate.is_finite(), "{line:?}");
            }
        }
    }
}

#[test]
fn the_documented_file_comes_back_and_others_are_refused_with_the_reason() {
    let costs = documented();
    let text = serde_json::to_string(&serde_json::json!({"costs": costs, "more": 1})).unwrap();
    assert_eq!(Costs::from_json(&text), Ok(costs.clone()), "as a part of a report");
    let broken = |change: &dyn Fn(&mut Costs)| {
        let mut costs = costs.clone();
        change(&mut costs);
        Costs::from_json(&serde_json::to_string(&costs).unwrap()).expect_err("it is wrong")
    };
    type Change = (&'static str, Box<dyn Fn(&mut Costs)>);
    let changes: [Change; 8] = [
        ("layers", Box::new(|c| c.model.layers = 0)),
        ("a share is 0 to 1", Box::new(|c| c.model.replicated = 1.5)),
        ("a time is above 0", Box::new(|c| c.node.decode_seconds = 0.0)),
        ("two ranks", Box::new(|c| c.link.ranks = 1)),
        ("two ranks and a size", Box::new(|c| c.link.gates.clear())),
        ("sizes grow", Box::new(|c| c.link.gates.reverse())),
        (
            "2 or more",
            Box::new(|c| {
                c.parts = vec![PartCosts { ranks: 1, decode_seconds: 1.0, prefill_seconds: 1.0 }]
            }),
        ),
        ("experts", Box::new(|c| c.experts = Some(Experts { used: 9, popularity: vec![1.0] }))),
    ];
    for (reason, change) in changes {
        let found = broken(&*change);
        assert!(found.contains(reason), "{reason}: {found}");
    }
    for (text, reason) in [("{", "no JSON"), ("{}", "model"), ("[1]", "doctor --cluster")] {
        let found = Costs::from_json(text).expect_err(text);
        assert!(found.contains(reason), "{text}: {found}");
    }
}
