//! The one table of tensors: name in a GGUF file, published name, class, dims, and how ranks would
//! cut it.
//!
//! Loading, checking, planning, inspecting and quantizing all walk [`tensor_specs`],
//! [`drafter_specs`] and [`spark_specs`].

use super::dspark::SparkShape;
use super::shape::Shape;

/// What a tensor is used as, which says how it may be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A small vector or table of floats, kept as f32.
    Vector,
    /// A matrix that needs a float format.
    Float,
    /// A matrix in any block format.
    Dense,
    /// A stack of expert matrices in any block format.
    Routed,
    /// Expert ids.
    Table,
}

/// How tensor-parallel ranks would share a tensor (DESIGN 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Every rank has all of it.
    Whole,
    /// By output rows.
    Rows,
    /// Along the input, on the borders of shards.
    Columns,
}

/// Where a tensor belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The model around the layers.
    Top,
    /// A layer of the backbone.
    Layer(usize),
    /// The draft block (MTP), which lies in a file of its own.
    Draft,
    /// A stage of DSpark, which lies in a file of its own.
    Spark(usize),
}

/// What a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the table below gives both names, class and dims of each")]
pub enum Field {
    Embedding,
    Output,
    OutputNorm,
    HeadMatrix,
    HeadBase,
    HeadScale,
    HcAttnMatrix,
    HcAttnBase,
    HcAttnScale,
    AttnNorm,
    QueryA,
    QueryNorm,
    QueryB,
    KeyValue,
    KeyValueNorm,
    Sinks,
    OutputA,
    OutputB,
    CompressorPositions,
    CompressorValues,
    CompressorScores,
    CompressorNorm,
    IndexQuery,
    IndexWeights,
    IndexCompressorPositions,
    IndexCompressorValues,
    IndexCompressorScores,
    IndexCompressorNorm,
    HcFfnMatrix,
    HcFfnBase,
    HcFfnScale,
    FfnNorm,
    Router,
    RouterBias,
    RouterTable,
    ExpertGate,
    ExpertUp,
    ExpertDown,
    SharedGate,
    SharedUp,
    SharedDown,
    DraftEmbeddingProjection,
    DraftStreamProjection,
    DraftEmbeddingNorm,
    DraftStreamNorm,
    DraftNorm,
    SparkMainProjection,
    SparkMainNorm,
    SparkMarkovEmbedding,
    SparkMarkovOutput,
    SparkConfidence,
}

/// One tensor that a model of some shape has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in a GGUF file.
    pub name: String,
    /// Name in a published checkpoint; `{}` stands for the number of an expert.
    pub published: String,
    /// Where it belongs.
    pub place: Place,
    /// What it is.
    pub field: Field,
    /// How it may be stored.
    pub kind: Kind,
    /// Dims, innermost first as in the file.
    pub dims: Vec<usize>,
    /// How ranks share it.
    pub cut: Cut,
    /// Whether a file may leave it out.
    pub optional: bool,
}

impl TensorSpec {
    /// Matrices behind one another: the experts of a stack, else 1.
    #[must_use]
    pub fn stack(&self) -> usize {
        self.dims.get(2).copied().unwrap_or(1)
    }

    /// Published names in the order of the stack.
    #[must_use]
    pub fn published_names(&self) -> Vec<String> {
        match self.kind {
            Kind::Routed => {
                (0..self.stack()).map(|e| self.published.replace("{}", &e.to_string())).collect()
            }
            _ => vec![self.published.clone()],
        }
    }
}

/// Which places have a row of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum In {
    Top,
    /// Layers, the draft block, and DSpark's stages.
    Blocks,
    /// Layers with any compression.
    Compressed,
    /// Layers of ratio 4.
    Indexed,
    /// Blocks that choose experts by score.
    Scored,
    /// Layers that choose experts by token.
    Hashed,
    Draft,
    /// DSpark's first stage.
    SparkFirst,
    /// DSpark's last stage.
    SparkLast,
}

