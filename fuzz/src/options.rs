//! The driver's flags.

use std::path::{Path, PathBuf};

/// What the command line asked for.
pub struct Options {
    /// Name the targets and stop.
    pub list: bool,
    /// Write every target's seeds into this folder and stop.
    pub export: Option<PathBuf>,
    /// One target, or all.
    pub target: Option<String>,
    /// Targets at the same time.
    pub jobs: usize,
    /// How long to mutate, for each target.
    pub seconds: f64,
    /// No input may take longer.
    pub input_seconds_max: f64,
    /// Where the row of mutations begins.
    pub seed: u64,
    /// This is a worker process.
    pub worker: bool,
    /// Write every input here before it runs.
    pub trace: Option<PathBuf>,
    /// Folder with `regressions/` and `artifacts/`.
    pub folder: PathBuf,
}

const HELP: &str = "flags: --list, --target NAME, --jobs N, --seconds N, --seed N, \
                    --input-seconds N, --folder DIR, --export DIR";
/// Generous, since CI machines are shared.
const INPUT_SECONDS_MAX: f64 = 10.0;

impl Options {
    /// Reads the flags; the last of equal ones counts.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let mut options = Options {
            list: false,
            export: None,
            target: None,
            jobs: 1,
            seconds: 3.0,
            input_seconds_max: INPUT_SECONDS_MAX,
            seed: 1,
            worker: false,
            trace: None,
            folder: PathBuf::from(env!("CARGO_MANIFEST_DIR")),
        };
        let mut words = words.iter();
        while let Some(flag) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{flag} wants a value; {HELP}"));
            match flag.as_str() {
                "--list" => options.list = true,
                "--worker" => options.worker = true,
                "--target" => options.target = Some(value()?.clone()),
                "--export" => options.export = Some(value()?.into()),
                "--trace" => options.trace = Some(value()?.into()),
                "--folder" => options.folder = value()?.into(),
                "--jobs" => options.jobs = number(flag, value()?)?,
                "--seconds" => options.seconds = number(flag, value()?)?,
                "--input-seconds" => options.input_seconds_max = number(flag, value()?)?,
                "--seed" => options.seed = number(flag, value()?)?,
                _ => return Err(format!("`{flag}` is not a flag; {HELP}")),
            }
        }
        Ok(options)
    }

    /// Where failing inputs of a target are saved; not tracked by git.
    pub fn artifacts(&self, target: &str) -> PathBuf {
        self.folder.join("artifacts").join(target)
    }

    /// Inputs that failed once and must not fail again.
    pub fn regressions(&self, target: &str) -> PathBuf {
        Path::new(&self.folder).join("regressions").join(target)
    }
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{flag} wants a number, not `{text}`"))
}
