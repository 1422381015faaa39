//! `cargo xtask cards`: prints the script that measures several cards of one host in one go. It is
//! run where the cards are, which is not here, so tests hold its words to the programs' flags.

use anyhow::Result;

const SCRIPT: &str = include_str!("cards.sh");

/// Runs the command.
pub fn run() -> Result<()> {
    print!("{SCRIPT}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::SCRIPT;
    use std::io::Write;
    use std::path::Path;
    use std::process::{Command, Stdio};

    #[test]
    fn the_shell_can_read_it() {
        let mut shell =
            Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().expect("there is a bash");
        let mut input = shell.stdin.take().expect("it was asked for");
        input.write_all(SCRIPT.as_bytes()).expect("bash reads it all");
        drop(input);
        assert!(shell.wait().expect("bash ends").success());
    }

    /// Every flag is one of the programs that get it: words of the example, fields of the flags.
    #[test]
    fn its_flags_are_those_of_the_programs() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let read = |path: &str| std::fs::read_to_string(crates.join(path)).expect(path);
        let example = read("engine/examples/gpu_check.rs");
        let files = ["flags.rs", "flags/bench.rs", "flags/ranks.rs", "flags/synth.rs"];
        let there = files.iter().filter(|file| crates.join("cli/src").join(file).exists());
        let flags: String = there.map(|file| read(&format!("cli/src/{file}"))).collect();
        let known = |flag: &str| {
            let field = flag.trim_start_matches('-').replace('-', "_");
            example.contains(&format!("\"{flag}\"")) || flags.contains(&format!("pub {field}:"))
        };
        let words = SCRIPT.split(|c: char| c.is_whitespace() || c == '"');
        let all: Vec<&str> = words.filter(|word| word.starts_with("--")).collect();
        assert!(all.len() > 20);
        for flag in all {
            assert!(known(flag), "{flag} is a flag of nobody");
        }
    }
}
