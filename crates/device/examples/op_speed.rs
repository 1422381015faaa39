//! Microseconds of each operation, for one row and for many, on the processor:
//! `cargo run --release -p ironstar-device --example op_speed -- [nano|flash] [scalar|avx2|avx512]
//! [threads]`. Products have an example of their own, `product_speed`; here only those of a layer.
//!
//! First what a region costs whose parts do nothing. Positions are 4,000 and 20,000 tokens;
//! attention of ratio-4 layers reads its top rows, of ratio-128 layers all rows.
#![expect(clippy::print_stdout, reason = "an example shows its numbers")]

use ironstar_device::{Backend, Cpu, CpuConfig, Isa, Step};
use std::time::Instant;

#[expect(dead_code, reason = "bounds are of cards")]
mod ops;

/// Experts of a layer: as many as fit a small machine.
const FEW_EXPERTS: ops::Shape = ops::Shape { experts: 16, ..ops::FLASH };

/// The best of several rounds, in microseconds.
fn best(cpu: &mut Cpu, run: &mut ops::Run) -> f64 {
    let mut best = f64::INFINITY;
    let start = Instant::now();
    let mut rounds = 0;
    while rounds < 3 || (start.elapsed().as_millis() < 300 && rounds < 200) {
        let begin = Instant::now();
        run(cpu).expect("fits");
        best = best.min(begin.elapsed().as_secs_f64() * 1e6);
        rounds += 1;
    }
    best
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let shape = if has("flash") { &FEW_EXPERTS } else { &ops::NANO };
    let isa = Isa::ALL.into_iter().find(|isa| has(isa.name()));
    let threads = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(0);
    let config = CpuConfig { threads, isa, float_products: false };
    let mut cpu = Cpu::new(config).expect("an instruction set of this machine");
    let nanoseconds = cpu.region_cost(10_000).as_nanos();
    println!("a region of {} threads takes {nanoseconds} ns", cpu.threads());
    for n in [1, 8, 128] {
        println!("{n} rows, {}, {} threads", cpu.isa().name(), cpu.threads());
        for (what, make) in ops::TABLE.iter().filter(|(what, _)| !what.starts_with("project ")) {
            // Weights live as long as the backend.
            let mut cpu = Cpu::new(config).expect("an instruction set of this machine");
            cpu.begin(&Step::single(&vec![0; n], shape.position)).expect("a step");
            let arena = cpu.arena();
            let case = make(&mut ops::Maker { backend: &mut cpu, arena, shape, n, rotate: 0 });
            let mut run = case.run;
            let best = best(&mut cpu, &mut run);
            let rows = u32::try_from(n).expect("few");
            println!("  {what:<28} {best:10.1} us, {:9.2} us a row", best / f64::from(rows));
        }
    }
}
