//! What `gpu_check` is told: a word that is not understood is an error, since a script that runs
//! for minutes on somebody's card should not measure something else.

use super::compare::{self, Compare};
use ironstar_device::Shortcuts;
use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[derive(Default)]
pub struct Words {
    pub model: PathBuf,
    pub against_cpu: bool,
    pub times: bool,
    pub timeline: bool,
    pub serial: bool,
    pub quick: bool,
    pub dry: bool,
    pub host: bool,
    pub disabled: Shortcuts,
    pub prompt: usize,
    pub answer: usize,
    pub chunk: usize,
    pub ranks: usize,
    pub part: usize,
    pub devices: Vec<u32>,
    pub host_gates: bool,
    pub nccl: bool,
    pub sessions: usize,
    pub depths: Vec<usize>,
    pub oracle: Option<PathBuf>,
    pub drafter: Option<PathBuf>,
    pub compare: Option<Compare>,
}

/// The words of the command line.
pub fn words() -> Outcome<Words> {
    let mut words = Words { prompt: 256, answer: 64, chunk: 512, ranks: 1, ..Words::default() };
    let mut compare = Compare { rounds: 5, ..Compare::default() };
    let mut all = std::env::args().skip(1);
    while let Some(word) = all.next() {
        let mut value = || all.next().ok_or_else(|| format!("{word} needs a value"));
        match &*word {
            "--against-cpu" => words.against_cpu = true,
            "--times" => words.times = true,
            "--timeline" => words.timeline = true,
            "--serial" => words.serial = true,
            "--quick" => words.quick = true,
            "--dry" => words.dry = true,
            "--host" => words.host = true,
            "--host-gates" => words.host_gates = true,
            "--nccl" => words.nccl = true,
            "--prompt" => words.prompt = number(&word, &value()?)?,
            "--answer" => words.answer = number(&word, &value()?)?,
            "--chunk" => words.chunk = number(&word, &value()?)?,
            "--sessions" => words.sessions = number(&word, &value()?)?,
            "--ranks" => words.ranks = number(&word, &value()?)?,
            "--part" => words.part = number(&word, &value()?)?,
            "--rounds" => compare.rounds = number::<usize>(&word, &value()?)?.max(1),
            "--devices" => words.devices = numbers(&word, &value()?)?,
            "--depths" => words.depths = numbers(&word, &value()?)?,
            "--oracle" => words.oracle = Some(value()?.into()),
            "--drafter" => words.drafter = Some(value()?.into()),
            "--compare" => compare.token = compare::named(&value()?)?,
            "--compare-depths" => compare.depth = compare::named(&value()?)?,
            "--compare-prompt" => compare.prompt = compare::named(&value()?)?,
            "--compare-sessions" => compare.session = compare::named(&value()?)?,
            "--disable" => words.disabled = words.disabled.with(Shortcuts::named(&value()?)?),
            name if name.starts_with('-') || !words.model.as_os_str().is_empty() => {
                return Err(
                    format!("{name:?} is not understood; see the page of the example").into()
                );
            }
            name => words.model = name.into(),
        }
    }
    words.finished(compare)
}

impl Words {
    /// What follows from several words.
    fn finished(mut self, compare: Compare) -> Outcome<Words> {
        if self.model.as_os_str().is_empty() {
            return Err("name a model".into());
        }
        if self.devices.is_empty() {
            self.devices = (0..).take(self.ranks).collect();
        }
        self.ranks = self.devices.len();
        if self.prompt < 2 || self.answer == 0 || self.chunk == 0 || self.ranks == 0 {
            return Err("--prompt is 2 or more; --answer, --chunk and --ranks are not 0".into());
        }
        if self.part > 0 && (self.ranks > 1 || self.against_cpu) {
            return Err("--part is one card that computes a rank's part, and wrong tokens".into());
        }
        let Compare { token, depth, prompt, session, rounds, .. } = compare;
        if [&token, &depth, &prompt, &session].into_iter().all(Vec::is_empty) {
            return Ok(self);
        }
        if self.ranks > 1 || self.times || self.timeline {
            return Err("--compare is for one card, without --times and --timeline".into());
        }
        if self.sessions == 0 && !session.is_empty() {
            return Err("--compare-sessions needs --sessions".into());
        }
        let (base, sessions, depths) = (self.disabled, self.sessions, self.depths.clone());
        let tokens = self.answer.clamp(2, 32);
        let compare =
            Compare { token, depth, prompt, session, base, rounds, tokens, sessions, depths };
        self.compare = Some(compare);
        Ok(self)
    }
}

fn number<T: FromStr>(word: &str, value: &str) -> Outcome<T> {
    value.parse().map_err(|_| format!("{word} {value}: not a number that it can be").into())
}

fn numbers<T: FromStr>(word: &str, list: &str) -> Outcome<Vec<T>> {
    list.split(',').map(|value| number(word, value)).collect()
}
