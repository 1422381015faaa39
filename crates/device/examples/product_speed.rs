//! Speed of matrix products: `cargo run --release -p ironstar-device --example product_speed --
//! [isa] [threads] [format] [rows columns]`.
//!
//! For each format and shape: one input row (what decoding does) in GB/s of weights, and 256 rows
//! (what prefill does) in GOP/s (a multiplication and an addition are two), through
//! [`Backend::project`], so the rounding of the inputs is included.

use ironstar_device::{Backend, Cpu, CpuConfig, Element, Isa, MatrixSource, Project, Step};
use ironstar_quant::{FORMATS, Format};
use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHAPES: [(usize, usize); 2] = [(256, 256), (2048, 4096)];
const ROWS: [usize; 2] = [1, 256];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let isa = arguments.next();
    let threads = arguments.next().map_or(Ok(1), |threads| threads.parse())?;
    let format = arguments.next();
    let shape: Vec<usize> = arguments.map(|size| size.parse()).collect::<Result<_, _>>()?;
    let shapes = if let [rows, columns] = shape[..] { &[(rows, columns)] } else { &SHAPES[..] };
    let mut out = std::io::stdout().lock();
    writeln!(out, "isa     threads format   shape      decode us   GB/s   prefill us   GOP/s")?;
    for set in Isa::available().filter(|set| isa.as_ref().is_none_or(|isa| set.name() == *isa)) {
        for info in FORMATS.iter().filter(|info| format.as_ref().is_none_or(|f| info.name == *f)) {
            for &(rows, columns) in shapes {
                let mut cpu =
                    Cpu::new(CpuConfig { threads, isa: Some(set), float_products: false })?;
                let [decode, prefill] = measure(&mut cpu, info.format, rows, columns)?;
                let bytes = (rows * columns / info.block_elements * info.block_bytes) as f64;
                let operations = (2 * ROWS[1] * rows * columns) as f64;
                let (decode_us, prefill_us) =
                    (decode.as_secs_f64() * 1e6, prefill.as_secs_f64() * 1e6);
                let (name, format) = (set.name(), info.name);
                let (read, done) = (bytes / decode_us / 1e3, operations / prefill_us / 1e3);
                writeln!(
                    out,
                    "{name:7} {threads:7} {format:8} {rows:4}x{columns:4} {decode_us:10.2} \
                     {read:6.2} {prefill_us:12.1} {done:7.1}"
                )?;
            }
        }
    }
    Ok(())
}

/// Best time of a product for each of `ROWS`.
fn measure(
    cpu: &mut Cpu,
    format: Format,
    rows: usize,
    columns: usize,
) -> Result<[Duration; 2], Box<dyn Error>> {
    let info = format.info();
    // Any codes, scales of ordinary size: subnormal numbers would be slow, and models have none.
    let mut bytes: Vec<u8> = (0..rows * columns / info.block_elements * info.block_bytes)
        .map(|i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[1] & 0x3f)
        .collect();
    for block in bytes.chunks_exact_mut(info.block_bytes) {
        match format {
            Format::F32 => block[3] = 0x3f,
            Format::Bf16 => block[1] = 0x3f,
            Format::Mxfp4 => block[0] = 120,
            _ => {}
        }
    }
    let bytes = Arc::new(bytes);
    let matrix = cpu.matrix(MatrixSource {
        name: "weights",
        format,
        rows,
        columns,
        stack: 1,
        bytes,
        planes: None,
    })?;
    let mut best = [Duration::MAX; 2];
    for (n, best) in ROWS.into_iter().zip(&mut best) {
        let arena = cpu.arena();
        let x = cpu.alloc(arena, Element::F32, n * columns)?;
        let y = cpu.alloc(arena, Element::F32, n * rows)?;
        let values: Vec<f32> = (0..n * columns).map(|i| (i % 97) as f32 - 48.0).collect();
        cpu.write_f32(x, 0, &values)?;
        cpu.begin(&Step::single(&vec![0; n], 0))?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            let start = Instant::now();
            cpu.project(&Project { x, rows: n, outputs: &[(matrix, y)] })?;
            *best = start.elapsed().min(*best);
        }
        cpu.release(arena);
    }
    Ok(best)
}
