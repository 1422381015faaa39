//! Working buffers of a step, made once for the longest step. Every one is written before it is
//! read in each block; nothing in them outlives a step.

use super::dspark::SparkShape;
use super::shape::Shape;
use super::weights::parts;
use crate::{Error, Options, PlanLine};
use ironstar_device::{Arena, Backend, Buffer, Element};

/// Rows whose logits are computed at a time.
pub(super) const LOGIT_ROWS: usize = 32;

/// Shapes are in [`layout`]; n is the number of rows of a step.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    /// Residual streams.
    pub x: Buffer,
    /// Normalised input of a sublayer, then its output.
    pub y: Buffer,
    pub z: Buffer,
    /// Coefficients between `hc_pre` and `hc_post`.
    pub post: Buffer,
    pub comb: Buffer,
    /// Attention.
    pub q_a: Buffer,
    pub q: Buffer,
    pub kv_plain: Buffer,
    pub kv: Buffer,
    pub attended: Buffer,
    pub output_a: Buffer,
    /// Compressor and indexer.
    pub values: Buffer,
    pub scores: Buffer,
    pub index_values: Buffer,
    pub index_scores: Buffer,
    pub index_q: Buffer,
    pub index_weights: Buffer,
    pub choice: Buffer,
    /// FFN.
    pub router: Buffer,
    pub ids: Buffer,
    pub id_weights: Buffer,
    /// Output head, for [`LOGIT_ROWS`] rows.
    pub picked: Buffer,
    pub hidden: Buffer,
    pub logits: Buffer,
    pub draft: Option<DraftScratch>,
    pub spark: Option<SparkScratch>,
}

/// What only a drafter needs.
#[derive(Clone, Copy)]
pub(super) struct DraftScratch {
    /// Streams of the positions before, and what they are projected to.
    pub before: Buffer,
    pub x: Buffer,
    /// Embeddings, and what they are projected to.
    pub embedded: Buffer,
    pub projected: Buffer,
}

/// What only DSpark needs.
#[derive(Clone, Copy)]
pub(super) struct SparkScratch {
    /// Sum of the streams of a layer's rows, and one stream.
    pub sum: Buffer,
    pub part: Buffer,
    /// Sums of all target layers, layer by layer, then row by row.
    pub sums: Buffer,
    pub features: Buffer,
    pub main: Buffer,
    /// `[rank]` of one token
    pub markov: Buffer,
}

/// Which drafter the buffers are for.
#[derive(Clone, Copy)]
pub(super) enum For<'a> {
    None,
    Mtp,
    Spark(&'a SparkShape),
}

/// Name, element and length of every buffer.
fn layout(
    shape: &Shape,
    options: &Options,
    drafter: For<'_>,
) -> Vec<(&'static str, Element, usize)> {
    use Element::{F32, U32};
    let n = match drafter {
        For::Spark(spark) => options.step_rows_max.max(spark.block),
        For::None | For::Mtp => options.step_rows_max,
    };
    let head_rows = n.min(LOGIT_ROWS);
    let (d, heads) = (shape.width, shape.heads * shape.head_width);
    let compressed = shape.ratios.iter().filter(|&&r| r > 0).map(|&r| parts(r)).max().unwrap_or(0);
    let indexed = usize::from(shape.ratios.contains(&4));
    let index = indexed * parts(4) * shape.index_width;
    let mut all = vec![
        ("x", F32, n * shape.streams * d),
        ("y", F32, n * d),
        ("z", F32, n * d),
        ("post", F32, n * shape.streams),
        ("comb", F32, n * shape.streams * shape.streams),
        ("q_a", F32, n * shape.q_rank),
        ("q", F32, n * heads),
        ("kv_plain", F32, n * shape.head_width),
        ("kv", options.rows.element(), n * shape.head_width),
        ("attended", F32, n * heads),
        ("output_a", F32, n * shape.output_groups * shape.output_rank),
        ("values", F32, n * compressed * shape.head_width),
        ("scores", F32, n * compressed * shape.head_width),
        ("index_values", F32, n * index),
        ("index_scores", F32, n * index),
        ("index_q", F32, n * indexed * shape.index_heads * shape.index_width),
        ("index_weights", F32, n * indexed * shape.index_heads),
        ("choice", U32, n * indexed * shape.index_top_k),
        ("router", F32, n * shape.experts),
        ("ids", U32, n * shape.experts_used),
        ("id_weights", F32, n * shape.experts_used),
        ("picked", F32, head_rows * shape.streams * d),
        ("hidden", F32, head_rows * d),
        ("logits", F32, head_rows * shape.vocabulary),
    ];
    if let For::Spark(spark) = drafter {
        all.extend([
            ("spark_sum", F32, n * d),
            ("spark_part", F32, n * d),
            ("spark_sums", F32, n * spark.targets.len() * d),
            ("spark_features", F32, n * spark.targets.len() * d),
            ("spark_main", F32, n * d),
            ("spark_markov", F32, spark.rank),
        ]);
    }
    if let For::Mtp = drafter {
        all.extend([
            ("draft_before", F32, n * shape.streams * d),
            ("draft_x", F32, n * shape.streams * d),
            ("draft_embedded", F32, n * d),
            ("draft_projected", F32, n * d),
        ]);
    }
    all
}

