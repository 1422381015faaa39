//! What the test programs share: numbers from a seed, buffers, golden vectors.
#![expect(clippy::cast_possible_truncation, reason = "tests make small numbers")]

use ironstar_device::{
    Arena, Backend, Buffer, Cpu, CpuConfig, Element, Gpu, GpuConfig, Isa, Matrix, MatrixSource,
};
use ironstar_quant::Format;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// A backend with an arena for the test's buffers.
pub struct Bench {
    pub cpu: Box<dyn Backend>,
    pub arena: Arena,
}

impl Bench {
    pub fn new(config: CpuConfig) -> Self {
        Bench::over(Box::new(Cpu::new(config).expect("the configuration is available")))
    }

    /// The GPU's kernels on the host driver.
    pub fn gpu() -> Self {
        Bench::gpu_with(GpuConfig::default())
    }

    pub fn gpu_with(config: GpuConfig) -> Self {
        let gpu = Gpu::host(config);
        Bench::over(Box::new(gpu.unwrap_or_else(|error| panic!("{error}"))))
    }

    /// The same on a device with little shared memory.
    pub fn small_gpu() -> Self {
        let gpu = Gpu::host_small(GpuConfig::default());
        Bench::over(Box::new(gpu.unwrap_or_else(|error| panic!("{error}"))))
    }

    fn over(mut cpu: Box<dyn Backend>) -> Self {
        let arena = cpu.arena();
        Bench { cpu, arena }
    }

    /// The definition of the bits: scalar, one thread.
    pub fn scalar() -> Self {
        Bench::new(CpuConfig { threads: 1, isa: Some(Isa::Scalar), float_products: false })
    }

    pub fn empty(&mut self, element: Element, len: usize) -> Buffer {
        self.cpu.alloc(self.arena, element, len).expect("small")
    }

    pub fn zeros(&mut self, len: usize) -> Buffer {
        self.empty(Element::F32, len)
    }

    pub fn floats(&mut self, values: &[f32]) -> Buffer {
        let buffer = self.zeros(values.len());
        self.cpu.write_f32(buffer, 0, values).expect("in range");
        buffer
    }

    pub fn ids(&mut self, values: &[u32]) -> Buffer {
        let buffer = self.empty(Element::U32, values.len());
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.cpu.write(buffer, 0, &bytes).expect("in range");
        buffer
    }

    pub fn read(&mut self, buffer: Buffer) -> Vec<f32> {
        let mut values = vec![0f32; buffer.len];
        self.cpu.read_f32(buffer, 0, &mut values).expect("in range");
        values
    }

    pub fn read_ids(&mut self, buffer: Buffer) -> Vec<u32> {
        let bytes = self.read_bytes(buffer);
        bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    pub fn read_bytes(&mut self, buffer: Buffer) -> Vec<u8> {
        let mut bytes = vec![0u8; buffer.len * buffer.element.bytes()];
        self.cpu.read(buffer, 0, &mut bytes).expect("in range");
        bytes
    }

    /// A matrix of these values in a format that has an encoder.
    pub fn matrix(&mut self, format: Format, shape: [usize; 3], values: &[f32]) -> Matrix {
        let [stack, rows, columns] = shape;
        assert_eq!(values.len(), stack * rows * columns);
        self.encoded(format, shape, encode(format, values))
    }

    /// A matrix of whole blocks.
    pub fn encoded(&mut self, format: Format, shape: [usize; 3], bytes: Arc<Vec<u8>>) -> Matrix {
        let [stack, rows, columns] = shape;
        let name = "a test's matrix";
        let source = MatrixSource { name, format, rows, columns, stack, bytes, planes: None };
        self.cpu.matrix(source).expect("a right shape")
    }
}

/// Whole blocks of values in a format that has an encoder.
pub fn encode(format: Format, values: &[f32]) -> Arc<Vec<u8>> {
    let mut bytes = vec![0u8; format.row_bytes(values.len()).expect("whole blocks")];
    (format.info().encode.expect("an encoder"))(values, None, &mut bytes);
    Arc::new(bytes)
}

/// Every configuration that has to give equal bits.
pub fn configurations() -> Vec<CpuConfig> {
    let all = Isa::available().flat_map(|isa| [1, 2, 3].map(|threads| (isa, threads)));
    let config = |(isa, threads)| CpuConfig { threads, isa: Some(isa), float_products: false };
    all.map(config).collect()
}

/// Whether two results are equal but for rounding: `found` and `wanted` as bits of floats, or of
/// small integers, which must be equal. Differences are measured against the largest value.
pub fn near(found: &[u32], wanted: &[u32], tolerance: f32) -> Result<(), String> {
    let float = |bits: u32| bits & 0x7f80_0000 != 0;
    let values = wanted.iter().filter(|bits| float(**bits)).map(|bits| f32::from_bits(*bits).abs());
    let limit = values.fold(0f32, f32::max) * tolerance;
    if found.len() != wanted.len() {
        return Err(format!("{} values, {} wanted", found.len(), wanted.len()));
    }
    for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let (a, b) = (f32::from_bits(*found), f32::from_bits(*wanted));
        let floats = (float(*found) || *found << 1 == 0) && (float(*wanted) || *wanted << 1 == 0);
        let same = found == wanted || (floats && (a - b).abs() <= limit);
        if !same {
            return Err(format!("value {index} is {a} ({found:#x}), wanted {b} ({wanted:#x})"));
        }
    }
    Ok(())
}

