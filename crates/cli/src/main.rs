//! The `ironstar` binary: reads the command line, runs one command, turns failures into exit codes.
//!
//! Start at [`flags`] for what can be asked, then `commands/NAME.rs` for what is done.

mod answer;
mod asking;
mod bandwidth;
mod commands;
mod debug;
mod eval_cases;
mod failure;
mod flags;
mod interrupt;
mod loading;
mod logprobs_file;
mod outfile;
mod progress;
mod ranks;

use clap::{CommandFactory, Parser};
use failure::{Blame, Failure};
use flags::{Cli, Command};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help goes to standard output with exit code 0, mistakes to standard error with 2.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure.blame, Blame::Reader | Blame::Interrupt) {
                let _ = writeln!(std::io::stderr(), "ironstar: {failure}");
            }
            failure.exit_code()
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let mut command = cli.command.unwrap_or_else(|| Command::Run(Box::new(cli.run)));
    if command.asks_for_launch() {
        let text = |name: std::ffi::OsString| name.into_string().ok();
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?)));
        let launch = ironstar_cluster::launch(&variables.collect()).map_err(ranks::failure)?;
        if let Some(worker) = command.set_launch(launch) {
            return commands::worker::run(&worker);
        }
    }
    match command {
        Command::Quantize(flags) => commands::quantize::run(&flags),
        Command::Pack(flags) => commands::pack::run(&flags),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ironstar", &mut script);
            print(&script)
        }
        Command::Diff(flags) => commands::diff::run(&flags),
        Command::Doctor(flags) => commands::doctor::run(&flags),
        Command::Sim(flags) => commands::sim::run(&flags),
        Command::Synth(flags) => commands::synth::run(&flags),
        Command::Inspect(flags) => commands::inspect::run(&flags),
        Command::Tokens(flags) => commands::tokens::run(&flags),
        Command::Run(flags) => commands::run::run(&flags),
        Command::Serve(flags) => commands::serve::run(&flags),
        Command::Worker(flags) => commands::worker::run(&flags),
        Command::Replay(flags) => commands::replay::run(&flags),
        Command::Steer(flags) => commands::steer::run(&flags),
        Command::Perplexity(flags) => commands::perplexity::run(&flags),
        Command::Eval(flags) => commands::eval::run(&flags),
        Command::Bench(flags) => commands::bench::run(*flags),
        Command::Man => {
            let mut page = Vec::new();
            man_page(&mut page).map_err(|error| Failure::output(&error))?;
            print(&page)
        }
    }
}

/// The overview, then a section for each command.
fn man_page(out: &mut Vec<u8>) -> std::io::Result<()> {
    let command = Cli::command();
    clap_mangen::Man::new(command.clone()).render(out)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = format!("ironstar-{}", sub.get_name());
        let page = clap_mangen::Man::new(sub.clone().name(name));
        page.render_synopsis_section(out)?;
        page.render_description_section(out)?;
        page.render_options_section(out)?;
    }
    Ok(())
}

/// Writes to standard output; a reader that left is no fault.
pub fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| Failure::output(&error))
}
