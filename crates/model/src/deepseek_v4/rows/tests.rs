use super::*;

#[test]
fn every_rank_has_rows_at_multiples_of_four_or_nobody_has() {
    for ranks in [2, 4, 8] {
        for rows in 1..300 {
            let Some(starts) = starts(rows, ranks) else {
                assert!(rows < 12 * ranks, "{rows} over {ranks}");
                continue;
            };
            assert_eq!((starts.len(), starts[0], starts[ranks]), (ranks + 1, 0, rows));
            let lens: Vec<usize> = starts.windows(2).map(|range| range[1] - range[0]).collect();
            let (least, most) = (lens.iter().min().unwrap(), lens.iter().max().unwrap());
            assert!(*least >= 8 && most - least <= 8, "{starts:?}");
            assert!(starts[..ranks].iter().all(|start| start % 4 == 0), "{starts:?}");
        }
    }
}
