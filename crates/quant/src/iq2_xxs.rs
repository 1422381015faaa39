//! IQ2_XXS: 256 elements as 32 points of an 8-dimensional grid with signs; per 32 a 4-bit scale s;
//! f16 d. Value = ((d * (0.5 + s)) * 0.25) * magnitude * sign.
//!
//! Magnitudes are 8, 25 and 43; signs are chosen freely for seven elements, the eighth makes the
//! number of minus signs even. Dot, per super-block, I = sum (2 s + 1) sign magnitude x exact in
//! i32: `acc = fma((d * 0.125) * d_x, I, acc)`.

use crate::block::{Block, F16_LIMIT, chunks, decode_blocks, dot_blocks, encode_blocks};
use crate::f16::{f16_bytes_to_f32, f16_to_f32, f32_to_f16};
use crate::fit::{nearest, ratio};
use crate::format::{Activation, Dot, Format, FormatInfo};
use crate::k_blocks::{SUPER, Unpacked};

/// This format's row of the table.
pub const INFO: FormatInfo = FormatInfo {
    format: Format::Iq2Xxs,
    name: "IQ2_XXS",
    gguf_id: 16,
    block_elements: SUPER,
    block_bytes: size_of::<Iq2Xxs>(),
    activation: Activation::Int8x256,
    decode: |blocks, out| decode_blocks(blocks, out, Iq2Xxs::decode),
    encode: Some(|values, importance, out| {
        encode_blocks(values, importance, out, F16_LIMIT, Iq2Xxs::encode);
    }),
    dot: Dot::Int(|weights, x| {
        dot_blocks(weights, x, |block: &Iq2Xxs, x, d_x, acc| {
            block.unpack().dot_scaled(f16_bytes_to_f32(block.d) * 0.125, x, d_x, acc)
        })
    }),
};

/// The block as stored.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Iq2Xxs {
    /// Scale of scales, f16.
    pub d: [u8; 2],
    /// Per 32 elements: four grid indices, then (little endian) four 7-bit sign indices and s.
    pub groups: [[u8; 8]; 8],
}
const _: () = assert!(size_of::<Iq2Xxs>() == 66);
// SAFETY: repr(C) of byte arrays only.
unsafe impl Block for Iq2Xxs {}

impl Iq2Xxs {
    /// Signed magnitudes as codes, 2 s + 1 as scales.
    fn unpack(&self) -> Unpacked<8> {
        let (mut codes, mut scales) = ([0; SUPER], [0; 8]);
        let eights = codes.as_chunks_mut::<8>().0.as_chunks_mut::<4>().0;
        for ((group, eights), scale) in self.groups.iter().zip(eights).zip(&mut scales) {
            let [points @ .., a, b, c, d] = *group;
            let packed = u32::from_le_bytes([a, b, c, d]);
            *scale = (2 * (d >> 4) + 1).cast_signed();
            for (k, (codes, point)) in eights.iter_mut().zip(points).enumerate() {
                *codes = Eight { point, signs: (packed >> (7 * k)) & 127 }.codes();
            }
        }
        Unpacked { codes, scales, minimums: [0; 8] }
    }

    fn decode(&self, out: &mut [f32; SUPER]) {
        let d = f16_bytes_to_f32(self.d);
        let Unpacked { codes, scales, .. } = self.unpack();
        for ((out, codes), scale) in out.chunks_mut(32).zip(codes.chunks(32)).zip(scales) {
            // 0.5 + s is half of the integer 2 s + 1: exact.
            let scale = d * (f32::from(scale) * 0.5) * 0.25;
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(code);
            }
        }
    }

    /// Scales first for each group alone, then as the format has them; d is refitted to everything
    /// chosen while that lowers the error.
    fn encode(values: &[f32; SUPER], weights: &[f32; SUPER], out: &mut Self) {
        let (groups, weights) = (chunks::<_, 32>(values), chunks::<_, 32>(weights));
        let targets: [f32; 8] = std::array::from_fn(|g| fit_scale(&groups[g], &weights[g]));
        let mut d = targets.iter().fold(0f32, |max, t| max.max(*t)) * (8.0 / 31.0);
        let mut best_error = f32::INFINITY;
        for _ in 0..ROUNDS_MAX {
            let d_bits = f32_to_f16(d);
            let unit = f16_to_f32(d_bits) * 0.125;
            let (mut error, mut xq, mut qq) = (0f32, 0f32, 0f32);
            let chosen: [Group; 8] = std::array::from_fn(|g| {
                let group = choose_group(&groups[g], &weights[g], targets[g], unit);
                error += group.error;
                for ((&x, &w), q) in groups[g].iter().zip(&weights[g]).zip(group.codes()) {
                    xq += w * x * q;
                    qq += w * q * q;
                }
                group
            });
            if error >= best_error {
                break;
            }
            best_error = error;
            *out = Self { d: d_bits.to_le_bytes(), groups: chosen.map(|group| group.pack()) };
            d = ratio(xq, qq) * 8.0;
        }
    }
}

