//! Matrix products: placeholder in the file layout with the scalar dots of `ironstar_quant`.

use super::CpuConfig;
use super::pool::Pool;
use crate::{Error, MatrixSource, SharedBytes};
use ironstar_quant::{Activation, Format, Int8Blocks, Row, quantize_int8, tree4, tree8};

/// One matrix or a stack of equal ones.
pub(crate) struct Weights {
    format: Format,
    rows: usize,
    columns: usize,
    row_bytes: usize,
    bytes: SharedBytes,
    float_products: bool,
}

/// Activation rows in the form that a matrix wants, shared by all matrices of equal [`Activation`].
#[derive(Default)]
pub(crate) struct Inputs {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
    codes: Vec<i8>,
    scales: Vec<f32>,
}

/// Where a product goes: for each input row (or pick), `matrix.rows / groups` values or as many planes.
pub(crate) enum Output<'a> {
    /// [picks][rows]: the tree over all shards.
    Tree(&'a mut [f32]),
    /// [picks][2][rows]: the trees of shards 0 to 3 and 4 to 7.
    Halves(&'a mut [f32]),
    /// [picks][8][rows]: every shard.
    Shards(&'a mut [f32]),
}

/// One product of a batch.
pub(crate) struct Job<'a> {
    /// The matrix.
    pub weights: &'a Weights,
    /// Which of its stack.
    pub stack: usize,
    /// The matrix's rows are cut into so many equal groups; input row (or pick) number j meets group
    /// j mod groups. 1 for a plain product.
    pub groups: usize,
    /// Input rows.
    pub x: &'a Inputs,
    /// Which of them; `None` means all.
    pub picks: Option<&'a [u32]>,
    /// Result.
    pub out: Output<'a>,
}

/// Runs a batch of independent products as one parallel region.
pub(crate) fn products(pool: &Pool, jobs: &mut [Job<'_>]) {
    for job in jobs {
        job.weights.run(pool, job);
    }
}

impl Weights {
    /// Makes the matrix resident. The caller has checked that the bytes fit the shape.
    pub fn new(source: &MatrixSource<'_>, config: &CpuConfig, _pool: &Pool) -> Result<Self, Error> {
        Ok(Weights {
            format: source.format,
            rows: source.rows,
            columns: source.columns,
            row_bytes: source.format.row_bytes(source.columns).unwrap_or(0),
            bytes: source.bytes.clone(),
            float_products: config.float_products,
        })
    }

    /// What its inputs have to be prepared as.
    pub fn activation(&self) -> Activation {
        if self.float_products { Activation::F32 } else { self.format.info().activation }
    }

    /// Output width.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Resident bytes of one matrix of the stack.
    pub fn bytes_per_matrix(&self) -> u64 {
        (self.rows * self.row_bytes) as u64
    }

    fn row(&self, stack: usize, row: usize) -> &[u8] {
        let start = (stack * self.rows + row) * self.row_bytes;
        &(*self.bytes).as_ref()[start..][..self.row_bytes]
    }

    /// Decodes one row to floats.
    pub fn decode_row(&self, stack: usize, row: usize, out: &mut [f32]) {
        (self.format.info().decode)(self.row(stack, row), out);
    }

    fn run(&self, _pool: &Pool, job: &mut Job<'_>) {
        let (planes, out) = match &mut job.out {
            Output::Tree(out) => (1, &mut **out),
            Output::Halves(out) => (2, &mut **out),
            Output::Shards(out) => (8, &mut **out),
        };
        let rows = self.rows / job.groups;
        let mut decoded = vec![0f32; self.columns];
        for row in 0..self.rows {
            let weights = if self.float_products {
                self.decode_row(job.stack, row, &mut decoded);
                None
            } else {
                Some(self.row(job.stack, row))
            };
            for (at, out) in out.chunks_exact_mut(planes * rows).enumerate() {
                if at % job.groups != row / rows {
                    continue;
                }
                let input = job.picks.map_or(at, |picks| picks[at] as usize);
                let shards = match weights {
                    Some(weights) => {
                        ironstar_quant::dot_shards(self.format, weights, job.x.row(input))
                    }
                    None => float_shards(&decoded, job.x.row(input)),
                };
                let row = row % rows;
                match planes {
                    1 => out[row] = tree8(&shards),
                    2 => {
                        let [a, b, c, d, e, f, g, h] = shards;
                        out[row] = tree4(&[a, b, c, d]);
                        out[rows + row] = tree4(&[e, f, g, h]);
                    }
                    _ => (0..8).for_each(|shard| out[shard * rows + row] = shards[shard]),
                }
            }
        }
    }
}

fn float_shards(weights: &[f32], x: Row<'_>) -> [f32; 8] {
    let bytes: Vec<u8> = weights.iter().flat_map(|v| v.to_le_bytes()).collect();
    ironstar_quant::dot_shards(Format::F32, &bytes, x)
}

impl Inputs {
    /// Takes over `rows` rows of `columns` values, quantised as `activation` says; reuses its buffers.
    pub fn prepare(
        &mut self,
        _pool: &Pool,
        activation: Activation,
        x: &[f32],
        rows: usize,
        columns: usize,
    ) {
        (self.rows, self.columns) = (rows, columns);
        let x = &x[..rows * columns];
        self.values.clear();
        self.codes.clear();
        self.scales.clear();
        match activation.block() {
            None => self.values.extend_from_slice(x),
            Some(block) => {
                self.codes.resize(x.len(), 0);
                self.scales.resize(x.len() / block, 0.0);
                quantize_int8(x, block, &mut self.codes, &mut self.scales);
            }
        }
    }

    fn row(&self, row: usize) -> Row<'_> {
        if self.codes.is_empty() {
            return Row::F32(&self.values[row * self.columns..][..self.columns]);
        }
        let scales = self.scales.len() / self.rows;
        Row::Int8(Int8Blocks {
            codes: &self.codes[row * self.columns..][..self.columns],
            scales: &self.scales[row * scales..][..scales],
        })
    }
}
