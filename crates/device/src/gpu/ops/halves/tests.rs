use super::*;

/// Rows are cut until there are as many runs as multiprocessors, and no run is of one row.
#[test]
fn runs_fill_the_device() {
    for (rows, run) in [([2624, 0, 0, 0], 16), ([256, 0, 0, 0], 2), ([1024, 64, 0, 0], 8)] {
        let mut a = ProductArgs { rows, ..ProductArgs::default() };
        let found = cut(132, &mut a);
        assert_eq!(a.run, run, "{rows:?}");
        assert_eq!(found, rows.iter().map(|rows| rows.div_ceil(run)).sum::<u32>());
    }
}
