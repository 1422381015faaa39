//! One kernel, or all of them, alone on a card, at the sizes of V4 Flash:
//! `kernel_bench [NAME] [--rows N,N,...] [--rounds N] [--disable SHORTCUT]... [--exact]
//! [--list]`, or `cargo xtask kernel-bench`.
//!
//! NAME is (a part of) an operation of the list, else of a kernel. Each operation runs with weights
//! that take turns, so that none comes from a cache; small tables and the input do, as in a token.
//! Every kernel is timed by itself, with an event before and behind, which costs it about two
//! microseconds and keeps it from starting early. `--exact` measures the exact mode, whose products
//! are of floats. The bound is the larger of what must be read at
//! the bandwidth measured first, and what must be computed at the rate of the unit.
#![expect(clippy::print_stdout, reason = "a measuring tool")]

use ironstar_device::{
    Backend, CudaConfig, Gpu, GpuConfig, KernelTime, KernelTimes, Shortcuts, Step, cuda_devices,
    cuda_read_bandwidth,
};
use ironstar_quant::Format;
use std::error::Error;
use std::process::ExitCode;

#[expect(dead_code, reason = "the processor has another model too")]
mod ops;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Weights that take turns.
const ROTATE: usize = 512 << 20;
const ROWS: [usize; 3] = [1, 4, 512];
const ROUNDS: usize = 20;
/// Most rows of a step.
const ROWS_MAX: usize = 8192;

struct Words {
    name: String,
    rows: Vec<usize>,
    rounds: usize,
    disabled: Shortcuts,
    exact: bool,
    list: bool,
}

