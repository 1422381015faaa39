use super::{PLACES, Plan, SHORT_TILE, UNROLL, plan};
use crate::gpu::arguments::ProductArgs;
use ironstar_quant::{FORMATS, Format};

fn arguments(columns: u32, rows: [u32; 4], slots: u32) -> ProductArgs {
    ProductArgs { columns, rows, slots, groups: 1, ..ProductArgs::default() }
}

/// The matrices of Flash keep a card of 132 multiprocessors busy with groups that are all resident.
#[test]
fn large_matrices_are_shared_out_and_small_ones_are_cut_fine() {
    let q8 = |columns, rows| plan(132, Format::Q8_0, &arguments(columns, [rows, 0, 0, 0], 1));
    let name = "decode_q8_0";
    assert_eq!(q8(4096, 129_280), Some(Plan { name, group: 256, rows: 4, groups: 528 }));
    assert_eq!(q8(1024, 32_768), Some(Plan { name, group: 256, rows: 16, groups: 528 }));
    assert_eq!(q8(8192, 4096), Some(Plan { name, group: 512, rows: 4, groups: 264 }));
    assert_eq!(q8(4096, 512), Some(Plan { name, group: 256, rows: 4, groups: 128 }));
    assert_eq!(q8(16_384, 512), None, "a row has more units than a group has threads");
    let experts = plan(132, Format::Iq2Xxs, &arguments(4096, [2048, 2048, 0, 0], 6));
    let name = "decode_iq2_xxs";
    assert_eq!(experts, Some(Plan { name, group: 256, rows: 16, groups: 66 }));
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
                let found = plan(132, info.format, &arguments(columns, rows, 3));
                let Some(plan) = found else { continue };
                let runs = rows.iter().map(|rows| rows.div_ceil(plan.rows)).sum::<u32>();
                assert!(plan.groups >= 1 && plan.groups <= runs && plan.rows < 1 << 16);
                if elements == 1 {
                    assert_eq!(plan.groups, runs, "float groups make one run each");
                    let fits = plan.rows * 8 * 16 * ((columns / 64) | 1) <= SHORT_TILE;
                    assert!(plan.rows <= 4 || fits);
                } else {
                    let pitch = (columns / elements).div_ceil(8) | 1;
                    assert!(plan.rows * 8 * pitch <= PLACES && plan.rows.is_multiple_of(UNROLL));
                    assert!(plan.rows * 8 <= plan.group);
                }
            }
        }
    }
    let ragged = plan(132, Format::F16, &arguments(40, [8, 0, 0, 0], 1));
    assert_eq!(ragged, None, "rows that are no whole units of 32");
}
