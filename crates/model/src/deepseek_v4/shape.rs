//! The numbers of a model: read from GGUF metadata or from a published `config.json`, checked once.
//!
//! Nothing is compiled in. `NUMBERS` and `FLOATS` are the tables of keys: reading, checking,
//! writing and printing all walk them.

use crate::Error;
use ironstar_gguf::{Array, Metadata, Value};
use std::ops::RangeInclusive;

/// Value of `general.architecture`.
pub const ARCHITECTURE: &str = "deepseek4";

/// Width of an indexer head: the FP4 row format and the Hadamard rotation have exactly this width.
const INDEX_WIDTH: usize = 128;
/// The FP8 round trip of keys and values works in blocks of so many dims.
const ROUND_TRIP_BLOCK: usize = 64;

/// Every number of a DeepSeek V4 model (spec 1).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// Layers of the backbone.
    pub layers: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Width d of a stream.
    pub width: usize,
    /// Residual streams (hc).
    pub streams: usize,
    /// Sinkhorn passes over the mixing matrix.
    pub sinkhorn_iterations: usize,
    /// Epsilon of the mixing coefficients.
    pub hc_eps: f32,
    /// Query heads.
    pub heads: usize,
    /// Width D of a head, and of the one key/value row.
    pub head_width: usize,
    /// Rotated dims at the end of a head.
    pub rope_width: usize,
    /// Rank of the query projection.
    pub q_rank: usize,
    /// Groups of heads in the output projection.
    pub output_groups: usize,
    /// Rank of the output projection, per group.
    pub output_rank: usize,
    /// Positions a window sees, the own one included.
    pub window: usize,
    /// Tokens a compressed row, per layer: 0 (none), 4 or 128.
    pub ratios: Vec<usize>,
    /// Heads of the indexer.
    pub index_heads: usize,
    /// Width of an indexer head.
    pub index_width: usize,
    /// Compressed rows that the indexer keeps.
    pub index_top_k: usize,
    /// Routed experts.
    pub experts: usize,
    /// Routed experts a token uses.
    pub experts_used: usize,
    /// Inner width of an expert, routed or shared.
    pub expert_width: usize,
    /// Leading layers whose experts are looked up by token.
    pub hash_layers: usize,
    /// Factor on the normalised expert weights.
    pub expert_scale: f32,
    /// Clamp of an expert's gate and up, per layer.
    pub swiglu_limits: Vec<f32>,
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// Rotary base of layers without compression.
    pub rope_base: f32,
    /// Rotary base of layers with compression.
    pub compress_rope_base: f32,
    /// YaRN factor of layers with compression.
    pub yarn_factor: f32,
    /// YaRN: rotations above which a frequency is kept.
    pub yarn_beta_fast: f32,
    /// YaRN: rotations below which a frequency is divided.
    pub yarn_beta_slow: f32,
    /// YaRN: context before extension.
    pub yarn_original_context: usize,
    /// Longest context the model was made for.
    pub context: usize,
}

/// One whole number: its keys, its range and its place.
struct Number {
    gguf: &'static str,
    config: &'static str,
    range: RangeInclusive<u32>,
    default: Option<u32>,
    get: fn(&Shape) -> usize,
    set: fn(&mut Shape, usize),
}

/// One real number: its keys, its range and its place.
struct Float {
    gguf: &'static str,
    config: &'static str,
    range: RangeInclusive<f32>,
    default: Option<f32>,
    get: fn(&Shape) -> f32,
    set: fn(&mut Shape, f32),
}

macro_rules! entry {
    ($kind:ident, $field:ident, $gguf:literal, $config:literal, $range:expr, $default:expr) => {
        $kind {
            gguf: $gguf,
            config: $config,
            range: $range,
            default: $default,
            get: |shape| shape.$field,
            set: |shape, value| shape.$field = value,
        }
    };
}

