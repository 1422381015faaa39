//! Sums in a fixed order: lanes by fused multiply-add, then the balanced tree over lanes.

use ironstar_quant::tree8;

/// Sum of squares: lane j takes elements j mod 8, then the tree.
#[inline(always)]
pub(crate) fn sum_squares(x: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let (chunks, rest) = x.as_chunks::<8>();
    for chunk in chunks {
        for j in 0..8 {
            lanes[j] = chunk[j].mul_add(chunk[j], lanes[j]);
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane = v.mul_add(*v, *lane);
    }
    tree8(&lanes)
}

/// 1 / sqrt(mean square + eps).
#[inline(always)]
pub(crate) fn rms_factor(x: &[f32], eps: f32) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^24")]
    let mean = sum_squares(x) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

/// `out = x * factor * weight`, in this order.
#[inline(always)]
pub(crate) fn rms_scale(x: &[f32], factor: f32, weight: &[f32], out: &mut [f32]) {
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * weight;
    }
}

/// [`rms_scale`] in place.
#[inline(always)]
pub(crate) fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let factor = rms_factor(x, eps);
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * factor * weight;
    }
}

/// Dot product: lane j takes elements j mod 8 by fma, then the tree.
#[inline(always)]
pub(crate) fn dot8(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    for (a, b) in a.iter().zip(b) {
        for j in 0..8 {
            lanes[j] = a[j].mul_add(b[j], lanes[j]);
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane = a.mul_add(*b, *lane);
    }
    tree8(&lanes)
}
