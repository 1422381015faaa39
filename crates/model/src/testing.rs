//! Tiny random models, for tests here and in other crates.
//!
//! Weights are functions of a seed and a published tensor name, so that nothing needs to be
//! shipped; the models `flash` and `pro` are those of the oracle
//! (`tests/golden/make/oracle/make_tiny_v4.py`), value by value.

use crate::deepseek_v4::{
    Field, Kind, Shape, SparkShape, TensorSpec, drafter_specs, spark_specs, tensor_specs,
};
use ironstar_gguf::{Gguf, TensorKind, Value, Writer};
use ironstar_quant::Format;
use std::io::Cursor;

/// A tensor as it goes into a file.
pub type Encoded = (TensorKind, Vec<u8>);

/// A random model: its numbers and the seed of its weights.
#[derive(Clone, Debug)]
pub struct Tiny {
    /// Part of every tensor's key.
    pub seed: u64,
    /// The numbers.
    pub shape: Shape,
}

impl Tiny {
    /// The oracle's model with the pattern of V4 Flash.
    #[must_use]
    pub fn flash() -> Tiny {
        Tiny { seed: 13, shape: base_shape() }
    }

    /// The oracle's model with the pattern of V4 PRO.
    #[must_use]
    pub fn pro() -> Tiny {
        let shape = Shape {
            ratios: vec![128, 128, 4, 128, 4, 128],
            output_groups: 4,
            experts: 12,
            experts_used: 4,
            hash_layers: 3,
            index_top_k: 64,
            expert_scale: 2.5,
            ..base_shape()
        };
        Tiny { seed: 22, shape }
    }

    /// A smaller one, for tests that need any model.
    #[must_use]
    pub fn small(seed: u64) -> Tiny {
        let shape = Shape {
            layers: 3,
            vocabulary: 96,
            width: 64,
            heads: 2,
            q_rank: 32,
            output_groups: 2,
            output_rank: 32,
            window: 16,
            ratios: vec![0, 4, 128],
            index_heads: 2,
            index_top_k: 8,
            experts: 4,
            experts_used: 2,
            expert_width: 64,
            hash_layers: 1,
            swiglu_limits: vec![10.0; 3],
            ..base_shape()
        };
        Tiny { seed, shape }
    }

    /// The backbone with every matrix in F32.
    #[must_use]
    pub fn gguf(&self) -> Gguf {
        self.gguf_as(&floats)
    }

    /// The draft block with every matrix in F32.
    #[must_use]
    pub fn drafter(&self) -> Gguf {
        self.drafter_as(&floats)
    }

    /// The backbone, each tensor encoded by a function of its table entry and values.
    #[must_use]
    pub fn gguf_as(&self, encode: &dyn Fn(&TensorSpec, &[f32]) -> Encoded) -> Gguf {
        self.file(&tensor_specs(&self.shape), self.shape.to_metadata(), encode)
    }

    /// The draft block, likewise.
    #[must_use]
    pub fn drafter_as(&self, encode: &dyn Fn(&TensorSpec, &[f32]) -> Encoded) -> Gguf {
        let metadata =
            vec![("general.architecture".into(), Value::String("deepseek4_mtp_support".into()))];
        self.file(&drafter_specs(&self.shape), metadata, encode)
    }

    /// A DSpark drafter of three stages on the last three layers, with every matrix in F32.
    #[must_use]
    pub fn dspark(&self) -> Gguf {
        self.dspark_as(&floats)
    }

    /// The DSpark drafter, each tensor encoded by a function of its table entry and values.
    #[must_use]
    pub fn dspark_as(&self, encode: &dyn Fn(&TensorSpec, &[f32]) -> Encoded) -> Gguf {
        self.dspark_of(&self.spark(), encode)
    }

    /// A DSpark drafter of these numbers.
    #[must_use]
    pub fn dspark_of(
        &self,
        spark: &SparkShape,
        encode: &dyn Fn(&TensorSpec, &[f32]) -> Encoded,
    ) -> Gguf {
        self.file(&spark_specs(&self.shape, spark), spark.to_metadata(&self.shape), encode)
    }