/// The upper ends are limits on what a file may claim, some ten times the largest known model.
#[rustfmt::skip]
const NUMBERS: &[Number] = &[
    entry!(Number, layers, "block_count", "num_hidden_layers", 1..=1024, None),
    entry!(Number, vocabulary, "vocab_size", "vocab_size", 1..=4_194_304, None),
    entry!(Number, width, "embedding_length", "hidden_size", 1..=131_072, None),
    entry!(Number, streams, "hyper_connection.count", "hc_mult", 1..=16, None),
    entry!(Number, sinkhorn_iterations, "hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters",
        1..=1000, None),
    entry!(Number, heads, "attention.head_count", "num_attention_heads", 1..=4096, None),
    entry!(Number, head_width, "attention.key_length", "head_dim", 2..=8192, None),
    entry!(Number, rope_width, "rope.dimension_count", "qk_rope_head_dim", 2..=8192, None),
    entry!(Number, q_rank, "attention.q_lora_rank", "q_lora_rank", 1..=65_536, None),
    entry!(Number, output_groups, "attention.output_group_count", "o_groups", 1..=4096, None),
    entry!(Number, output_rank, "attention.output_lora_rank", "o_lora_rank", 1..=65_536, None),
    entry!(Number, window, "attention.sliding_window", "sliding_window", 1..=65_536, None),
    entry!(Number, index_heads, "attention.indexer.head_count", "index_n_heads", 1..=4096, None),
    entry!(Number, index_width, "attention.indexer.key_length", "index_head_dim", 1..=8192, None),
    entry!(Number, index_top_k, "attention.indexer.top_k", "index_topk", 1..=65_536, None),
    entry!(Number, experts, "expert_count", "n_routed_experts", 1..=4096, None),
    entry!(Number, experts_used, "expert_used_count", "num_experts_per_tok", 1..=64, None),
    entry!(Number, expert_width, "expert_feed_forward_length", "moe_intermediate_size",
        1..=131_072, None),
    entry!(Number, hash_layers, "hash_layer_count", "num_hash_layers", 0..=1024, None),
    entry!(Number, yarn_original_context, "rope.scaling.original_context_length",
        "rope_scaling.original_max_position_embeddings", 1..=16_777_216, Some(65_536)),
    entry!(Number, context, "context_length", "max_position_embeddings",
        1..=16_777_216, Some(1_048_576)),
];

/// Defaults are the architecture's own, for files that leave optional keys out.
#[rustfmt::skip]
const FLOATS: &[Float] = &[
    entry!(Float, hc_eps, "hyper_connection.epsilon", "hc_eps", 0.0..=0.1, None),
    entry!(Float, expert_scale, "expert_weights_scale", "routed_scaling_factor", 1e-6..=1e6, None),
    entry!(Float, norm_eps, "attention.layer_norm_rms_epsilon", "rms_norm_eps", 1e-30..=0.1, None),
    entry!(Float, rope_base, "rope.freq_base", "rope_theta", 1.001..=1e12, None),
    entry!(Float, compress_rope_base, "attention.compress_rope_freq_base", "compress_rope_theta",
        1.001..=1e12, None),
    entry!(Float, yarn_factor, "rope.scaling.factor", "rope_scaling.factor", 1.0..=1e4, Some(16.0)),
    entry!(Float, yarn_beta_fast, "rope.scaling.yarn_beta_fast", "rope_scaling.beta_fast",
        1e-3..=1e6, Some(32.0)),
    entry!(Float, yarn_beta_slow, "rope.scaling.yarn_beta_slow", "rope_scaling.beta_slow",
        1e-3..=1e6, Some(1.0)),
];

/// Numbers that every model of this architecture has alike, as (GGUF key, published key, value);
/// absent is fine in either source.
struct Fixed {
    gguf: Option<&'static str>,
    config: Option<&'static str>,
    value: u32,
}

const FIXED: &[Fixed] = &[
    Fixed { gguf: Some("attention.head_count_kv"), config: Some("num_key_value_heads"), value: 1 },
    Fixed { gguf: Some("expert_shared_count"), config: Some("n_shared_experts"), value: 1 },
    Fixed { gguf: Some("expert_group_count"), config: None, value: 0 },
    Fixed { gguf: Some("expert_group_used_count"), config: None, value: 0 },
    Fixed { gguf: Some("expert_gating_func"), config: None, value: 4 },
];

/// Words of the published config that this architecture needs, where they are given.
const WORDS: &[(&str, &str)] = &[
    ("model_type", "deepseek_v4"),
    ("scoring_func", "sqrtsoftplus"),
    ("hidden_act", "silu"),
    ("rope_scaling.type", "yarn"),
];

