//! Attention of very many rows with 64 heads in a group has the bits of sixteen in a group, and so
//! have the blocks that it leaves to the product behind it.

use crate::common::{Numbers, bits, encode};
use ironstar_device::*;
use ironstar_quant::Format;

const HEADS: usize = 60;
const ROWS: usize = 17;
const WINDOW: usize = 40;
const RING: usize = 64;

struct Case {
    width: usize,
    position: usize,
    ratio: usize,
    top_k: usize,
}

fn keys(gpu: &mut Gpu, arena: Arena, numbers: &mut Numbers, values: usize) -> Buffer {
    let values = numbers.floats(values, 1.0);
    let bytes = values.iter().flat_map(|v| ironstar_quant::f32_to_bf16(*v).to_le_bytes());
    let buffer = gpu.alloc(arena, Element::Bf16, values.len()).expect("small");
    gpu.write(buffer, 0, &bytes.collect::<Vec<u8>>()).expect("fits");
    buffer
}

/// The rows that attention makes of random queries and keys, their products with a matrix of Q8_0,
/// and the kernels of attention that ran. With `eps` the queries are what `query_heads` makes with
/// it.
fn attended(
    disabled: Shortcuts,
    case: &Case,
    count: usize,
    eps: Option<Option<f32>>,
) -> (Vec<u32>, Vec<&'static str>) {
    let config = GpuConfig { disabled, ..GpuConfig::default() };
    let mut gpu = Gpu::host(config).unwrap_or_else(|error| panic!("{error}"));
    let arena = gpu.arena();
    let mut numbers = Numbers(case.position as u64);
    let frequencies: Vec<f32> = (0..16).map(|i| 0.7f32.powi(i)).collect();
    let rope = gpu.rope(&frequencies).expect("a table");
    gpu.begin(&Step::single(&vec![0; count], case.position)).expect("a step");
    let seen = case.position + count;
    let [ring, kv, compressed] =
        [RING, count, seen].map(|rows| keys(&mut gpu, arena, &mut numbers, rows * case.width));
    let floats = |gpu: &mut Gpu, values: &[f32]| {
        let buffer = gpu.alloc(arena, Element::F32, values.len()).expect("small");
        gpu.write_f32(buffer, 0, values).expect("fits");
        buffer
    };
    let q = floats(&mut gpu, &numbers.floats(count * HEADS * case.width, 2.0));
    let sinks = floats(&mut gpu, &numbers.floats(HEADS, 1.0));
    let out = floats(&mut gpu, &vec![0.0; count * HEADS * case.width]);
    let choice = (0..count).flat_map(|row| (0..case.top_k).map(move |i| i + usize::from(i > row)));
    let choice = choice.flat_map(|i| u32::try_from(i).expect("small").to_le_bytes());
    let chosen = gpu.alloc(arena, Element::U32, (count * case.top_k).max(1)).expect("small");
    gpu.write(chosen, 0, &choice.collect::<Vec<u8>>()).expect("fits");
    let (rows, rings) = ([compressed], [ring]);
    let compressed = CompressedRows {
        rows: &rows,
        ratio: case.ratio.max(1),
        choice: (case.top_k > 0).then_some((chosen, case.top_k)),
    };
    let attend = Attend {
        q,
        kv,
        sinks,
        heads: HEADS,
        rope,
        window: WINDOW,
        mutual: false,
        rings: &rings,
        capacity: RING,
        compressed: (case.ratio > 0).then_some(compressed),
        out,
    };
    if let Some(eps) = eps {
        let call = QueryHeads { q, heads: HEADS, width: case.width, eps, rope };
        gpu.query_heads(&call).expect("fits");
    }
    gpu.attend(&attend).expect("fits");
    let bytes = encode(Format::Q8_0, &numbers.floats(HEADS * case.width, 1.0));
    let (rows, columns, planes) = (HEADS, case.width, None);
    let source =
        MatrixSource { name: "m", format: Format::Q8_0, rows, columns, stack: 1, bytes, planes };
    let matrix = gpu.matrix(source).expect("small");
    let products = gpu.alloc(arena, Element::F32, ROWS * HEADS).expect("small");
    let grouped = ProjectGrouped { x: out, matrix, groups: HEADS, out: products };
    gpu.project_grouped(&grouped).expect("fits");
    let mut values = vec![0f32; out.len + products.len];
    let (of_heads, of_products) = values.split_at_mut(out.len);
    gpu.read_f32(out, 0, of_heads).expect("fits");
    gpu.read_f32(products, 0, of_products).expect("fits");
    assert!(values.iter().all(|v| v.is_finite()), "finite numbers");
    let own = |name: &str| name.starts_with("attend") || name.starts_with("query_heads");
    let run = gpu.launches().kernels.into_iter();
    let run = run.filter(|(name, count)| *count > 0 && own(name));
    (bits(&values), run.map(|(name, _)| name).collect())
}

/// From a row with a single key on to several tiles of keys, chosen ones and all.
#[test]
fn heads_that_share_keys() {
    let cases = [
        Case { width: 128, position: 0, ratio: 0, top_k: 0 },
        Case { width: 128, position: 90, ratio: 1, top_k: 0 },
        Case { width: 128, position: 200, ratio: 4, top_k: 37 },
        Case { width: 512, position: 0, ratio: 0, top_k: 0 },
        Case { width: 512, position: 200, ratio: 4, top_k: 37 },
    ];
    for case in cases {
        let without = |disabled, name| {
            let (bits, kernels) = attended(disabled, &case, ROWS, None);
            assert_eq!(kernels, [name]);
            bits
        };
        let apart = without(Shortcuts::HEADS, "attend_tiles");
        let together = without(Shortcuts::FOUR, "attend_heads");
        assert!(together == apart, "from {} on: other bits", case.position);
        if case.width == 512 {
            let four = without(Shortcuts::NONE, "attend_four");
            assert!(four == apart, "four, from {} on: other bits", case.position);
        }
    }
}

/// Query heads are made by attention, or before it.
#[test]
fn queries_on_the_way() {
    for eps in [None, Some(1e-6)] {
        let case = Case { width: 512, position: 90, ratio: 1, top_k: 0 };
        let (before, kernels) = attended(Shortcuts::FOUR, &case, ROWS, Some(eps));
        assert_eq!(kernels, ["attend_heads", "query_heads_512"]);
        let (on_the_way, kernels) = attended(Shortcuts::NONE, &case, ROWS, Some(eps));
        assert_eq!(kernels, ["attend_four"]);
        assert!(before == on_the_way, "{eps:?}: other bits");
    }
}

/// One row in one launch, from a single key on to as many as there is room for.
#[test]
fn a_row_in_one_launch() {
    let attend = Shortcuts::named("attend").expect("it is one");
    let case = |position, ratio, top_k| Case { width: 512, position, ratio, top_k };
    let cases =
        [case(0, 0, 0), case(30, 0, 0), case(90, 1, 0), case(200, 4, 37), case(599, 1, 598)];
    for case in cases {
        for eps in [None, Some(None), Some(Some(1e-6))] {
            let (apart, kernels) = attended(attend, &case, 1, eps);
            assert_eq!(kernels.len(), 3, "{kernels:?}");
            let (together, kernels) = attended(Shortcuts::NONE, &case, 1, eps);
            assert_eq!(kernels, ["attend_row"]);
            assert!(together == apart, "from {} on, {eps:?}: other bits", case.position);
        }
    }
}
