//! DSpark: a drafter of several stages that guesses a whole block of tokens in one pass (spec 4.2).
//!
//! ```text
//!  target layers' streams ─ mean ─ concat ─ main_proj ─ norm ─▶ m ─ each stage's wkv ─▶ its ring
//!
//!  anchor, noise, noise ... ─ embed ─▶ stage 0 ─▶ stage 1 ─▶ stage 2 ─ hc_head ─▶ h ─▶ base
//!  (every row sees the ring and all rows of the block)              │
//!  token before ─ markov_w1 ─┬─ markov_w2 ─▶ + base ─▶ logits ─▶ token, one row after the other
//!                            └─ with h ─ confidence ─▶ does the row survive?
//! ```
//!
//! This file has its numbers and names; `dspark_pass.rs` runs it.

use super::shape::{ARCHITECTURE, Shape};
use super::weights::{Field, Place, TensorSpec, spark_specs};
use crate::Error;
use ironstar_gguf::{Array, Gguf, Metadata, Value};

/// Architecture of a file that holds a DSpark drafter alone.
pub const SPARK_ARCHITECTURE: &str = "deepseek4_dspark_support";

/// Most stages, and most target layers.
const STAGES_MAX: usize = 8;
/// Most rows of a block.
const BLOCK_MAX: usize = 16;
/// Largest rank of the Markov head.
const RANK_MAX: usize = 65_536;

/// The numbers of a DSpark drafter that its model does not give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparkShape {
    /// Blocks behind one another, each with its window ring.
    pub stages: usize,
    /// Tokens that are guessed at once.
    pub block: usize,
    /// Rank of the Markov head.
    pub rank: usize,
    /// Token of the rows that are to be guessed.
    pub noise: u32,
    /// Layers of the model whose output feeds the drafter, ascending.
    pub targets: Vec<usize>,
}

impl SparkShape {
    /// Reads a support file; `None` where its keys say nothing of DSpark.
    pub fn from_gguf(gguf: &Gguf, shape: &Shape) -> Result<Option<SparkShape>, Error> {
        let metadata = gguf.metadata();
        let Some((key, targets)) = targets(metadata)? else { return Ok(None) };
        let number = |name: &str| -> Result<Option<u32>, Error> {
            for key in keys(name) {
                if let Some(value) = metadata.opt_u32(&key)? {
                    return Ok(Some(value));
                }
            }
            Ok(None)
        };
        let noise = match number("noise_token_id")? {
            None => metadata.opt_u32("tokenizer.ggml.mask_token_id")?,
            some => some,
        };
        let has = |stage: usize| {
            let names =
                ["mtp", "dspark"].map(|prefix| format!("{prefix}.{stage}.attn_norm.weight"));
            names.iter().any(|name| gguf.tensor(name).is_some())
        };
        let found = Found {
            key,
            targets,
            stages: (0..=STAGES_MAX).take_while(|&stage| has(stage)).count(),
            block: number("block_size")?,
            rank: number("markov_rank")?,
            noise,
        };
        found.check(shape).map(Some)
    }

    /// Reads a published `config.json`; `None` where it has no DSpark. `has` tells whether the
    /// checkpoint has a tensor.
    pub fn from_config(
        json: &str,
        has: &dyn Fn(&str) -> bool,
        shape: &Shape,
    ) -> Result<Option<SparkShape>, Error> {
        let config: serde_json::Value =
            serde_json::from_str(json).map_err(|e| Error::metadata("config.json", e, "JSON"))?;
        let key = "dspark_target_layer_ids";
        let Some(list) = config.get(key).filter(|list| !list.is_null()) else { return Ok(None) };
        let targets = list.as_array().map(|all| all.iter().map(serde_json::Value::as_i64));
        let targets: Option<Vec<i64>> = targets.and_then(Iterator::collect);
        let targets = targets.ok_or_else(|| Error::metadata(key, list, "a list of layers"))?;
        let number = |key: &str| -> Result<Option<u32>, Error> {
            let Some(value) = config.get(key).filter(|value| !value.is_null()) else {
                return Ok(None);
            };
            let number = value.as_u64().and_then(|v| u32::try_from(v).ok());
            number.map(Some).ok_or_else(|| Error::metadata(key, value, "a whole number"))
        };
        let stage = |stage: usize| has(&format!("mtp.{stage}.attn_norm.weight"));
        let found = Found {
            key: key.to_owned(),
            targets,
            stages: (0..=STAGES_MAX).take_while(|&s| stage(s)).count(),
            block: number("dspark_block_size")?,
            rank: number("dspark_markov_rank")?,
            noise: number("dspark_noise_token_id")?,
        };
        found.check(shape).map(Some)
    }