/// Rounds of refitting d; the error rarely falls after the second.
const ROUNDS_MAX: usize = 3;

/// Eight elements: a grid point and seven sign bits, the eighth following from their parity.
#[derive(Clone, Copy, Default)]
struct Eight {
    point: u8,
    signs: u32,
}

impl Eight {
    /// Signed magnitudes.
    fn codes(self) -> [i8; 8] {
        let signs = self.signs | ((self.signs.count_ones() & 1) << 7);
        let point = GRID[usize::from(self.point)];
        std::array::from_fn(|j| {
            let magnitude = MAGNITUDES[usize::from((point >> (2 * j)) & 3)];
            if (signs >> j) & 1 == 1 { -magnitude } else { magnitude }
        })
    }
}

/// What 32 elements are stored as.
#[derive(Clone, Copy, Default)]
struct Group {
    eights: [Eight; 4],
    s: u8,
    error: f32,
}

impl Group {
    /// (2 s + 1) * signed magnitudes.
    fn codes(&self) -> impl Iterator<Item = f32> {
        let odd = f32::from(2 * self.s + 1);
        self.eights.into_iter().flat_map(Eight::codes).map(move |code| odd * f32::from(code))
    }

    fn pack(&self) -> [u8; 8] {
        let signs = self.eights.iter().rev().fold(0, |packed, eight| (packed << 7) | eight.signs);
        let [a, b, c, d] = (signs | (u32::from(self.s) << 28)).to_le_bytes();
        let [p, q, r, s] = self.eights.map(|eight| eight.point);
        [p, q, r, s, a, b, c, d]
    }
}

/// The real scale that fits a group best when it may be anything.
fn fit_scale(x: &[f32; 32], w: &[f32; 32]) -> f32 {
    let max = x.iter().fold(0f32, |max, v| max.max(v.abs()));
    let (mut best_scale, mut best_gain) = (max / 43.0, 0f32);
    for step in LADDER {
        let (eights, _) = choose_eights(x, w, max / 43.0 * step);
        let (mut xq, mut qq) = (0f32, 0f32);
        for ((&x, &w), q) in x.iter().zip(w).zip(eights.into_iter().flat_map(Eight::codes)) {
            xq += w * x * f32::from(q);
            qq += w * f32::from(q) * f32::from(q);
        }
        let gain = ratio(xq * xq.max(0.0), qq);
        if gain > best_gain {
            (best_gain, best_scale) = (gain, xq / qq);
        }
    }
    best_scale
}

/// Scales tried, in parts of the one at which the largest value is the largest magnitude. The last
/// three are for values nearly alike, which the middle or the smallest magnitude holds best.
const LADDER: [f32; 13] =
    [1.0, 0.55, 0.62, 0.69, 0.76, 0.82, 0.88, 0.94, 1.07, 1.15, 1.4, 1.72, 5.375];

/// The best stored group: s at and beside the one nearest to the target scale.
fn choose_group(x: &[f32; 32], w: &[f32; 32], target: f32, unit: f32) -> Group {
    let middle = nearest(ratio(target, unit) * 0.5 - 0.5, (0, 15)).cast_unsigned();
    let mut best = Group { error: f32::INFINITY, ..Group::default() };
    for s in middle.saturating_sub(1)..=(middle + 1).min(15) {
        let (eights, error) = choose_eights(x, w, unit * f32::from(2 * s + 1));
        if error < best.error {
            best = Group { eights, s, error };
        }
    }
    best
}

