use super::*;

/// Rows of a half, by token and position, are those of the step.
#[test]
fn halves_have_all_rows_of_a_step_and_no_other() {
    let spans = [0..3, 3..4, 4..9, 9..10];
    let positions = [40, 7, 0, 90];
    let step = Step {
        tokens: (0..10).collect(),
        spans: spans
            .into_iter()
            .zip(positions)
            .map(|(rows, position)| Span { rows, position })
            .collect(),
    };
    let places = |step: &Step, first: usize| -> Vec<(usize, u32, usize)> {
        let of = |(index, span): (usize, &Span)| {
            let (span, tokens) = (span.clone(), step.tokens.clone());
            span.rows
                .clone()
                .map(move |row| (first + index, tokens[row], span.position + row - span.rows.start))
        };
        step.spans.iter().enumerate().flat_map(of).collect()
    };
    let mut backend = ironstar_device::Cpu::new(ironstar_device::CpuConfig::default()).unwrap();
    let (shape, options) = (crate::testing::Tiny::small(1).shape, crate::Options::default());
    let arena = ironstar_device::Backend::arena(&mut backend);
    let none = super::super::scratch::For::None;
    let scratch = Scratch::new(&shape, &options, none, &mut backend, arena).unwrap();
    for cut in 1..10 {
        let [one, two] = [0..cut, cut..10].map(|rows| Half::of(&step, rows, scratch));
        let mut both = places(&one.step, one.spans.start);
        both.extend(places(&two.step, two.spans.start));
        assert_eq!(both, places(&step, 0), "cut at {cut}");
        assert!(one.spans.end <= 4 && two.spans.end == 4);
    }
}

#[test]
fn halves_without_rows_or_room_are_refused() {
    let cut = |first_rows| Shared { first_rows, ..Shared::default() };
    assert!(cut(0).check(7, 0).is_ok(), "whole");
    assert!(cut(4).check(8, 4).is_ok());
    for (first, rows, room) in [(3, 8, 4), (8, 8, 4), (9, 8, 4), (usize::MAX, 8, 4)] {
        assert!(cut(first).check(rows, room).is_err(), "{first} of {rows}, {room}");
    }
}