/// What dims are computed from: the shape, and the ratio and parts of the layer's compressor; of
/// DSpark, how many target layers there are, and the rank.
struct At<'a> {
    shape: &'a Shape,
    ratio: usize,
    parts: usize,
    targets: usize,
    rank: usize,
}

struct Row {
    field: Field,
    gguf: &'static str,
    published: &'static str,
    held: In,
    kind: Kind,
    cut: Cut,
    dims: fn(&At<'_>) -> Vec<usize>,
}

macro_rules! row {
    ($field:ident, $held:ident, $kind:ident, $cut:ident,
     $gguf:literal, $published:literal, $dims:expr) => {
        Row {
            field: Field::$field,
            gguf: $gguf,
            published: $published,
            held: In::$held,
            kind: Kind::$kind,
            cut: Cut::$cut,
            dims: $dims,
        }
    };
}

#[rustfmt::skip]
const TABLE: &[Row] = &[
    row!(Embedding, Top, Dense, Whole,
        "token_embd.weight", "embed.weight",
        |a| vec![a.shape.width, a.shape.vocabulary]),

    row!(HcAttnMatrix, Blocks, Float, Whole,
        "hc_attn_fn.weight", "hc_attn_fn",
        |a| vec![a.streams(), a.shape.mixes()]),
    row!(HcAttnBase, Blocks, Vector, Whole,
        "hc_attn_base.weight", "hc_attn_base",
        |a| vec![a.shape.mixes()]),
    row!(HcAttnScale, Blocks, Vector, Whole,
        "hc_attn_scale.weight", "hc_attn_scale",
        |_| vec![3]),
    row!(AttnNorm, Blocks, Vector, Whole,
        "attn_norm.weight", "attn_norm.weight",
        |a| vec![a.shape.width]),
    row!(QueryA, Blocks, Dense, Whole,
        "attn_q_a.weight", "attn.wq_a.weight",
        |a| vec![a.shape.width, a.shape.q_rank]),
    row!(QueryNorm, Blocks, Vector, Whole,
        "attn_q_a_norm.weight", "attn.q_norm.weight",
        |a| vec![a.shape.q_rank]),
    row!(QueryB, Blocks, Dense, Rows,
        "attn_q_b.weight", "attn.wq_b.weight",
        |a| vec![a.shape.q_rank, a.heads()]),
    row!(KeyValue, Blocks, Dense, Whole,
        "attn_kv.weight", "attn.wkv.weight",
        |a| vec![a.shape.width, a.shape.head_width]),
    row!(KeyValueNorm, Blocks, Vector, Whole,
        "attn_kv_a_norm.weight", "attn.kv_norm.weight",
        |a| vec![a.shape.head_width]),
    row!(Sinks, Blocks, Vector, Rows,
        "attn_sinks.weight", "attn.attn_sink",
        |a| vec![a.shape.heads]),
    row!(CompressorPositions, Compressed, Vector, Whole,
        "attn_compressor_ape.weight", "attn.compressor.ape",
        |a| vec![a.parts * a.shape.head_width, a.ratio]),
    row!(CompressorValues, Compressed, Float, Whole,
        "attn_compressor_kv.weight", "attn.compressor.wkv.weight",
        |a| vec![a.shape.width, a.parts * a.shape.head_width]),
    row!(CompressorScores, Compressed, Float, Whole,
        "attn_compressor_gate.weight", "attn.compressor.wgate.weight",
        |a| vec![a.shape.width, a.parts * a.shape.head_width]),
    row!(CompressorNorm, Compressed, Vector, Whole,
        "attn_compressor_norm.weight", "attn.compressor.norm.weight",
        |a| vec![a.shape.head_width]),
    row!(IndexQuery, Indexed, Dense, Whole,
        "indexer.attn_q_b.weight", "attn.indexer.wq_b.weight",
        |a| vec![a.shape.q_rank, a.shape.index_heads * a.shape.index_width]),
    row!(IndexWeights, Indexed, Float, Whole,
        "indexer.proj.weight", "attn.indexer.weights_proj.weight",
        |a| vec![a.shape.width, a.shape.index_heads]),
    row!(IndexCompressorPositions, Indexed, Vector, Whole,
        "indexer_compressor_ape.weight", "attn.indexer.compressor.ape",
        |a| vec![a.parts * a.shape.index_width, a.ratio]),
    row!(IndexCompressorValues, Indexed, Float, Whole,
        "indexer_compressor_kv.weight", "attn.indexer.compressor.wkv.weight",
        |a| vec![a.shape.width, a.parts * a.shape.index_width]),
    row!(IndexCompressorScores, Indexed, Float, Whole,
        "indexer_compressor_gate.weight", "attn.indexer.compressor.wgate.weight",
        |a| vec![a.shape.width, a.parts * a.shape.index_width]),
    row!(IndexCompressorNorm, Indexed, Vector, Whole,
        "indexer_compressor_norm.weight", "attn.indexer.compressor.norm.weight",
        |a| vec![a.shape.index_width]),
    row!(OutputA, Blocks, Dense, Rows,
        "attn_output_a.weight", "attn.wo_a.weight",
        |a| vec![a.heads() / a.shape.output_groups, a.output_ranks()]),
    row!(OutputB, Blocks, Dense, Columns,
        "attn_output_b.weight", "attn.wo_b.weight",
        |a| vec![a.output_ranks(), a.shape.width]),

    row!(HcFfnMatrix, Blocks, Float, Whole,
        "hc_ffn_fn.weight", "hc_ffn_fn",
        |a| vec![a.streams(), a.shape.mixes()]),
    row!(HcFfnBase, Blocks, Vector, Whole,
        "hc_ffn_base.weight", "hc_ffn_base",
        |a| vec![a.shape.mixes()]),
    row!(HcFfnScale, Blocks, Vector, Whole,
        "hc_ffn_scale.weight", "hc_ffn_scale",
        |_| vec![3]),
    row!(FfnNorm, Blocks, Vector, Whole,
        "ffn_norm.weight", "ffn_norm.weight",
        |a| vec![a.shape.width]),
    row!(Router, Blocks, Float, Whole,
        "ffn_gate_inp.weight", "ffn.gate.weight",
        |a| vec![a.shape.width, a.shape.experts]),
    row!(RouterBias, Scored, Vector, Whole,
        "exp_probs_b.bias", "ffn.gate.bias",
        |a| vec![a.shape.experts]),
    row!(RouterTable, Hashed, Table, Whole,
        "ffn_gate_tid2eid.weight", "ffn.gate.tid2eid",
        |a| vec![a.shape.experts_used, a.shape.vocabulary]),
    row!(ExpertGate, Blocks, Routed, Rows,
        "ffn_gate_exps.weight", "ffn.experts.{}.w1.weight",
        |a| a.experts_in()),
    row!(ExpertUp, Blocks, Routed, Rows,
        "ffn_up_exps.weight", "ffn.experts.{}.w3.weight",
        |a| a.experts_in()),
    row!(ExpertDown, Blocks, Routed, Columns,
        "ffn_down_exps.weight", "ffn.experts.{}.w2.weight",
        |a| vec![a.shape.expert_width, a.shape.width, a.shape.experts]),
    row!(SharedGate, Blocks, Dense, Rows,
        "ffn_gate_shexp.weight", "ffn.shared_experts.w1.weight",
        |a| a.shared_in()),
    row!(SharedUp, Blocks, Dense, Rows,
        "ffn_up_shexp.weight", "ffn.shared_experts.w3.weight",
        |a| a.shared_in()),
    row!(SharedDown, Blocks, Dense, Columns,
        "ffn_down_shexp.weight", "ffn.shared_experts.w2.weight",
        |a| vec![a.shape.expert_width, a.shape.width]),

    row!(HeadMatrix, Top, Float, Whole,
        "output_hc_fn.weight", "hc_head_fn",
        |a| vec![a.streams(), a.shape.streams]),
    row!(HeadBase, Top, Vector, Whole,
        "output_hc_base.weight", "hc_head_base",
        |a| vec![a.shape.streams]),
    row!(HeadScale, Top, Vector, Whole,
        "output_hc_scale.weight", "hc_head_scale",
        |_| vec![1]),
    row!(OutputNorm, Top, Vector, Whole,
        "output_norm.weight", "norm.weight",
        |a| vec![a.shape.width]),
    row!(Output, Top, Dense, Rows,
        "output.weight", "head.weight",
        |a| vec![a.shape.width, a.shape.vocabulary]),

    row!(DraftEmbeddingProjection, Draft, Dense, Whole,
        "e_proj.weight", "e_proj.weight",
        |a| a.square()),
    row!(DraftStreamProjection, Draft, Dense, Whole,
        "h_proj.weight", "h_proj.weight",
        |a| a.square()),
    row!(DraftEmbeddingNorm, Draft, Vector, Whole,
        "enorm.weight", "enorm.weight",
        |a| vec![a.shape.width]),
    row!(DraftStreamNorm, Draft, Vector, Whole,
        "hnorm.weight", "hnorm.weight",
        |a| vec![a.shape.width]),
    row!(HeadMatrix, Draft, Float, Whole,
        "hc_head_fn.weight", "hc_head_fn",
        |a| vec![a.streams(), a.shape.streams]),
    row!(HeadBase, Draft, Vector, Whole,
        "hc_head_base.weight", "hc_head_base",
        |a| vec![a.shape.streams]),
    row!(HeadScale, Draft, Vector, Whole,
        "hc_head_scale.weight", "hc_head_scale",
        |_| vec![1]),
    row!(DraftNorm, Draft, Vector, Whole,
        "norm.weight", "norm.weight",
        |a| vec![a.shape.width]),

    row!(SparkMainProjection, SparkFirst, Dense, Whole,
        "main_proj.weight", "main_proj.weight",
        |a| vec![a.targets * a.shape.width, a.shape.width]),
    row!(SparkMainNorm, SparkFirst, Vector, Whole,
        "main_norm.weight", "main_norm.weight",
        |a| vec![a.shape.width]),
    row!(HeadMatrix, SparkLast, Float, Whole,
        "hc_head_fn.weight", "hc_head_fn",
        |a| vec![a.streams(), a.shape.streams]),
    row!(HeadBase, SparkLast, Vector, Whole,
        "hc_head_base.weight", "hc_head_base",
        |a| vec![a.shape.streams]),
    row!(HeadScale, SparkLast, Vector, Whole,
        "hc_head_scale.weight", "hc_head_scale",
        |_| vec![1]),
    row!(DraftNorm, SparkLast, Vector, Whole,
        "norm.weight", "norm.weight",
        |a| vec![a.shape.width]),
    row!(SparkMarkovEmbedding, SparkLast, Dense, Whole,
        "markov_head.markov_w1.weight", "markov_head.markov_w1.weight",
        |a| vec![a.rank, a.shape.vocabulary]),
    row!(SparkMarkovOutput, SparkLast, Dense, Rows,
        "markov_head.markov_w2.weight", "markov_head.markov_w2.weight",
        |a| vec![a.rank, a.shape.vocabulary]),
    row!(SparkConfidence, SparkLast, Vector, Whole,
        "confidence_head.proj.weight", "confidence_head.proj.weight",
        |a| vec![a.shape.width + a.rank, 1]),
];

impl At<'_> {
    fn streams(&self) -> usize {
        self.shape.streams * self.shape.width
    }
    fn heads(&self) -> usize {
        self.shape.heads * self.shape.head_width
    }
    fn output_ranks(&self) -> usize {
        self.shape.output_groups * self.shape.output_rank
    }
    fn square(&self) -> Vec<usize> {
        vec![self.shape.width, self.shape.width]
    }
    fn experts_in(&self) -> Vec<usize> {
        vec![self.shape.width, self.shape.expert_width, self.shape.experts]
    }
    fn shared_in(&self) -> Vec<usize> {
        vec![self.shape.width, self.shape.expert_width]
    }
}