    /// Numbers of [`Tiny::dspark`].
    #[must_use]
    pub fn spark(&self) -> SparkShape {
        let layers = self.shape.layers;
        let noise = u32::try_from(self.shape.vocabulary - 1).expect("a small vocabulary");
        let targets = (layers.saturating_sub(3)..layers).collect();
        SparkShape { stages: 3, block: 5, rank: 32, noise, targets }
    }

    fn file(
        &self,
        specs: &[TensorSpec],
        metadata: Vec<(String, Value)>,
        encode: &dyn Fn(&TensorSpec, &[f32]) -> Encoded,
    ) -> Gguf {
        let encoded = specs.iter().map(|spec| match spec.kind {
            Kind::Table => (spec, (TensorKind::I32, self.table(spec))),
            _ => (spec, encode(spec, &self.values(spec))),
        });
        Gguf::from_bytes(file_bytes(&metadata, encoded)).expect("our own writer's bytes")
    }

    /// The prompt and decode tokens of the oracle's run, and the token after them.
    #[must_use]
    pub fn tokens(&self, count: usize) -> Vec<u32> {
        let span = f64::from(u32::try_from(self.shape.vocabulary - 2).expect("a small vocabulary"));
        let mut uniforms = Uniforms::new(self.seed, "input_ids");
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to vocabulary"
        )]
        let mut ids: Vec<u32> =
            (0..count).map(|_| 2 + (uniforms.next() * span).floor() as u32).collect();
        if let Some(first) = ids.first_mut() {
            *first = 0;
        }
        ids
    }

    /// Values of a tensor, in the order of the file.
    #[must_use]
    pub fn values(&self, spec: &TensorSpec) -> Vec<f32> {
        let (mean, std) = distribution(spec);
        let half_width = std * 3f64.sqrt();
        let per_matrix = spec.dims.iter().take(2).product();
        let mut values = Vec::with_capacity(per_matrix * spec.stack());
        for name in spec.published_names() {
            let mut uniforms = Uniforms::new(self.seed, &name);
            #[expect(clippy::cast_possible_truncation, reason = "the recipe rounds once, here")]
            values.extend(
                (0..per_matrix).map(|_| (mean + half_width * (2.0 * uniforms.next() - 1.0)) as f32),
            );
        }
        values
    }

    /// Expert ids: of each token, the experts with the smallest numbers, in that order.
    fn table(&self, spec: &TensorSpec) -> Vec<u8> {
        let mut uniforms = Uniforms::new(self.seed, &spec.published);
        let mut bytes = Vec::new();
        for _ in 0..self.shape.vocabulary {
            let mut keys: Vec<(f64, u32)> =
                (0u32..).take(self.shape.experts).map(|e| (uniforms.next(), e)).collect();
            keys.sort_by(|a, b| a.0.total_cmp(&b.0));
            bytes.extend(keys.iter().take(self.shape.experts_used).flat_map(|k| k.1.to_le_bytes()));
        }
        bytes
    }
}

fn base_shape() -> Shape {
    Shape {
        layers: 6,
        vocabulary: 512,
        width: 256,
        streams: 4,
        sinkhorn_iterations: 20,
        hc_eps: 1e-6,
        heads: 8,
        head_width: 128,
        rope_width: 64,
        q_rank: 128,
        output_groups: 2,
        output_rank: 128,
        window: 32,
        ratios: vec![0, 0, 4, 128, 4, 128],
        index_heads: 16,
        index_width: 128,
        index_top_k: 48,
        experts: 8,
        experts_used: 3,
        expert_width: 256,
        hash_layers: 2,
        expert_scale: 1.5,
        swiglu_limits: vec![10.0; 6],
        norm_eps: 1e-6,
        rope_base: 10_000.0,
        compress_rope_base: 160_000.0,
        yarn_factor: 16.0,
        yarn_beta_fast: 32.0,
        yarn_beta_slow: 1.0,
        yarn_original_context: 65_536,
        context: 4096,
    }
}

