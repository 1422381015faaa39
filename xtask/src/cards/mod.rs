//! `cargo xtask cards`: prints the script that measures one card, or several of one host, in one
//! go. It is run where the cards are, which is not here, so a test runs it with stand-ins for the
//! programs and holds its words to their flags.

use anyhow::{Result, bail};

const HEAD: &str = include_str!("head.sh");
const ONE: &str = include_str!("one.sh");
const SEVERAL: &str = include_str!("several.sh");
const TAIL: &str = include_str!("tail.sh");

/// Runs the command.
pub fn run(count: &str) -> Result<()> {
    let Ok(count @ 1..=8) = count.parse() else {
        bail!("--count {count}: 1 to 8 cards are possible");
    };
    print!("{}", script(count));
    Ok(())
}

fn script(count: u32) -> String {
    let body = if count == 1 { ONE } else { SEVERAL };
    format!("#!/bin/bash\ncards={count}\n{HEAD}{body}{TAIL}")
}

#[cfg(test)]
mod tests;
