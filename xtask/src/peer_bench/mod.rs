//! `cargo xtask peer-bench`: the same files, the same tokens, our binary and the peer in turn.
//!
//! The peer is the CPU engine that people use, as its crate carries it, built outside of the
//! workspace for exactly this processor (`build.rs`). Both read and answer the same token ids on
//! reduced models that `ironstar synth` writes; what is compared is processor seconds a token, so
//! that other work on the machine matters little. The best of several turns counts.

mod build;
mod table;

use crate::ci;
use anyhow::{Context, Result, bail};
use build::Peer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use table::{Row, Table};

/// Mixes of the experts, as `ironstar synth` names them.
const MIXES: [&str; 3] = ["q2", "q4", "mxfp4"];
/// Prompt lengths.
const PREFILLS: [usize; 2] = [64, 512];
/// The longest that can be asked for.
const PREFILL_MAX: usize = 4096;
/// Tokens of an answer.
const DECODE: usize = 16;
/// The same with `--quick`.
const QUICK_DECODE: usize = 8;
/// Turns of each engine, and the same for prompts of at least [`LONG`] tokens, which are minutes of
/// the peer's time.
const TURNS: [usize; 2] = [2, 1];
/// A long prompt.
const LONG: usize = 256;
/// Sweeps of each engine in a turn, of which the best counts.
const REPEATS: usize = 2;
/// Tokens whose distributions are compared.
const COMPARED: usize = 16;
/// Layers and experts of the reduced models: all widths are those of Flash.
const SIZES: [&str; 6] = ["--shape", "flash", "--layers", "5", "--experts", "64"];

/// What the command line says.
struct Flags {
    quick: bool,
    json: bool,
    keep: bool,
    mixes: Vec<String>,
    threads: Vec<usize>,
    prefills: Vec<usize>,
}

/// Runs the command.
pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let flags = flags(words)?;
    let target = ci::target_folder(root)?;
    let home = target.join("peer");
    let models = home.join("models");
    std::fs::create_dir_all(&models)?;
    let peer = build::peer(root, &home)?;
    let ours = build::ours(root, &target)?;
    let begun = Instant::now();
    let ids = home.join("ids.txt");
    let longest = flags.prefills.iter().max().map_or(0, |tokens| *tokens).max(COMPARED);
    std::fs::write(&ids, ids_text(longest + DECODE))?;
    let mut table = Table::new(&peer);
    for mix in &flags.mixes {
        let bench =
            Bench { ours: &ours, peer: &peer, ids: &ids, model: model(&ours, &models, mix)? };
        bench.mix(&flags, mix, &mut table)?;
        if !flags.keep {
            std::fs::remove_file(&bench.model)?;
        }
    }
    table.seconds = begun.elapsed().as_secs();
    table.give(flags.json)
}

fn flags(words: &[&str]) -> Result<Flags> {
    let mut flags = Flags {
        quick: false,
        json: false,
        keep: false,
        mixes: Vec::new(),
        threads: Vec::new(),
        prefills: Vec::new(),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--quick" => flags.quick = true,
            "--json" => flags.json = true,
            "--keep" => flags.keep = true,
            "--mix" => {
                let mix = words.next().context("--mix needs a name")?;
                if !MIXES.contains(mix) {
                    bail!("--mix {mix}: there are {}", MIXES.join(", "));
                }
                flags.mixes.push((*mix).to_string());
            }
            "--threads" => {
                let count = words.next().context("--threads needs a number")?;
                flags.threads.push(count.parse().with_context(|| format!("--threads {count}"))?);
            }
            "--prefill" => {
                let tokens = words.next().context("--prefill needs a number of tokens")?;
                let tokens = tokens.parse().with_context(|| format!("--prefill {tokens}"))?;
                if !(1..=PREFILL_MAX).contains(&tokens) {
                    bail!("--prefill {tokens}: 1 to {PREFILL_MAX} tokens");
                }
                flags.prefills.push(tokens);
            }
            other => bail!("peer-bench knows no `{other}`"),
        }
    }
    if flags.mixes.is_empty() {
        let all = if flags.quick { &MIXES[..1] } else { &MIXES };
        flags.mixes = all.iter().map(|mix| (*mix).to_string()).collect();
    }
    if flags.threads.is_empty() {
        flags.threads = vec![1, 2];
    }
    if flags.prefills.is_empty() {
        let all = if flags.quick { &PREFILLS[..1] } else { &PREFILLS };
        flags.prefills = all.to_vec();
    }
    Ok(flags)
}