fn words() -> Outcome<Words> {
    let mut words = Words {
        name: String::new(),
        rows: ROWS.to_vec(),
        rounds: ROUNDS,
        disabled: Shortcuts::NONE,
        exact: false,
        list: false,
    };
    let mut all = std::env::args().skip(1);
    while let Some(word) = all.next() {
        let mut value = || all.next().ok_or_else(|| format!("{word} needs a value"));
        match &word[..] {
            "--list" => words.list = true,
            "--rows" => {
                let rows = value()?;
                words.rows = rows.split(',').map(str::parse).collect::<Result<_, _>>()?;
                if let Some(wrong) = words.rows.iter().find(|n| !(1..=ROWS_MAX).contains(*n)) {
                    return Err(format!("--rows {wrong}: 1 to {ROWS_MAX} are possible").into());
                }
            }
            "--rounds" => words.rounds = value()?.parse::<usize>()?.clamp(1, 10_000),
            "--exact" => words.exact = true,
            "--disable" => words.disabled = words.disabled.with(Shortcuts::named(&value()?)?),
            _ if word.starts_with("--") || !words.name.is_empty() => {
                return Err(
                    format!("{word:?} is not understood; see the page of the example").into()
                );
            }
            _ => words.name = word,
        }
    }
    Ok(words)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("kernel_bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let words = words()?;
    if words.list {
        for (name, _) in ops::TABLE {
            println!("{name}");
        }
        return Ok(());
    }
    let cards = cuda_devices()?;
    let card = cards.first().ok_or("no card was found")?;
    let cache = std::env::home_dir().map(|home| home.join(".cache/ironstar/kernels"));
    let cuda = CudaConfig { cache, ..CudaConfig::default() };
    let bandwidth = cuda_read_bandwidth(&cuda)?;
    println!("{}: reads {:.2} TB/s", card.name, bandwidth / 1e12);
    let named: Vec<&ops::Entry> =
        ops::TABLE.iter().filter(|(name, _)| name.contains(&words.name)).collect();
    // Not an operation: a kernel of any of them.
    let (entries, kernel) = match named.is_empty() {
        true => (ops::TABLE.iter().collect(), Some(&words.name[..])),
        false => (named, None),
    };
    let mut found = false;
    for rows in &words.rows {
        println!("{rows} rows");
        for entry in &entries {
            found |= measure(entry, *rows, kernel, (&words, &cuda, bandwidth))?;
        }
    }
    if !found {
        return Err(
            format!("no operation and no kernel is called {:?}; see --list", words.name).into()
        );
    }
    Ok(())
}

/// Runs an operation, and shows it if it has the kernel that is wanted.
fn measure(
    (name, make): &ops::Entry,
    rows: usize,
    kernel: Option<&str>,
    (words, cuda, bandwidth): (&Words, &CudaConfig, f64),
) -> Outcome<bool> {
    let times = KernelTimes::default();
    let cuda = CudaConfig { times: Some(times.clone()), ..cuda.clone() };
    let (disabled, float_products) = (words.disabled, words.exact);
    let config = GpuConfig { disabled, float_products, ..GpuConfig::default() };
    let mut gpu = Gpu::cuda(&cuda, config)?;
    let shape = &ops::FLASH;
    let tokens: Vec<u32> = (0..).take(rows).collect();
    let step = Step::single(&tokens, shape.position);
    gpu.begin(&step)?;
    let arena = gpu.arena();
    let mut case =
        make(&mut ops::Maker { backend: &mut gpu, arena, shape, n: rows, rotate: ROTATE });
    for round in 0..words.rounds + 3 {
        if round == 3 {
            gpu.finish()?;
            // What came before is warming up.
            drop(times.take());
        }
        gpu.begin(&step)?;
        (case.run)(&mut gpu)?;
    }
    gpu.finish()?;
    let kernels = times.take();
    if kernel.is_some_and(|wanted| !kernels.iter().any(|(own, _)| own.contains(wanted))) {
        return Ok(false);
    }
    show(name, &case, &kernels, (words.rounds, bandwidth));
    Ok(true)
}

fn show(
    name: &str,
    case: &ops::Case,
    kernels: &[(&'static str, KernelTime)],
    (rounds, bandwidth): (usize, f64),
) {
    #[expect(clippy::cast_precision_loss, reason = "rates for people")]
    let float = |number: usize| number as f64;
    let all: f64 = kernels.iter().map(|(_, time)| time.milliseconds * 1e3 / float(rounds)).sum();
    let (bytes, operations) = (float(case.bytes), float(case.operations));
    let peak = tops(case.unit) * 1e12;
    let (read, computed) = (bytes / bandwidth * 1e6, operations / peak * 1e6);
    let (bound, by) = if read >= computed { (read, "reading") } else { (computed, "computing") };
    println!(
        "  {name:<22} {all:9.2} us  {:8.3} MB {:6.3} TB/s  {:9.3} GOP {:7.1} TOPS  bound \
         {bound:8.2} us by {by}: {:5.1} %",
        bytes / 1e6,
        bytes / all / 1e6,
        operations / 1e9,
        operations / all / 1e6,
        100.0 * bound / all,
    );
    for (kernel, time) in kernels {
        #[expect(clippy::cast_precision_loss, reason = "a few launches")]
        let launches = time.launches as f64;
        println!(
            "    {kernel:<34} {:6.2} a call {:9.2} us each",
            launches / float(rounds),
            time.milliseconds * 1e3 / launches
        );
    }
}

/// Rate of a unit under the rules of DESIGN 5, measured once on an H200 (`mma.sync`, operands in
/// registers or shared memory).
fn tops(unit: ops::Unit) -> f64 {
    match unit {
        ops::Unit::Int8(Format::Q8_0 | Format::Mxfp4) => 1121.0,
        ops::Unit::Int8(Format::Q2K) => 774.0,
        ops::Unit::Int8(Format::Iq2Xxs | Format::Q4K) => 872.0,
        // Fused multiply-adds of floats, by the data sheet.
        ops::Unit::Int8(_) => 67.0,
        ops::Unit::Bf16 => 654.0,
        ops::Unit::None => f64::INFINITY,
    }
}