/// Mean and standard deviation, chosen so that every mechanism shows in the output.
fn distribution(spec: &TensorSpec) -> (f64, f64) {
    use Field as F;
    let columns = f64::from(u32::try_from(spec.dims[0]).expect("a tiny model"));
    let linear = |gain: f64| (0.0, gain / columns.sqrt());
    match spec.field {
        F::Embedding | F::SparkMarkovEmbedding => (0.0, 1.0),
        F::SparkConfidence => linear(0.25),
        F::HcAttnMatrix | F::HcFfnMatrix | F::HeadMatrix => (0.0, 1.0 / columns.sqrt()),
        F::HcAttnBase | F::HcFfnBase | F::HeadBase => (0.0, 0.8),
        F::HcAttnScale | F::HcFfnScale | F::HeadScale => (0.7, 0.2),
        F::KeyValueNorm | F::CompressorNorm => (2.0, 0.15),
        F::Sinks => (0.0, 1.0),
        F::CompressorPositions | F::IndexCompressorPositions => (0.0, 0.7),
        F::RouterBias => (0.0, 0.5),
        F::OutputA | F::OutputB | F::CompressorScores | F::IndexCompressorScores | F::Router => {
            linear(1.5)
        }
        F::ExpertGate | F::ExpertUp | F::SharedGate | F::SharedUp => linear(3.0),
        F::ExpertDown | F::SharedDown => linear(0.25),
        F::Output => linear(2.0),
        _ if spec.kind == Kind::Vector => (1.0, 0.15),
        _ => linear(1.0),
    }
}

/// Doubles in [0, 1) from a key: splitmix64 of the key's FNV-1a hash.
pub struct Uniforms {
    state: u64,
}

impl Uniforms {
    /// The sequence of "SEED/NAME".
    #[must_use]
    pub fn new(seed: u64, name: &str) -> Self {
        let text = format!("{seed}/{name}");
        let hash = |h: u64, c: u8| (h ^ u64::from(c)).wrapping_mul(0x100_0000_01B3);
        Uniforms { state: text.bytes().fold(0xCBF2_9CE4_8422_2325, hash) }
    }

    /// The state before the next number; the key's hash at first.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.state
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends, and no adapter is wanted")]
    pub fn next(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let value = (z >> 11) as f64 * 2f64.powi(-53);
        value
    }
}

/// F32, whatever the tensor.
#[must_use]
pub fn floats(_: &TensorSpec, values: &[f32]) -> Encoded {
    encode(Format::F32, values)
}

/// Values in a block format.
///
/// # Panics
/// When the format has no encoder.
#[must_use]
pub fn encode(format: Format, values: &[f32]) -> Encoded {
    let info = format.info();
    let encode = info.encode.expect("the caller knows which formats can be written");
    let mut bytes = vec![0; values.len() / info.block_elements * info.block_bytes];
    encode(values, None, &mut bytes);
    (TensorKind::Block(format), bytes)
}

/// A GGUF file in memory.
pub fn file_bytes<'s>(
    metadata: &[(String, Value)],
    tensors: impl Iterator<Item = (&'s TensorSpec, Encoded)>,
) -> Vec<u8> {
    let tensors: Vec<_> = tensors.collect();
    let mut out = Cursor::new(Vec::new());
    let mut writer = Writer::new(&mut out);
    for (key, value) in metadata {
        writer.metadata(key, value.clone()).expect("keys differ");
    }
    for (spec, (kind, _)) in &tensors {
        let dims: Vec<u64> = spec.dims.iter().map(|&d| d as u64).collect();
        writer.tensor(&spec.name, *kind, &dims).expect("names differ");
    }
    for (spec, (_, bytes)) in &tensors {
        writer.data(&spec.name, bytes).expect("data in the announced order");
    }
    writer.finish().expect("all tensors were written");
    out.into_inner()
}