impl Shape {
    /// Reads and checks the metadata of a GGUF file.
    pub fn from_metadata(metadata: &Metadata) -> Result<Shape, Error> {
        let architecture = metadata.str("general.architecture")?;
        if architecture != ARCHITECTURE {
            return Err(Error::metadata("general.architecture", architecture, ARCHITECTURE));
        }
        let mut shape = Shape::default();
        for n in NUMBERS {
            let key = gguf_key(n.gguf);
            let value = metadata.opt_u32(&key)?.or(n.default);
            (n.set)(&mut shape, number(&key, value, &n.range)?);
        }
        for f in FLOATS {
            let key = gguf_key(f.gguf);
            let value = metadata.opt_f32(&key)?.or(f.default);
            (f.set)(&mut shape, float(&key, value, &f.range)?);
        }
        for fixed in FIXED {
            let Some(name) = fixed.gguf else { continue };
            let key = gguf_key(name);
            if let Some(found) = metadata.opt_u32(&key)?.filter(|&v| v != fixed.value) {
                return Err(Error::metadata(&key, found, fixed.value));
            }
        }
        let key = gguf_key("attention.value_length");
        if let Some(found) = metadata.opt_u32(&key)?
            && usize::try_from(found) != Ok(shape.head_width)
        {
            return Err(Error::metadata(&key, found, format!("key_length {}", shape.head_width)));
        }
        let key = gguf_key("expert_weights_norm");
        if metadata.opt_bool(&key)? == Some(false) {
            return Err(Error::metadata(&key, false, true));
        }
        let key = gguf_key("attention.compress_ratios");
        let ratios = metadata.array_i64(&key)?;
        shape.ratios = per_layer(&key, &ratios, shape.layers)?
            .iter()
            .map(|&r| usize::try_from(r).map_err(|_| Error::metadata(&key, r, "0, 4 or 128")))
            .collect::<Result<_, _>>()?;
        let key = gguf_key("swiglu_clamp_exp");
        let limits = metadata.array_f32(&key)?;
        shape.swiglu_limits = per_layer(&key, &limits, shape.layers)?.to_vec();
        shape.check()
    }

    /// Reads and checks a published `config.json`.
    pub fn from_config(json: &str) -> Result<Shape, Error> {
        let config: serde_json::Value = serde_json::from_str(json)
            .map_err(|e| Error::metadata("config.json", e, "a JSON object"))?;
        for &(key, wanted) in WORDS {
            if let Some(found) = lookup(&config, key).filter(|v| v.as_str() != Some(wanted)) {
                return Err(Error::metadata(key, found, wanted));
            }
        }
        let mut shape = Shape::default();
        for n in NUMBERS {
            let value = whole(&config, n.config)?.or(n.default);
            (n.set)(&mut shape, number(n.config, value, &n.range)?);
        }
        for f in FLOATS {
            let value = real(&config, f.config)?.or(f.default);
            (f.set)(&mut shape, float(f.config, value, &f.range)?);
        }
        for fixed in FIXED {
            let Some(key) = fixed.config else { continue };
            if let Some(found) = whole(&config, key)?.filter(|&v| v != fixed.value) {
                return Err(Error::metadata(key, found, fixed.value));
            }
        }
        if let Some(found) = lookup(&config, "norm_topk_prob").filter(|v| v.as_bool() != Some(true))
        {
            return Err(Error::metadata("norm_topk_prob", found, true));
        }
        let limit = float("swiglu_limit", real(&config, "swiglu_limit")?, &(1e-6..=1e9))?;
        shape.swiglu_limits = vec![limit; shape.layers];
        let key = "compress_ratios";
        let ratios: Vec<usize> = lookup(&config, key)
            .and_then(|v| v.as_array())
            .map(|list| list.iter().map(|v| v.as_u64().and_then(|r| usize::try_from(r).ok())))
            .and_then(Iterator::collect)
            .ok_or_else(|| Error::metadata(key, "no list of whole numbers", "one ratio a layer"))?;
        let layers = per_layer(key, &ratios, shape.layers)?.to_vec();
        if let Some(extra) = ratios[layers.len()..].iter().find(|&&r| r != 0) {
            return Err(Error::metadata(key, extra, "0 for the draft blocks after the layers"));
        }
        shape.ratios = layers;
        shape.check()
    }

    /// Metadata that says all this in a GGUF file, with the keys that other readers want.
    #[must_use]
    pub fn to_metadata(&self) -> Vec<(String, Value)> {
        let narrow = |n: usize| u32::try_from(n).expect("checked to fit when the shape was read");
        let mut all = vec![("general.architecture".into(), Value::String(ARCHITECTURE.into()))];
        let mut put = |name: &str, value: Value| all.push((gguf_key(name), value));
        for n in NUMBERS {
            put(n.gguf, Value::U32(narrow((n.get)(self))));
        }
        put("attention.value_length", Value::U32(narrow(self.head_width)));
        for f in FLOATS {
            put(f.gguf, Value::F32((f.get)(self)));
        }
        for fixed in FIXED {
            if let Some(name) = fixed.gguf {
                put(name, Value::U32(fixed.value));
            }
        }
        put("expert_weights_norm", Value::Bool(true));
        put("rope.scaling.type", Value::String("yarn".into()));
        let ratios = self.ratios.iter().map(|&r| narrow(r)).collect();
        put("attention.compress_ratios", Value::Array(Array::U32(ratios)));
        put("swiglu_clamp_exp", Value::Array(Array::F32(self.swiglu_limits.clone())));
        all
    }