/// A model of a mix; kept from run to run with `--keep`.
fn model(ours: &Path, models: &Path, mix: &str) -> Result<PathBuf> {
    let path = models.join(format!("{mix}.gguf"));
    if !path.exists() {
        eprintln!("peer-bench: writing {}", path.display());
        let mut synth = Command::new(ours);
        synth.arg("synth").arg(&path).args(SIZES).args(["--mix", mix]);
        output(&mut synth)?;
    }
    Ok(path)
}

/// Ids that any vocabulary of the models has, spread over it.
fn ids_text(count: usize) -> String {
    let id = |i: usize| (i * 7919 + i * i * 31 + 1000) % 120_000;
    (0..count).map(|i| format!("{}\n", id(i))).collect()
}

/// One model under both engines.
struct Bench<'a> {
    ours: &'a Path,
    peer: &'a Peer,
    ids: &'a Path,
    model: PathBuf,
}

/// What an engine took, in seconds a token: the best of some turns.
#[derive(Clone, Copy, Default)]
struct Took {
    prefill: Best,
    decode: Best,
}

#[derive(Clone, Copy)]
struct Best {
    processor: f64,
    wall: f64,
}

impl Default for Best {
    fn default() -> Self {
        Best { processor: f64::INFINITY, wall: f64::INFINITY }
    }
}

impl Best {
    fn improve(&mut self, other: Best) {
        self.processor = self.processor.min(other.processor);
        self.wall = self.wall.min(other.wall);
    }
}

impl Bench<'_> {
    fn mix(&self, flags: &Flags, mix: &str, table: &mut Table) -> Result<()> {
        for &threads in &flags.threads {
            for (index, &prefill) in flags.prefills.iter().enumerate() {
                // The answer is measured once, after the first prompt.
                let decode = match (index == 0, flags.quick) {
                    (false, _) => 0,
                    (true, false) => DECODE,
                    (true, true) => QUICK_DECODE,
                };
                let (mut ours, mut peer) = (Took::default(), Took::default());
                // Bytes a second by the clock and by processor time; bytes of a token.
                let (mut rates, mut bytes) = ((0f64, 0f64), 0.0);
                for turn in 0..TURNS[usize::from(prefill >= LONG)] {
                    eprintln!(
                        "peer-bench: {mix}, {threads} threads, {prefill} tokens, turn {turn}"
                    );
                    let report = self.run_ours(threads, prefill, decode)?;
                    rates.0 = rates.0.max(number(&report, "read_bytes_per_second")?);
                    rates.1 = rates.1.max(number(&report, "read_bytes_per_processor_second")?);
                    let row = &report["rows"][0];
                    ours.prefill.improve(of_row(row, "prefill")?);
                    if decode > 0 {
                        ours.decode.improve(of_row(row, "gen")?);
                        bytes = number(row, "gen_bytes_per_token")?;
                    }
                    self.run_peer(threads, prefill, decode, &mut peer)?;
                }
                let add = |what, tokens, ours: Best, peer: Best, fractions| Row {
                    mix: mix.to_string(),
                    threads,
                    what,
                    tokens,
                    ours: (ours.processor, ours.wall),
                    peer: (peer.processor, peer.wall),
                    fractions,
                };
                table.rows.push(add("prefill", prefill, ours.prefill, peer.prefill, None));
                if decode > 0 {
                    #[expect(clippy::cast_precision_loss, reason = "a small count")]
                    let threads = threads as f64;
                    let busy = bytes * threads / ours.decode.processor / rates.1;
                    let fractions = Some((bytes / ours.decode.wall / rates.0, busy));
                    table.rows.push(add("decode", decode, ours.decode, peer.decode, fractions));
                }
                table.bandwidth.push((threads, rates.0));
            }
        }
        table.kl.push((mix.to_string(), self.divergences()?));
        Ok(())
    }

    fn run_ours(&self, threads: usize, prefill: usize, decode: usize) -> Result<Value> {
        let mut bench = Command::new(self.ours);
        bench.arg("bench").arg("--model").arg(&self.model).arg("--ids").arg(self.ids);
        bench.args(["--backend", "cpu", "--json", "--teacher-forced-decode"]);
        let words = [("--threads", threads), ("--ctx-start", prefill), ("--ctx-max", prefill)];
        let more = [("--gen-tokens", decode), ("--repeat", REPEATS)];
        for (flag, value) in words.into_iter().chain(more) {
            bench.args([flag, &value.to_string()]);
        }
        Ok(serde_json::from_slice(&output(&mut bench)?)?)
    }

    fn run_peer(
        &self,
        threads: usize,
        prefill: usize,
        decode: usize,
        took: &mut Took,
    ) -> Result<()> {
        let mut peer = Command::new(&self.peer.binary);
        peer.arg(&self.model).arg(self.ids);
        peer.args([threads, prefill, decode, REPEATS].map(|n| n.to_string()));
        let report: Value = serde_json::from_slice(&output(&mut peer)?)?;
        for (what, best) in [("prefill", &mut took.prefill), ("decode", &mut took.decode)] {
            for one in report[what].as_array().context("the peer gives lists")? {
                let (processor, wall) = (number(one, "processor")?, number(one, "wall")?);
                best.improve(Best { processor, wall });
            }
        }
        Ok(())
    }

    /// Mean KL divergence of our float reference from our timed path, and from the peer.
    fn divergences(&self) -> Result<Value> {
        eprintln!("peer-bench: distributions of {COMPARED} tokens");
        let folder = self.model.parent().context("models lie in a folder")?;
        let [line, float, theirs] =
            ["ids.line", "float.logits", "peer.logits"].map(|name| folder.join(name));
        let text = std::fs::read_to_string(self.ids)?;
        let ids: Vec<&str> = text.split_whitespace().take(COMPARED).collect();
        std::fs::write(&line, ids.join(" "))?;
        let score = |numerics: &str, more: &[&std::ffi::OsStr]| -> Result<Value> {
            let mut score = Command::new(self.ours);
            score.arg("perplexity").arg(&line).arg("--ids").arg("--model").arg(&self.model);
            score.args(["--backend", "cpu", "--json", "--numerics", numerics]).args(more);
            Ok(serde_json::from_slice(&output(&mut score)?)?)
        };
        score("float", &["--force".as_ref(), "--save-logits".as_ref(), float.as_os_str()])?;
        let ours = score("quantized", &["--kl-against".as_ref(), float.as_os_str()])?;
        let mut peer = Command::new(&self.peer.binary);
        peer.arg(&self.model).arg(self.ids);
        output(peer.args(["2", &COMPARED.to_string(), "0", "1"]).arg(&theirs))?;
        let against = score("float", &["--kl-against".as_ref(), theirs.as_os_str()])?;
        for file in [&line, &float, &theirs] {
            std::fs::remove_file(file)?;
        }
        Ok(json!({
            "ours": ours["figures"]["kl_mean"],
            "ours_same_best": ours["figures"]["same_best"],
            "peer": against["figures"]["kl_mean"],
            "peer_same_best": against["figures"]["same_best"],
        }))
    }
}

