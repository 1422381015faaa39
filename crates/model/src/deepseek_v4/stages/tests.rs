use super::*;
use proptest::prelude::*;

#[test]
fn a_cut_is_read_as_it_is_written() {
    for (text, ranges) in
        [("0-20,21-42", vec![0..21, 21..43]), ("0,1-2, 3", vec![0..1, 1..3, 3..4])]
    {
        let stages = Stages::parse(text).expect("a cut");
        let found: Vec<_> = (0..stages.count()).map(|stage| stages.range(stage)).collect();
        assert_eq!(found, ranges);
        assert_eq!(Stages::parse(&stages.to_string()).expect("our own text"), stages);
        for (stage, range) in ranges.into_iter().enumerate() {
            assert!(range.clone().all(|layer| stages.of_layer(layer) == stage));
        }
    }
    for (text, reason) in [
        ("0-3", "1 nodes"),
        ("1-3,4", "begins with layer 0"),
        ("0-3,5-6", "begins with layer 4"),
        ("0-3,4-2", "begins with layer 4"),
        ("0-3,x", "layers `x`"),
        ("", "layers ``"),
        ("0-99999999999999999999,1", "layers `0-9"),
    ] {
        let error = Stages::parse(text).expect_err("no cut").to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    let error = Stages::parse("0-1,2").expect("a cut").check(4).expect_err("one too few");
    assert!(error.to_string().contains("layers 0 to 3"), "{error}");
}

proptest! {
    /// No cut has a lighter heaviest node than the one that is chosen: all are tried.
    #[test]
    fn the_heaviest_node_is_as_light_as_can_be(
        costs in prop::collection::vec(0u64..50, 4..9),
        nodes in 2usize..5,
    ) {
        let heaviest = |stages: &Stages| {
            let sum = |stage| costs[stages.range(stage)].iter().sum::<u64>();
            (0..stages.count()).map(sum).max().unwrap_or(0)
        };
        let chosen = Stages::balanced(&costs, nodes).expect("enough layers");
        prop_assert_eq!((chosen.count(), chosen.range(nodes - 1).end), (nodes, costs.len()));
        let layers = costs.len();
        let least = (0u32..1 << (layers - 1))
            .filter(|cuts| usize::try_from(cuts.count_ones()).expect("few") == nodes - 1)
            .map(|cuts| {
                let inner = (1..layers).filter(|at| cuts >> (at - 1) & 1 == 1);
                heaviest(&Stages::new(inner.chain([layers]).collect()).expect("a cut"))
            })
            .min();
        prop_assert_eq!(Some(heaviest(&chosen)), least);
    }
}