/// Whether products on a GPU are those of the processor: equal bits, but for F16, which matrix
/// units multiply (`gpu_halves.rs` has their bits), where sums differ by rounding.
#[track_caller]
pub fn agree(format: Format, found: &[Vec<u32>], wanted: &[Vec<u32>], name: &str) {
    if format != Format::F16 {
        assert!(found == wanted, "{name}: other bits");
        return;
    }
    for (found, wanted) in found.iter().zip(wanted) {
        if let Err(difference) = near(found, wanted, 1e-6) {
            panic!("{name}: {difference}");
        }
    }
}

/// A splitmix64 stream.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Uniform values with this standard deviation.
    pub fn floats(&mut self, len: usize, std: f64) -> Vec<f32> {
        let unit = |bits: u64| (bits >> 11) as f64 / (1u64 << 53) as f64;
        (0..len).map(|_| ((2.0 * unit(self.next()) - 1.0) * 3f64.sqrt() * std) as f32).collect()
    }
}

/// Lengths of consecutive steps that make up `total` rows.
pub fn cut(numbers: &mut Numbers, total: usize, longest: usize) -> Vec<usize> {
    let mut steps = Vec::new();
    let mut left = total;
    while left > 0 {
        let step = 1 + numbers.below(longest.min(left));
        steps.push(step);
        left -= step;
    }
    steps
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[track_caller]
pub fn assert_close(what: &str, found: &[f32], wanted: &[f32], tolerance: f32) {
    assert_eq!(found.len(), wanted.len(), "{what}: number of values");
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let error = (found - wanted).abs();
        assert!(error <= tolerance, "{what}[{i}]: {found} for {wanted}, off by {error}");
    }
}

/// Tensors of a golden file.
pub struct Golden(HashMap<String, (String, Vec<usize>, Vec<u8>)>);

impl Golden {
    pub fn open(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
        let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (length, rest) = file.split_first_chunk::<8>().expect("a header length");
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let header: serde_json::Value = serde_json::from_slice(header).expect("a JSON header");
        let number = |v: &serde_json::Value| v.as_u64().expect("a size") as usize;
        let tensors = header.as_object().expect("an object").iter();
        let tensors = tensors.filter(|(name, _)| *name != "__metadata__").map(|(name, entry)| {
            let shape = entry["shape"].as_array().expect("a shape").iter().map(number).collect();
            let range = number(&entry["data_offsets"][0])..number(&entry["data_offsets"][1]);
            let kind = entry["dtype"].as_str().expect("a type").to_owned();
            (name.clone(), (kind, shape, data[range].to_vec()))
        });
        Golden(tensors.collect())
    }

    fn get(&self, name: &str, kind: &str) -> (&[usize], impl Iterator<Item = [u8; 4]>) {
        let (found, shape, bytes) = self.0.get(name).unwrap_or_else(|| panic!("no tensor {name}"));
        assert_eq!(found, kind, "type of {name}");
        (shape, bytes.as_chunks::<4>().0.iter().copied())
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.get(name, "F32").1.map(f32::from_le_bytes).collect()
    }

    pub fn ints(&self, name: &str) -> Vec<i32> {
        self.get(name, "I32").1.map(i32::from_le_bytes).collect()
    }
}