/// Seconds a token of a row of `ironstar bench`.
fn of_row(row: &Value, what: &str) -> Result<Best> {
    let tokens = number(row, &format!("{what}_tokens"))?;
    let processor = number(row, &format!("{what}_processor_seconds"))? / tokens;
    let wall = 1.0 / number(row, &format!("{what}_tps"))?;
    Ok(Best { processor, wall })
}

fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("no number `{name}` in {value}"))
}

/// Standard output of a command that must succeed.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} could not be started"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{name} ended with {}: {}", output.status, errors.trim());
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::{flags, ids_text};

    #[test]
    fn flags_are_checked() {
        let quick = flags(&["--quick", "--json"]).expect("known flags");
        assert!(quick.quick && quick.json && quick.mixes == ["q2"] && quick.threads == [1, 2]);
        assert!(quick.prefills == [64]);
        let one = flags(&["--mix", "mxfp4", "--threads", "4"]).expect("known flags");
        assert!(one.mixes == ["mxfp4"] && one.threads == [4] && one.prefills == [64, 512]);
        let long = flags(&["--quick", "--prefill", "512"]).expect("known flags");
        assert!(long.prefills == [512]);
        let wrong = [
            &["--fast"][..],
            &["--mix", "q9"],
            &["--mix"],
            &["--threads", "x"],
            &["--prefill", "0"],
            &["--prefill", "100000"],
        ];
        for wrong in wrong {
            assert!(flags(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn ids_are_spread_and_inside() {
        let ids: Vec<u32> = ids_text(544).lines().map(|id| id.parse().expect("a number")).collect();
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert!(ids.len() == 544 && distinct.len() > 500 && ids.iter().all(|id| *id < 120_000));
    }
}
