//! Chosen experts, a slot after the other (`fast/top_experts.k`), have the bits of the CPU, on the
//! host driver: rows of several answers, experts that several of them chose, matrices of other
//! formats beside them, and rows that are no whole sets.

use crate::common::{Bench, Numbers, bits, encode};
use ironstar_device::*;
use ironstar_quant::Format;
use std::sync::Arc;

struct Case {
    rows: usize,
    d: usize,
    inner: usize,
    gate: Format,
    down: Format,
    /// Experts, and how many of them a row chooses.
    stack: usize,
    top_k: usize,
}

/// Blocks of random bytes, with halves of a usual size where the format has floats.
fn blocks(numbers: &mut Numbers, format: Format, elements: usize) -> Arc<Vec<u8>> {
    let info = format.info();
    let halves: &[usize] = match format {
        Format::Iq2Xxs | Format::Q8_0 => &[0],
        Format::Q2K => &[80, 82],
        Format::Q4K => &[0, 2],
        _ => return encode(format, &numbers.floats(elements, 0.2)),
    };
    let mut bytes = vec![0u8; elements / info.block_elements * info.block_bytes];
    for word in bytes.chunks_mut(8) {
        let own = numbers.next().to_le_bytes();
        word.copy_from_slice(&own[..word.len()]);
    }
    for block in bytes.chunks_mut(info.block_bytes) {
        for at in halves {
            // From 2^-9 to 2^-8, of either sign.
            block[at + 1] = 0x18 | (block[at + 1] & 0x83);
        }
    }
    Arc::new(bytes)
}

fn experts_of(mut bench: Bench, case: &Case) -> Vec<u32> {
    let Case { rows, d, inner, gate, down, stack, top_k } = *case;
    let mut numbers = Numbers(41);
    bench.cpu.begin(&Step::single(&vec![0; rows], 0)).expect("a step");
    let mut ffn = |stack: usize, inner: usize, [gate, down]: [Format; 2]| {
        let mut matrix = |format, rows: usize, columns: usize| {
            let bytes = blocks(&mut numbers, format, stack * rows * columns);
            bench.encoded(format, [stack, rows, columns], bytes)
        };
        Ffn {
            gate: matrix(gate, inner, d),
            up: matrix(gate, inner, d),
            down: matrix(down, d, inner),
        }
    };
    let routed = ffn(stack, inner, [gate, down]);
    let shared = match (rows, d, inner) == (1, 4096, 2048) {
        true => ffn(1, inner, [Format::Q8_0; 2]),
        false => ffn(1, 32, [gate, Format::F32]),
    };
    let x = bench.floats(&numbers.floats(rows * d, 1.0));
    // All but some, which are other ones in the next row.
    let left = |row: usize| (0..stack - top_k).map(move |i| (row + 1 + i) % stack);
    let own = |row| (0..stack).filter(move |expert| !left(row).any(|other| other == *expert));
    let ids = (0..rows).flat_map(own).map(|id| u32::try_from(id).expect("small"));
    let ids: Vec<u32> = ids.collect();
    let weights = bench.floats(&numbers.floats(rows * top_k, 1.0));
    let (ids, out) = (bench.ids(&ids), bench.zeros(rows * d));
    let a = Experts { x, routed, shared, ids, weights, top_k, limit: 7.0, out };
    bench.cpu.experts(&a).expect("fits");
    bits(&bench.read(out))
}

#[test]
fn slots_of_chosen_experts() {
    let without = |disabled| GpuConfig { disabled, ..GpuConfig::default() };
    let others = without(Shortcuts::FEW.with(Shortcuts::STAGED));
    let case = |rows, d, inner, gate, down| Case { rows, d, inner, gate, down, stack: 3, top_k: 2 };
    let cases = [
        case(1, 4096, 256, Format::Iq2Xxs, Format::Q4K),
        case(5, 4096, 256, Format::Iq2Xxs, Format::Q4K),
        case(1, 256, 2048, Format::Iq2Xxs, Format::Q2K),
        case(2, 4096, 256, Format::Q4K, Format::Iq2Xxs),
        case(3, 256, 2048, Format::Iq2Xxs, Format::Q4K),
        // Sets of rows that are not whole.
        case(3, 38, 2048, Format::F32, Format::Q2K),
        case(2, 38, 2048, Format::F32, Format::Mxfp4),
        case(1, 4096, 90, Format::Mxfp4, Format::F32),
        case(3, 4096, 256, Format::Mxfp4, Format::Q4K),
        // An expert has many slots; and more slots than are looked through for such.
        Case { stack: 7, top_k: 5, ..case(13, 38, 2048, Format::F32, Format::Q2K) },
        Case { stack: 10, top_k: 9, ..case(16, 38, 2048, Format::F32, Format::Q2K) },
        // All of a step's matrices: slots are not sorted.
        case(2, 4096, 2048, Format::Iq2Xxs, Format::Q2K),
    ];
    for (index, case) in cases.iter().enumerate() {
        let found = experts_of(Bench::gpu(), case);
        assert!(found == experts_of(Bench::scalar(), case), "case {index}");
        if case.d < 4096 || case.inner < 2048 {
            let other = experts_of(Bench::gpu_with(others), case);
            assert!(found == other, "case {index}, other kernels");
            let registers = experts_of(Bench::gpu_with(without(Shortcuts::POOLED)), case);
            assert!(found == registers, "case {index}, weights by registers");
        }
    }
}

/// The shared expert in the launches of the chosen ones (`fast/top_shared.k`), against the CPU.
#[test]
fn the_shared_expert_with_the_chosen_ones() {
    let (gate, down) = (Format::Iq2Xxs, Format::Q2K);
    let case = Case { rows: 1, d: 4096, inner: 2048, gate, down, stack: 3, top_k: 2 };
    let shared = Shortcuts::named("shared").expect("it is one");
    let required = GpuConfig { required: shared, ..GpuConfig::default() };
    let found = experts_of(Bench::gpu_with(required), &case);
    assert!(found == experts_of(Bench::scalar(), &case));
}
