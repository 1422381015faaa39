//! What the super-block formats share: 256 codes with integer scales (and minimums) per sub-block.
//!
//! Everything inside a super-block is exact in i32: the largest case, Q6_K, stays under
//! 256 * 32 * 128 * 128 = 2^27.

/// Elements of a super-block.
pub(crate) const SUPER: usize = 256;

/// A super-block unpacked: codes in element order and what each sub-block of `SUPER / SUBS`
/// elements is scaled by. Value = (d * scale) * code - (dmin * minimum).
pub(crate) struct Unpacked<const SUBS: usize> {
    pub codes: [i8; SUPER],
    pub scales: [i8; SUBS],
    /// All zero in formats without minimums.
    pub minimums: [i8; SUBS],
}

impl<const SUBS: usize> Unpacked<SUBS> {
    /// Values of a format without minimums.
    pub fn decode_scaled(&self, d: f32, out: &mut [f32; SUPER]) {
        let width = SUPER / SUBS;
        for (sub, (out, codes)) in out.chunks_mut(width).zip(self.codes.chunks(width)).enumerate() {
            let scale = d * f32::from(self.scales[sub]);
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(code);
            }
        }
    }

    /// Values of a format with minimums; product and difference are rounded apart.
    pub fn decode_affine(&self, d: f32, dmin: f32, out: &mut [f32; SUPER]) {
        let width = SUPER / SUBS;
        for (sub, (out, codes)) in out.chunks_mut(width).zip(self.codes.chunks(width)).enumerate() {
            let scale = d * f32::from(self.scales[sub]);
            let minimum = dmin * f32::from(self.minimums[sub]);
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(code) - minimum;
            }
        }
    }

    /// I = sum of scale * code * x, exact.
    pub fn product_sum(&self, x: &[i8; SUPER]) -> i32 {
        let width = SUPER / SUBS;
        let subs = self.codes.chunks(width).zip(x.chunks(width)).zip(self.scales);
        subs.map(|((codes, x), scale)| {
            let products = codes.iter().zip(x).map(|(&q, &x)| i32::from(q) * i32::from(x));
            i32::from(scale) * products.sum::<i32>()
        })
        .sum()
    }

    /// J = sum of minimum * x, exact.
    pub fn minimum_sum(&self, x: &[i8; SUPER]) -> i32 {
        let subs = x.chunks(SUPER / SUBS).zip(self.minimums);
        subs.map(|(x, minimum)| i32::from(minimum) * x.iter().map(|&x| i32::from(x)).sum::<i32>())
            .sum()
    }

    /// One step of the dot of a format without minimums: `acc = fma(d * d_x, I, acc)`.
    pub fn dot_scaled(&self, d: f32, x: &[i8; SUPER], d_x: f32, acc: f32) -> f32 {
        (d * d_x).mul_add(self.product_sum(x) as f32, acc)
    }

    /// One step of the dot of a format with minimums:
    /// `acc = fma(d_x, fma(d, I, -(dmin * J)), acc)`.
    pub fn dot_affine(&self, d: f32, dmin: f32, x: &[i8; SUPER], d_x: f32, acc: f32) -> f32 {
        let minimums = dmin * self.minimum_sum(x) as f32;
        d_x.mul_add(d.mul_add(self.product_sum(x) as f32, -minimums), acc)
    }
}

/// Unpacks the eight 6-bit scales and minimums of Q4_K and Q5_K: `(scales, minimums)`.
///
/// Bytes 0..4 hold scales 0..4 in their low six bits, bytes 4..8 minimums 0..4; bytes 8..12 hold
/// the low nibbles of scale and minimum 4..8, whose top two bits are those of bytes 0..4 and 4..8.
pub(crate) fn unpack_scales6(packed: &[u8; 12]) -> ([i8; 8], [i8; 8]) {
    let (mut scales, mut minimums) = ([0; 8], [0; 8]);
    for i in 0..4 {
        scales[i] = (packed[i] & 63).cast_signed();
        minimums[i] = (packed[i + 4] & 63).cast_signed();
        scales[i + 4] = ((packed[i + 8] & 15) | ((packed[i] >> 6) << 4)).cast_signed();
        minimums[i + 4] = ((packed[i + 8] >> 4) | ((packed[i + 4] >> 6) << 4)).cast_signed();
    }
    (scales, minimums)
}

/// The inverse of [`unpack_scales6`], for values in 0..64.
pub(crate) fn pack_scales6(scales: &[i8; 8], minimums: &[i8; 8]) -> [u8; 12] {
    let (scales, minimums) = (scales.map(i8::cast_unsigned), minimums.map(i8::cast_unsigned));
    let mut packed = [0; 12];
    for i in 0..4 {
        packed[i] = scales[i] | ((scales[i + 4] >> 4) << 6);
        packed[i + 4] = minimums[i] | ((minimums[i + 4] >> 4) << 6);
        packed[i + 8] = (scales[i + 4] & 15) | ((minimums[i + 4] & 15) << 4);
    }
    packed
}