/// Parts of a compressor's row: groups of ratio 4 overlap.
pub(crate) fn parts(ratio: usize) -> usize {
    if ratio == 4 { 2 } else { 1 }
}

/// Every tensor of the backbone, in the order in which a token meets them.
#[must_use]
pub fn tensor_specs(shape: &Shape) -> Vec<TensorSpec> {
    let top = |table: &[Row]| -> Vec<TensorSpec> {
        let rows = table.iter().filter(|r| r.held == In::Top);
        rows.map(|r| spec(shape, None, r, Place::Top)).collect()
    };
    let first_block = TABLE.iter().position(|r| r.held == In::Blocks).unwrap_or(0);
    let mut all = top(&TABLE[..first_block]);
    for layer in 0..shape.layers {
        let ratio = shape.ratios[layer];
        let hashed = layer < shape.hash_layers;
        let held = |r: &&Row| match r.held {
            In::Blocks => true,
            In::Compressed => ratio > 0,
            In::Indexed => ratio == 4,
            In::Scored => !hashed,
            In::Hashed => hashed,
            In::Top | In::Draft | In::SparkFirst | In::SparkLast => false,
        };
        let place = Place::Layer(layer);
        all.extend(TABLE.iter().filter(held).map(|r| spec(shape, None, r, place)));
    }
    all.extend(top(&TABLE[first_block..]));
    all
}

