//! Measures the sampler: median time a token of a full-size vocabulary, by settings and spread of
//! the logits, in processor time and by the clock.
//!
//! `cargo run --release -p ironstar-engine --example sampler`; Unix only.
#![expect(clippy::print_stdout, reason = "a measuring tool")]

mod clock;

use clock::processor_time;
use ironstar_engine::sampler::{Sampler, Settings};
use std::time::Instant;

const TOKENS: usize = 129_280;
const RUNS: usize = 301;

fn main() -> Result<(), ironstar_engine::Error> {
    let plain = Settings { min_p: 0.0, ..Settings::default() };
    let all = [
        ("greedy", Settings::greedy()),
        ("no filter", plain),
        ("top_p 0.95", Settings { top_p: 0.95, ..plain }),
        ("top_p 0.9, T 0.7", Settings { top_p: 0.9, temperature: 0.7, ..plain }),
        ("min_p 0.05", Settings { min_p: 0.05, ..plain }),
        ("top_k 40, top_p 0.95", Settings { top_k: 40, top_p: 0.95, ..plain }),
        ("top_p 0.95, 20 logprobs", Settings { top_p: 0.95, logprobs: Some(20), ..plain }),
        (
            "the same, T 0.7",
            Settings { top_p: 0.95, logprobs: Some(20), temperature: 0.7, ..plain },
        ),
    ];
    println!("{TOKENS} logits, medians of {RUNS} draws, microseconds: processor time / clock");
    println!("{:>26} {:>15} {:>15} {:>15} {:>15}", "", "peaked", "spread 2", "spread 3", "flat");
    let rows = [row(2.0, true), row(2.0, false), row(3.0, false), row(0.01, false)];
    let mut sampler = Sampler::default();
    for (name, settings) in all {
        print!("{name:>26}");
        for logits in &rows {
            let mut times = [Vec::with_capacity(RUNS), Vec::with_capacity(RUNS)];
            for position in 0..RUNS {
                let (start, clock) = (processor_time(), Instant::now());
                let sampled = sampler.sample(logits, &settings, 1, position)?;
                let elapsed = [processor_time() - start, clock.elapsed()];
                for (times, elapsed) in times.iter_mut().zip(elapsed) {
                    times.push(elapsed.as_secs_f64() * 1e6);
                }
                std::hint::black_box(sampled);
            }
            let [processor, clock] = times.map(|mut times| {
                times.sort_by(f64::total_cmp);
                times[RUNS / 2]
            });
            print!(" {:>15}", format!("{processor:.1} / {clock:.1}"));
        }
        println!();
    }
    Ok(())
}

/// Bell-shaped logits; a peaked row has two hundred tokens well above the others, as a language
/// model gives.
fn row(spread: f32, peaked: bool) -> Vec<f32> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f32::from(u16::try_from(state >> 48).expect("16 bits")) / 65_536.0
    };
    let mut logits: Vec<f32> =
        (0..TOKENS).map(|_| ((0..12).map(|_| uniform()).sum::<f32>() - 6.0) * spread).collect();
    if peaked {
        for i in (0..TOKENS).step_by(TOKENS / 200) {
            logits[i] += 14.0 * uniform();
        }
    }
    logits
}
