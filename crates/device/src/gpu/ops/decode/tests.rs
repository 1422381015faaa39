use super::{BLOCKS, FLOAT_ROWS_MAX, Plan, ROWS_MAX, plan};
use crate::gpu::arguments::ProductArgs;
use ironstar_quant::{FORMATS, Format};

fn arguments(columns: u32, rows: [u32; 4], slots: u32) -> ProductArgs {
    ProductArgs { columns, rows, slots, groups: 1, ..ProductArgs::default() }
}

/// The largest matrices of Flash are cut so that a card of 132 multiprocessors is busy.
#[test]
fn large_matrices_have_long_runs_and_small_ones_short() {
    let q8 = |columns, rows| plan(Format::Q8_0, &arguments(columns, [rows, 0, 0, 0], 1));
    let name = "decode_q8_0";
    assert_eq!(q8(4096, 129_280), Some(Plan { name, rows_each: 16, runs: 8080 }));
    assert_eq!(q8(4096, 4096), Some(Plan { name, rows_each: 4, runs: 1024 }));
    assert_eq!(q8(4096, 512), Some(Plan { name, rows_each: 1, runs: 512 }));
    let experts = plan(Format::Iq2Xxs, &arguments(4096, [2048, 2048, 0, 0], 6));
    let name = "decode_iq2_xxs";
    assert_eq!(experts, Some(Plan { name, rows_each: 16, runs: 256 }));
}

/// No run needs more shared memory than there is, and all rows are in some run.
#[test]
fn runs_fit_and_cover() {
    for info in FORMATS {
        for columns in [32u32, 64, 96, 256, 2048, 2304, 4096, 7168, 16_384, 65_536, 1 << 20] {
            let elements = u32::try_from(info.block_elements).expect("at most 256");
            if !columns.is_multiple_of(elements) {
                continue;
            }
            for rows in [[1, 0, 0, 0], [24, 5, 0, 0], [4096, 512, 7, 129_280]] {
                let Some(plan) = plan(info.format, &arguments(columns, rows, 3)) else { continue };
                let each = plan.rows_each;
                assert!(each.is_power_of_two());
                assert_eq!(plan.runs, rows.iter().map(|rows| rows.div_ceil(each)).sum::<u32>());
                if elements == 1 {
                    assert!(each <= FLOAT_ROWS_MAX);
                } else {
                    let blocks = (columns / elements).next_multiple_of(8);
                    assert!(each <= ROWS_MAX && each * blocks <= BLOCKS);
                }
            }
        }
    }
    let ragged = plan(Format::F16, &arguments(40, [8, 0, 0, 0], 1));
    assert_eq!(ragged, None, "rows that are no whole units of 32");
}