/// The best points and signs for a scale, and their weighted square error.
fn choose_eights(x: &[f32; 32], w: &[f32; 32], scale: f32) -> ([Eight; 4], f32) {
    let mut total = 0f32;
    let eights = std::array::from_fn(|k| {
        let (eight, error) = choose_eight(&chunks(x)[k], &chunks(w)[k], scale);
        total += error;
        eight
    });
    (eights, total)
}

fn choose_eight(x: &[f32; 8], w: &[f32; 8], scale: f32) -> (Eight, f32) {
    // Signs of the values; if their parity is odd, the one that costs least is turned.
    let mut signs = (0..8).fold(0u32, |signs, j| signs | (u32::from(x[j] < 0.0) << j));
    if signs.count_ones() % 2 == 1 {
        let cost = |j: &usize| w[*j] * x[*j].abs();
        let cheapest = (0..8).min_by(|a, b| cost(a).total_cmp(&cost(b))).expect("eight candidates");
        signs ^= 1 << cheapest;
    }
    // Cost of each pair of coordinates; that of a point is the sum of its four pairs'.
    let cost = |j: usize, level: usize| {
        let magnitude = scale * f32::from(MAGNITUDES[level]);
        let miss = if (signs >> j) & 1 == 1 { x[j] + magnitude } else { x[j] - magnitude };
        w[j] * miss * miss
    };
    let mut pairs = [[0f32; 16]; 4];
    for (p, pair) in pairs.iter_mut().enumerate() {
        let (low, high) = (2 * p, 2 * p + 1);
        let costs = |j| [cost(j, 0), cost(j, 1), cost(j, 2), 0.0];
        let (low, high): ([f32; 4], [f32; 4]) = (costs(low), costs(high));
        *pair = std::array::from_fn(|levels| low[levels & 3] + high[levels >> 2]);
    }
    // The points ascend, so those with equal upper coordinates follow each other: a run is passed
    // over if even the best lower coordinates would not help.
    let of = |levels: u16, p: usize| pairs[p][usize::from((levels >> (4 * p)) & 15)];
    let lower_min = cheapest(&pairs[0]) + cheapest(&pairs[1]);
    let mut best = (0, f32::INFINITY);
    let mut start = 0;
    for &end in &RUN_ENDS {
        let upper = of(GRID[start], 2) + of(GRID[start], 3);
        if upper + lower_min < best.1 {
            for (point, &levels) in (start..).zip(&GRID[start..end]) {
                let error = upper + (of(levels, 0) + of(levels, 1));
                if error < best.1 {
                    best = (point, error);
                }
            }
        }
        start = end;
    }
    let point = u8::try_from(best.0).expect("an index into 256 points");
    (Eight { point, signs: signs & 127 }, best.1)
}

/// The least cost of a pair of coordinates, of the nine pairs that exist.
fn cheapest(pair: &[f32; 16]) -> f32 {
    let mut least = pair[0];
    for levels in [1, 2, 4, 5, 6, 8, 9, 10] {
        least = least.min(pair[levels]);
    }
    least
}

/// Whether point `i` is the last of its run of equal upper coordinates.
const fn ends_run(i: usize) -> bool {
    i == 255 || GRID[i] >> 8 != GRID[i + 1] >> 8
}

/// Runs of points with equal upper four coordinates.
const RUNS: usize = {
    let (mut count, mut i) = (0, 0);
    while i < 256 {
        count += ends_run(i) as usize;
        i += 1;
    }
    count
};

/// Where each run ends, exclusive.
const RUN_ENDS: [usize; RUNS] = {
    let (mut ends, mut run, mut i) = ([0; RUNS], 0, 0);
    while i < 256 {
        if ends_run(i) {
            ends[run] = i + 1;
            run += 1;
        }
        i += 1;
    }
    ends
};

/// What the two-bit coordinates of a grid point stand for.
pub const MAGNITUDES: [i8; 4] = [8, 25, 43, 0];

