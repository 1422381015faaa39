//! Flags of `run --dump` and of `diff`.

use clap::Args;
use std::ops::Range;
use std::path::PathBuf;

/// What `run` keeps of the work, for `diff` and other programs.
#[derive(Args, Debug)]
#[command(next_help_heading = "Diagnosis")]
pub struct Dumping {
    /// Write what every layer computes to an empty folder, a .npy file for each tensor
    /// (docs/gpu.md); `ironstar diff` compares two
    #[arg(long, value_name = "FOLDER")]
    pub dump: Option<PathBuf>,
    /// Only of these positions, as in 100-163 (a full-size model has 11 MB a position)
    #[arg(long, value_name = "FIRST-LAST", requires = "dump", value_parser = positions)]
    pub dump_positions: Option<Range<usize>>,
}

/// `FIRST-LAST` or one number.
fn positions(text: &str) -> Result<Range<usize>, String> {
    let wrong = || format!("'{text}' is no range of positions such as 100-163");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
    let (first, last) = (number(first)?, number(last)?);
    if last < first {
        return Err(wrong());
    }
    Ok(first as usize..last as usize + 1)
}

/// `diff`
///
/// Compares, in the order of a pass, what `run --dump` wrote twice: on two backends, with other
/// chunks of the prompt, or by two builds. On one kind of device all bits must be equal; between
/// devices a tolerance says what counts. Exit status 1 where they part.
#[derive(Args, Debug)]
pub struct Diff {
    /// The first dump
    pub a: PathBuf,
    /// The other one
    pub b: PathBuf,
    /// Largest difference of a row that is let pass, as a share of the row (root mean squares); 0
    /// asks for equal bits. Other experts or indexer rows never pass
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = tolerance)]
    pub tolerance: f64,
    /// List every tensor that differs, instead of the first twenty
    #[arg(long)]
    pub all: bool,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1e6).contains(&share) => Ok(share),
        _ => Err("a share such as 0.01 is wanted".into()),
    }
}