/// Bytes of all working buffers.
pub(super) fn plan(shape: &Shape, options: &Options, drafter: For<'_>) -> PlanLine {
    let bytes = |&(_, element, len): &(_, Element, usize)| element.bytes() as u64 * len as u64;
    PlanLine { what: "scratch", bytes: layout(shape, options, drafter).iter().map(bytes).sum() }
}

impl Scratch {
    /// The buffers of a step's rows from one of them on. Those of compressors have rows of another
    /// length in each layer, and begin where they did.
    pub fn behind(&self, row: usize, shape: &Shape) -> Scratch {
        let rows = (self.y.len / shape.width).max(1);
        let behind = |buffer: Buffer| buffer.behind(row * (buffer.len / rows));
        Scratch {
            x: behind(self.x),
            y: behind(self.y),
            z: behind(self.z),
            post: behind(self.post),
            comb: behind(self.comb),
            q_a: behind(self.q_a),
            q: behind(self.q),
            kv_plain: behind(self.kv_plain),
            kv: behind(self.kv),
            attended: behind(self.attended),
            output_a: behind(self.output_a),
            index_values: behind(self.index_values),
            index_scores: behind(self.index_scores),
            index_q: behind(self.index_q),
            index_weights: behind(self.index_weights),
            choice: behind(self.choice),
            router: behind(self.router),
            ids: behind(self.ids),
            id_weights: behind(self.id_weights),
            ..*self
        }
    }

    pub fn new(
        shape: &Shape,
        options: &Options,
        drafter: For<'_>,
        backend: &mut dyn Backend,
        arena: Arena,
    ) -> Result<Scratch, Error> {
        let layout = layout(shape, options, drafter);
        let mut made = Vec::with_capacity(layout.len());
        for (name, element, len) in layout {
            made.push((name, backend.alloc(arena, element, len)?));
        }
        let of = |name| {
            let found = made.iter().find(|(n, _)| *n == name);
            found.expect("every field's name is in the layout").1
        };
        let spark = matches!(drafter, For::Spark(_)).then(|| SparkScratch {
            sum: of("spark_sum"),
            part: of("spark_part"),
            sums: of("spark_sums"),
            features: of("spark_features"),
            main: of("spark_main"),
            markov: of("spark_markov"),
        });
        let draft = matches!(drafter, For::Mtp).then(|| DraftScratch {
            before: of("draft_before"),
            x: of("draft_x"),
            embedded: of("draft_embedded"),
            projected: of("draft_projected"),
        });
        Ok(Scratch {
            x: of("x"),
            y: of("y"),
            z: of("z"),
            post: of("post"),
            comb: of("comb"),
            q_a: of("q_a"),
            q: of("q"),
            kv_plain: of("kv_plain"),
            kv: of("kv"),
            attended: of("attended"),
            output_a: of("output_a"),
            values: of("values"),
            scores: of("scores"),
            index_values: of("index_values"),
            index_scores: of("index_scores"),
            index_q: of("index_q"),
            index_weights: of("index_weights"),
            choice: of("choice"),
            router: of("router"),
            ids: of("ids"),
            id_weights: of("id_weights"),
            picked: of("picked"),
            hidden: of("hidden"),
            logits: of("logits"),
            draft,
            spark,
        })
    }
}