/// Every tensor of the draft block (MTP); embedding and output head are the backbone's.
#[must_use]
pub fn drafter_specs(shape: &Shape) -> Vec<TensorSpec> {
    let held = |r: &&Row| matches!(r.held, In::Blocks | In::Scored | In::Draft);
    TABLE.iter().filter(held).map(|r| spec(shape, None, r, Place::Draft)).collect()
}

/// Every tensor of a DSpark drafter; embedding and output head are the backbone's.
#[must_use]
pub fn spark_specs(shape: &Shape, spark: &SparkShape) -> Vec<TensorSpec> {
    let mut all = Vec::new();
    for stage in 0..spark.stages {
        let held = |r: &&Row| match r.held {
            In::Blocks | In::Scored => true,
            In::SparkFirst => stage == 0,
            In::SparkLast => stage + 1 == spark.stages,
            _ => false,
        };
        let place = Place::Spark(stage);
        all.extend(TABLE.iter().filter(held).map(|r| spec(shape, Some(spark), r, place)));
    }
    all
}

fn spec(shape: &Shape, spark: Option<&SparkShape>, row: &Row, place: Place) -> TensorSpec {
    let ratio = match place {
        Place::Layer(layer) => shape.ratios[layer],
        Place::Top | Place::Draft | Place::Spark(_) => 0,
    };
    let (gguf, published) = match place {
        Place::Top => (String::new(), String::new()),
        Place::Layer(layer) => (format!("blk.{layer}."), format!("layers.{layer}.")),
        Place::Draft => ("mtp.0.".into(), "mtp.0.".into()),
        Place::Spark(stage) => (format!("mtp.{stage}."), format!("mtp.{stage}.")),
    };
    let (targets, rank) = spark.map_or((0, 0), |spark| (spark.targets.len(), spark.rank));
    let at = At { shape, ratio, parts: parts(ratio), targets, rank };
    TensorSpec {
        name: gguf + row.gguf,
        published: published + row.published,
        place,
        field: row.field,
        kind: row.kind,
        dims: (row.dims)(&at),
        cut: row.cut,
        optional: row.field == Field::RouterBias,
    }
}
