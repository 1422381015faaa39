//! Fixtures, seeded numbers and the synthetic matrix of the reference errors.

use std::path::PathBuf;

use ironstar_quant::{Format, Int8Blocks, Row, quantize_int8};
use proptest::prelude::ProptestConfig;
use serde_json::Value;

/// A safetensors fixture of `tests/golden`, read whole.
pub struct Fixture {
    header: Value,
    data: Vec<u8>,
}

impl Fixture {
    /// Reads `tests/golden/NAME`; a missing fixture fails the test.
    pub fn open(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (length, rest) = bytes.split_first_chunk().expect("eight bytes of header length");
        let length = usize::try_from(u64::from_le_bytes(*length)).expect("header fits memory");
        let header = serde_json::from_slice(&rest[..length]).expect("the header is JSON");
        Self { header, data: rest[length..].to_vec() }
    }

    /// The bytes of a tensor.
    pub fn bytes(&self, key: &str) -> &[u8] {
        let offset = |i: usize| {
            let offset = self.header[key]["data_offsets"][i].as_u64();
            usize::try_from(offset.unwrap_or_else(|| panic!("no tensor {key}"))).expect("in memory")
        };
        &self.data[offset(0)..offset(1)]
    }

    /// An F32 tensor.
    pub fn floats(&self, key: &str) -> Vec<f32> {
        assert_eq!(self.header[key]["dtype"], "F32", "{key}");
        let values = self.bytes(key).as_chunks().0;
        values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

/// A seeded stream of numbers (splitmix64), keyed by FNV-1a of a name.
pub struct Stream(u64);

impl Stream {
    pub fn new(name: &str) -> Self {
        let fnv =
            |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In 0..1, 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * 2f64.powi(-53)
    }

    /// About normal (sum of four uniforms), unit variance.
    #[expect(clippy::cast_possible_truncation, reason = "the nearest f32 is meant")]
    pub fn normal(&mut self, deviation: f64) -> f32 {
        let sum: f64 = (0..4).map(|_| self.unit()).sum();
        ((sum - 2.0) * 3f64.sqrt() * deviation) as f32
    }

    pub fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    pub fn normals(&mut self, count: usize, deviation: f64) -> Vec<f32> {
        (0..count).map(|_| self.normal(deviation)).collect()
    }
}

/// The matrix on which the reference errors were measured: 64 rows x 1024 columns, each row wider
/// than the one before. `((u0 + u1 + u2 + u3 - 2) * sqrt(3)) * (0.02 + 0.001 row)`.
pub fn reference_matrix() -> Vec<f32> {
    let mut stream = Stream::new("quant/ref");
    (0..64).flat_map(|row| stream.normals(1024, 0.02 + 0.001 * f64::from(row))).collect()
}

/// Property tests of `count` cases that write no files of their own.
pub fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(count) }
}

/// The formats multiplied as integers.
pub const INTEGER_FORMATS: [Format; 9] = [
    Format::Q4_0,
    Format::Q8_0,
    Format::Q2K,
    Format::Q3K,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
    Format::Iq2Xxs,
    Format::Mxfp4,
];

/// The formats multiplied as floats.
pub const FLOAT_FORMATS: [Format; 3] = [Format::F32, Format::F16, Format::Bf16];

/// Decodes a row.
pub fn decode(format: Format, row: &[u8], columns: usize) -> Vec<f32> {
    let mut out = vec![0.0; columns];
    (format.info().decode)(row, &mut out);
    out
}

/// Encodes a row.
pub fn encode(format: Format, values: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    let mut out = vec![0; format.row_bytes(values.len()).expect("whole blocks")];
    format.info().encode.expect("the format has an encoder")(values, importance, &mut out);
    out
}

/// A row of activations in the form a format wants, owned.
pub struct Activations {
    block: Option<usize>,
    values: Vec<f32>,
    codes: Vec<i8>,
    scales: Vec<f32>,
}

impl Activations {
    pub fn new(format: Format, values: Vec<f32>) -> Self {
        let block = format.info().activation.block();
        let scales = block.map_or(0, |block| values.len() / block);
        let mut row =
            Self { block, codes: vec![0; values.len()], scales: vec![0.0; scales], values };
        if let Some(block) = block {
            quantize_int8(&row.values, block, &mut row.codes, &mut row.scales);
        }
        row
    }

    pub fn row(&self) -> Row<'_> {
        match self.block {
            None => Row::F32(&self.values),
            Some(_) => Row::Int8(Int8Blocks { codes: &self.codes, scales: &self.scales }),
        }
    }

    /// What the row stands for after its rounding.
    pub fn decoded(&self) -> Vec<f64> {
        let Some(block) = self.block else {
            return self.values.iter().map(|&v| f64::from(v)).collect();
        };
        let codes = self.codes.iter().enumerate();
        codes.map(|(i, &q)| f64::from(q) * f64::from(self.scales[i / block])).collect()
    }

    pub fn codes(&self) -> &[i8] {
        &self.codes
    }

    pub fn scales(&self) -> &[f32] {
        &self.scales
    }
}
