use super::*;

fn times(wait_us: u64) -> GateTimes {
    let us = Duration::from_micros;
    GateTimes {
        gates: 1,
        post: us(1),
        overlap: us(1000),
        wait: us(wait_us),
        exchange: us(2),
        release: us(3),
    }
}

/// Three steps: a prompt's, whose logits nobody wants, a token's, and one that never ended.
fn three_steps() -> Recorder {
    let recorder = Recorder::default();
    let now = Instant::now;
    recorder.step();
    recorder.gate(GateKind::Attention, 64, now(), times(4));
    recorder.step();
    recorder.gate(GateKind::Attention, 16, now(), times(14));
    recorder.gate(GateKind::Ffn, 16, now(), times(24));
    recorder.gate(GateKind::Vocabulary, 8, now(), times(34));
    recorder.step();
    recorder.gate(GateKind::Attention, 16, now(), times(994));
    recorder
}

#[test]
fn a_cycle_is_the_last_step_that_gave_logits() {
    let report = three_steps().report();
    let kinds: Vec<_> = report.cycle().iter().map(|event| (event.step, event.kind)).collect();
    let wanted = [GateKind::Attention, GateKind::Ffn, GateKind::Vocabulary].map(|kind| (2, kind));
    assert_eq!(kinds, wanted);
    let trace = report.trace();
    assert_eq!(trace.lines().count(), 2 + 3, "{trace}");
    assert!(Recorder::default().report().cycle().is_empty());
}

#[test]
fn overlap_is_shown_and_costs_nothing() {
    let report = three_steps().report();
    // 10, 20 and 1000 us: the middle is 20.
    let found = report.quantiles(GateKind::Attention).expect("three gates");
    assert_eq!(found, (Duration::from_micros(20), Duration::from_micros(1000)));
    assert_eq!(report.profile.of(GateKind::Attention).cost(), Duration::from_micros(1030));
    assert_eq!(report.profile.of(GateKind::Attention).overlap, Duration::from_millis(3));
    assert_eq!(report.quantiles(GateKind::Index), None);
    let table = report.table();
    assert_eq!(table.lines().count(), 1 + 3, "a line a kind that was used: {table}");
    let json = report.json(true);
    assert_eq!(json["kinds"][0]["count"], 3);
    assert_eq!(json["trace"].as_array().map(Vec::len), Some(3));
    assert!(report.json(false).get("trace").is_none());
}

#[test]
fn only_the_last_gates_are_kept_one_by_one() {
    let recorder = Recorder::default();
    recorder.step();
    for gate in 0..EVENTS + 5 {
        recorder.gate(GateKind::Ffn, gate, Instant::now(), times(1));
    }
    let report = recorder.report();
    let bytes: Vec<usize> = report.events.iter().map(|event| event.bytes).collect();
    assert!(bytes.iter().copied().eq(5..EVENTS + 5), "oldest first, the last {EVENTS}");
    assert_eq!(report.profile.of(GateKind::Ffn).gates, EVENTS as u64 + 5, "sums are of all");
}