/// The grid: coordinate j of a point is at bits 2 j, an index into [`MAGNITUDES`] (never 3). The
/// points are part of the file format.
#[rustfmt::skip]
pub const GRID: [u16; 256] = [
    0x0000, 0x0002, 0x0005, 0x0008, 0x000a, 0x0011, 0x0014, 0x0020, 0x0022, 0x0028, 0x002a, 0x0041,
    0x0044, 0x0050, 0x0058, 0x0061, 0x0064, 0x0080, 0x0082, 0x008a, 0x00a2, 0x0101, 0x0104, 0x0110,
    0x0115, 0x0140, 0x0184, 0x0198, 0x0200, 0x0202, 0x0222, 0x0282, 0x0401, 0x0404, 0x0410, 0x0421,
    0x0424, 0x0440, 0x0442, 0x0448, 0x0460, 0x0481, 0x0484, 0x0490, 0x04a4, 0x0500, 0x0502, 0x0508,
    0x0520, 0x0546, 0x0569, 0x0580, 0x0591, 0x0609, 0x0610, 0x0640, 0x0684, 0x06a4, 0x0800, 0x0805,
    0x0808, 0x0814, 0x0828, 0x0841, 0x0844, 0x0850, 0x0852, 0x0888, 0x0904, 0x0940, 0x0a02, 0x0a14,
    0x1001, 0x1004, 0x1010, 0x1021, 0x1040, 0x1060, 0x1084, 0x1090, 0x1095, 0x1100, 0x1108, 0x1120,
    0x1150, 0x115a, 0x1180, 0x1224, 0x1245, 0x1400, 0x1408, 0x1420, 0x1425, 0x1449, 0x1480, 0x1518,
    0x1562, 0x1600, 0x1616, 0x1801, 0x1804, 0x1810, 0x1840, 0x1881, 0x1900, 0x1905, 0x19a0, 0x1a51,
    0x2000, 0x2002, 0x200a, 0x2044, 0x2061, 0x2080, 0x2082, 0x2129, 0x2148, 0x2200, 0x2202, 0x2401,
    0x2404, 0x2410, 0x2440, 0x2456, 0x2500, 0x2541, 0x2564, 0x2690, 0x2808, 0x2820, 0x2894, 0x2a44,
    0x4001, 0x4004, 0x4010, 0x4018, 0x4021, 0x4024, 0x4040, 0x4048, 0x4056, 0x4060, 0x4081, 0x4084,
    0x4090, 0x4100, 0x4120, 0x4161, 0x4180, 0x4185, 0x4201, 0x4210, 0x4248, 0x4256, 0x4268, 0x4400,
    0x4408, 0x4420, 0x4480, 0x4499, 0x4512, 0x4524, 0x4600, 0x4801, 0x4804, 0x4810, 0x4840, 0x4845,
    0x4900, 0x4958, 0x4961, 0x4982, 0x4a45, 0x4a90, 0x5000, 0x5008, 0x5011, 0x5019, 0x5020, 0x5080,
    0x5088, 0x5104, 0x5142, 0x51a4, 0x5291, 0x5490, 0x5492, 0x550a, 0x5601, 0x5654, 0x5800, 0x5811,
    0x5819, 0x5864, 0x5940, 0x5a08, 0x6004, 0x6010, 0x6040, 0x6068, 0x6100, 0x6155, 0x6218, 0x6260,
    0x6400, 0x6405, 0x6510, 0x6512, 0x6584, 0x6842, 0x8000, 0x8002, 0x800a, 0x8041, 0x8082, 0x8104,
    0x8118, 0x8140, 0x8211, 0x8401, 0x8404, 0x8410, 0x8415, 0x8440, 0x8460, 0x8500, 0x8546, 0x8594,
    0x8609, 0x8640, 0x8660, 0x8802, 0x8904, 0x8a11, 0x9004, 0x9010, 0x9024, 0x9040, 0x90a1, 0x9116,
    0x9180, 0x9245, 0x9400, 0x9422, 0x9444, 0x9551, 0x9881, 0x9920, 0xa002, 0xa050, 0xa085, 0xa109,
    0xa200, 0xa418, 0xa850, 0xa904,
];