    /// Metadata of a support file.
    #[must_use]
    pub fn to_metadata(&self, shape: &Shape) -> Vec<(String, Value)> {
        let narrow = |n: usize| u32::try_from(n).expect("checked to fit when it was read");
        let mut all = shape.to_metadata();
        all[0].1 = Value::String(SPARK_ARCHITECTURE.into());
        let mut put =
            |name: &str, value| all.push((format!("{ARCHITECTURE}.dspark.{name}"), value));
        put("block_size", Value::U32(narrow(self.block)));
        put("markov_rank", Value::U32(narrow(self.rank)));
        put("noise_token_id", Value::U32(self.noise));
        let targets = self.targets.iter().map(|&layer| narrow(layer)).collect();
        put("target_layer_ids", Value::Array(Array::U32(targets)));
        all
    }

    /// The tensor table, with each name as the file spells it.
    #[must_use]
    pub fn specs_in(&self, gguf: &Gguf, shape: &Shape) -> Vec<TensorSpec> {
        let mut specs = spark_specs(shape, self);
        for spec in &mut specs {
            if gguf.tensor(&spec.name).is_none()
                && let Some(name) = other_names(spec).into_iter().find(|n| gguf.tensor(n).is_some())
            {
                spec.name = name;
            }
        }
        specs
    }
}

/// Spellings of a key in the files that are about.
fn keys(name: &str) -> [String; 4] {
    ["deepseek4.dspark.", "deepseek4.dspark_", "dspark.", "dflash."].map(|p| format!("{p}{name}"))
}

/// Target layers with the key that gave them. DFlash counts them from 1.
fn targets(metadata: &Metadata) -> Result<Option<(String, Vec<i64>)>, Error> {
    for key in keys("target_layer_ids") {
        if let Some(mut list) = metadata.opt_array_i64(&key)? {
            if key.starts_with("dflash.") {
                list.iter_mut().for_each(|layer| *layer = layer.saturating_sub(1));
            }
            return Ok(Some((key, list)));
        }
    }
    Ok(None)
}

/// Other spellings of a tensor's name.
fn other_names(spec: &TensorSpec) -> Vec<String> {
    let mut names = Vec::new();
    if let (Place::Spark(_), Some(rest)) = (spec.place, spec.name.strip_prefix("mtp.")) {
        names.push(format!("dspark.{rest}"));
    }
    let short = match spec.field {
        Field::SparkMainProjection => "fc.weight",
        Field::SparkMainNorm => "enc.output_norm.weight",
        Field::SparkMarkovEmbedding => "markov_w1.weight",
        Field::SparkMarkovOutput => "markov_w2.weight",
        Field::SparkConfidence => "conf_proj.weight",
        _ => return names,
    };
    names.push(short.to_owned());
    names
}

/// Numbers as a file gives them.
struct Found {
    key: String,
    targets: Vec<i64>,
    stages: usize,
    block: Option<u32>,
    rank: Option<u32>,
    noise: Option<u32>,
}

impl Found {
    fn check(self, shape: &Shape) -> Result<SparkShape, Error> {
        let within = |key: &str, value: Option<u32>, most: usize| -> Result<usize, Error> {
            let wanted = format!("a whole number from 1 to {most}");
            let Some(found) = value else { return Err(Error::metadata(key, "nothing", wanted)) };
            let number = usize::try_from(found).unwrap_or(usize::MAX);
            if (1..=most).contains(&number) {
                return Ok(number);
            }
            Err(Error::metadata(key, found, wanted))
        };
        let layer = |&l: &i64| usize::try_from(l).ok().filter(|&l| l < shape.layers);
        let targets: Option<Vec<usize>> = self.targets.iter().map(layer).collect();
        let targets = targets
            .filter(|t| (1..=STAGES_MAX).contains(&t.len()) && t.windows(2).all(|w| w[0] < w[1]));
        let Some(targets) = targets else {
            let wanted = format!("1 to {STAGES_MAX} ascending layers below {}", shape.layers);
            return Err(Error::metadata(&self.key, format!("{:?}", self.targets), wanted));
        };
        if !(1..=STAGES_MAX).contains(&self.stages) {
            let wanted = format!("mtp.0. to at most mtp.{}.", STAGES_MAX - 1);
            return Err(Error::metadata("stages", self.stages, wanted));
        }
        let last = shape.vocabulary.saturating_sub(1);
        let Some(noise) = self.noise.filter(|&t| usize::try_from(t).is_ok_and(|t| t <= last))
        else {
            let found = self.noise.map_or("nothing".to_owned(), |t| t.to_string());
            let wanted = format!("a token from 0 to {last}");
            return Err(Error::metadata("dspark.noise_token_id", found, wanted));
        };
        Ok(SparkShape {
            stages: self.stages,
            block: within("dspark.block_size", self.block, BLOCK_MAX)?,
            rank: within("dspark.markov_rank", self.rank, RANK_MAX)?,
            noise,
            targets,
        })
    }
}
