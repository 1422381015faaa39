//! `ironstar bench`: how fast a model reads and answers at growing depths.
//!
//! At each frontier the new part of the prompt is read, the state is set aside, an answer is made,
//! and the sessions go back. So a frontier's reading covers the tokens since the one before.

mod plan;
mod report;
mod sweep;

use crate::bandwidth::{self, Rate};
use crate::commands::synth;
use crate::failure::Failure;
use crate::flags::Bench;
use crate::{interrupt, loading, outfile, ranks};
use ironstar_device::{CudaConfig, Isa, cuda_read_bandwidth};
use ironstar_engine::Engine;
use plan::Plan;
use report::{Facts, Report};

/// Runs the command.
pub fn run(mut flags: Bench) -> Result<(), Failure> {
    if let Some(path) = &flags.csv {
        let inputs = [&flags.sweep.prompt_file, &flags.sweep.chat_prompt_file, &flags.sweep.ids];
        let inputs: Vec<_> = inputs.into_iter().flatten().map(|path| &**path).collect();
        outfile::check(path, &inputs, flags.force)?;
    }
    // What was read before must be read again, and copies for later runs are no part of reading.
    (flags.model.state_dir, flags.model.state_ram_mib) = (None, 0);
    let cancel = interrupt::cancel_on_interrupt()?;
    let made = flags.synth.random().map(|what| synth::in_memory(&what)).transpose()?;
    let (mut engine, opened) = loading::engine_of(&flags.model, made)?;
    let plan = Plan::new(&flags.sweep, &engine)?;
    let mut facts = facts(&flags, &engine, opened.name, &plan);
    let mut rows = Vec::new();
    for repeat in 0..flags.sweep.repeat {
        let swept = sweep::sweep(&mut engine, &plan, repeat, &cancel)?;
        if rows.is_empty() {
            rows = swept;
        } else {
            rows.iter_mut().zip(&swept).for_each(|(best, row)| best.improve(row));
        }
    }
    if let (Some(before), "cpu") = (facts.bandwidth, facts.backend) {
        // Again, since the machine may have been busier before than it was in between.
        facts.bandwidth = Some(before.best(bandwidth::of_host(facts.threads)));
    }
    let gates = ranks::gates_json(&flags.model.ranks);
    Report { facts, rows, gates }.give(flags.csv.as_deref(), flags.json)?;
    if !flags.json {
        ranks::tell_gates(&flags.model.ranks);
    }
    Ok(())
}

fn facts(flags: &Bench, engine: &Engine, model: String, plan: &Plan) -> Facts {
    let threads = flags.model.threads.map_or_else(loading::cores, usize::from);
    let backend = engine.backend_name();
    let on_cpu = backend == "cpu";
    let bandwidth = if on_cpu {
        Some(bandwidth::of_host(threads))
    } else {
        let cache = loading::kernel_cache();
        // A card that the model fills has no room for the probe: then there is no fraction.
        let rate = cuda_read_bandwidth(&CudaConfig { cache, ..CudaConfig::default() });
        rate.ok().map(|wall| Rate { wall, processor: None })
    };
    let isa = engine.options().isa.unwrap_or_else(Isa::best).name();
    Facts {
        model,
        backend,
        threads,
        isa: on_cpu.then_some(isa),
        prompt: plan.prompt,
        fill: plan.fill,
        teacher_forced: plan.teacher_forced,
        sessions: plan.sessions,
        ranks: engine.model().ranks(),
        repeats: flags.sweep.repeat,
        prefill_chunk: engine.options().step_rows,
        bandwidth,
    }
}