    /// What must hold between the numbers.
    fn check(self) -> Result<Shape, Error> {
        let need = |holds: bool, key: &str, found: String, wanted: &str| {
            if holds { Ok(()) } else { Err(Error::metadata(key, found, wanted)) }
        };
        let nope = self.head_width.checked_sub(self.rope_width);
        need(
            self.rope_width.is_multiple_of(2)
                && nope.is_some_and(|n| n.is_multiple_of(ROUND_TRIP_BLOCK)),
            "rope.dimension_count",
            format!("{} rotated dims in heads of {}", self.rope_width, self.head_width),
            "an even number that leaves a multiple of 64 dims unrotated",
        )?;
        need(
            self.heads.is_multiple_of(self.output_groups),
            "attention.output_group_count",
            format!("{} groups of {} heads", self.output_groups, self.heads),
            "a number that divides the heads",
        )?;
        need(
            self.experts_used <= self.experts,
            "expert_used_count",
            format!("{} of {} experts", self.experts_used, self.experts),
            "no more than there are",
        )?;
        need(
            self.hash_layers <= self.layers,
            "hash_layer_count",
            format!("{} of {} layers", self.hash_layers, self.layers),
            "no more than there are",
        )?;
        need(
            self.index_width == INDEX_WIDTH && self.rope_width <= INDEX_WIDTH,
            "attention.indexer.key_length",
            format!("{} with {} rotated dims", self.index_width, self.rope_width),
            "128, the width of an FP4 row, of which no more than all are rotated",
        )?;
        for &ratio in &self.ratios {
            need(
                matches!(ratio, 0 | 4 | 128),
                "attention.compress_ratios",
                ratio.to_string(),
                "0, 4 or 128 for each layer",
            )?;
        }
        for &limit in &self.swiglu_limits {
            need(
                limit.is_finite() && limit > 0.0,
                "swiglu_clamp_exp",
                limit.to_string(),
                "a finite number above 0 for each layer",
            )?;
        }
        Ok(self)
    }

    /// Rows of a layer's mixing matrix: pre, post and streams x streams.
    #[must_use]
    pub fn mixes(&self) -> usize {
        (2 + self.streams) * self.streams
    }

    /// Clamp of the draft block, which follows the last layer.
    #[must_use]
    pub fn draft_swiglu_limit(&self) -> f32 {
        self.swiglu_limits.last().copied().expect("a shape has at least one layer")
    }
}

fn gguf_key(name: &str) -> String {
    format!("{ARCHITECTURE}.{name}")
}

fn number(key: &str, value: Option<u32>, range: &RangeInclusive<u32>) -> Result<usize, Error> {
    let wanted = || format!("a whole number from {} to {}", range.start(), range.end());
    match value {
        Some(v) if range.contains(&v) => {
            Ok(usize::try_from(v).expect("u32 fits the address space of every supported machine"))
        }
        Some(v) => Err(Error::metadata(key, v, wanted())),
        None => Err(Error::metadata(key, "nothing", wanted())),
    }
}

fn float(key: &str, value: Option<f32>, range: &RangeInclusive<f32>) -> Result<f32, Error> {
    let wanted = || format!("a number from {} to {}", range.start(), range.end());
    match value {
        Some(v) if range.contains(&v) => Ok(v),
        Some(v) => Err(Error::metadata(key, v, wanted())),
        None => Err(Error::metadata(key, "nothing", wanted())),
    }
}

/// The first entries of a list that has one a layer, or more.
fn per_layer<'a, T>(key: &str, list: &'a [T], layers: usize) -> Result<&'a [T], Error> {
    list.get(..layers).ok_or_else(|| {
        let found = format!("{} entries", list.len());
        Error::metadata(key, found, format!("at least one for each of {layers} layers"))
    })
}

/// A value by its path, where `.` leads into an object; null counts as absent.
fn lookup<'a>(config: &'a serde_json::Value, path: &str) -> Option<&'a serde_json::Value> {
    path.split('.').try_fold(config, |at, key| at.get(key)).filter(|v| !v.is_null())
}

fn whole(config: &serde_json::Value, key: &str) -> Result<Option<u32>, Error> {
    let Some(found) = lookup(config, key) else { return Ok(None) };
    let value = found.as_u64().and_then(|v| u32::try_from(v).ok());
    value.map(Some).ok_or_else(|| Error::metadata(key, found, "a whole number"))
}

fn real(config: &serde_json::Value, key: &str) -> Result<Option<f32>, Error> {
    let Some(found) = lookup(config, key) else { return Ok(None) };
    #[expect(clippy::cast_possible_truncation, reason = "the model computes with f32 constants")]
    let value = found.as_f64().map(|v| v as f32);
    value.map(Some).ok_or_else(|| Error::metadata(key, found, "a number"))
}
