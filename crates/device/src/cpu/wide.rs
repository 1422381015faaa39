//! Sixteen floats as one value, for the loops that a compiler does not block by itself.
//!
//! Every implementation does the same operations in the same order on each lane; they differ in
//! instructions only. Methods are inlined into a function that is compiled for the instruction set
//! (`isa.rs`), so a value of an instruction set's type may only be made there.

/// Sixteen lanes.
pub(crate) trait Wide: Copy + Sync {
    /// All lanes +0.
    fn zero() -> Self;
    /// All lanes alike.
    fn splat(value: f32) -> Self;
    /// From memory.
    fn load(from: &[f32; 16]) -> Self;
    /// To memory.
    fn store(self, to: &mut [f32; 16]);
    /// self * b + c, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// The balanced tree over the lanes of each of four values: ((0+1)+(2+3))+((4+5)+(6+7)), and so
    /// on.
    fn trees(values: [Self; 4]) -> [f32; 4];
    /// [`Wide::trees`] of four times four.
    #[inline(always)]
    fn quads(values: [[Self; 4]; 4]) -> [[f32; 4]; 4] {
        let mut out = [[0.0; 4]; 4];
        for (out, values) in out.iter_mut().zip(values) {
            *out = Self::trees(values);
        }
        out
    }
}

/// Lanes as the compiler likes.
impl Wide for [f32; 16] {
    #[inline(always)]
    fn zero() -> Self {
        [0.0; 16]
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        [value; 16]
    }

    #[inline(always)]
    fn load(from: &[f32; 16]) -> Self {
        *from
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; 16]) {
        *to = self;
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        std::array::from_fn(|i| self[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn trees(values: [Self; 4]) -> [f32; 4] {
        values.map(|v| {
            let pairs: [f32; 8] = std::array::from_fn(|i| v[2 * i] + v[2 * i + 1]);
            ironstar_quant::tree8(&pairs)
        })
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Wide;
    use std::arch::x86_64::*;

    /// Two registers of eight lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256, __m256);

    /// One register.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(__m512);

    /// Adds neighbours: in each 128 bits a01, a23, b01, b23.
    #[inline(always)]
    fn pairs256(a: __m256, b: __m256) -> __m256 {
        // SAFETY: this type is used in functions compiled for AVX2 only.
        unsafe { _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd)) }
    }

    /// [`pairs256`] on four times 128 bits.
    #[inline(always)]
    fn pairs512(a: __m512, b: __m512) -> __m512 {
        // SAFETY: this type is used in functions compiled for AVX-512 only.
        unsafe { _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd)) }
    }

    /// Sums of lanes of `a` in the lanes that `of_b` leaves it, of `b` in the others: each lane and
    /// the one that comes to its place. No closure, which would not have the instruction set.
    macro_rules! merge {
        ($a:expr, $b:expr, $of_b:literal, $v:ident => $swapped:expr) => {{
            let kept = _mm512_mask_blend_ps($of_b, $a, $b);
            let $v = _mm512_mask_blend_ps(!$of_b, $a, $b);
            _mm512_add_ps(kept, $swapped)
        }};
    }

    impl Wide for Avx2 {
        #[inline(always)]
        fn zero() -> Self {
            Self::splat(0.0)
        }

        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: this type is used in functions compiled for AVX2 only.
            let v = unsafe { _mm256_set1_ps(value) };
            Avx2(v, v)
        }

        #[inline(always)]
        fn load(from: &[f32; 16]) -> Self {
            // SAFETY: as above; sixteen floats are there.
            unsafe { Avx2(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))) }
        }

        #[inline(always)]
        fn store(self, to: &mut [f32; 16]) {
            // SAFETY: as above; sixteen floats are there.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), self.0);
                _mm256_storeu_ps(to.as_mut_ptr().add(8), self.1);
            }
        }

        #[inline(always)]
        fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: as above.
            unsafe { Avx2(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
        }

        #[inline(always)]
        fn trees([a, b, c, d]: [Self; 4]) -> [f32; 4] {
            // In each 128 bits the sums of four lanes of a, b, c, d.
            let low = pairs256(pairs256(a.0, b.0), pairs256(c.0, d.0));
            let high = pairs256(pairs256(a.1, b.1), pairs256(c.1, d.1));
            let mut out = [0f32; 4];
            // SAFETY: as above; four floats are there.
            unsafe {
                let half = |v| _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
                _mm_storeu_ps(out.as_mut_ptr(), _mm_add_ps(half(low), half(high)));
            }
            out
        }
    }

    impl Wide for Avx512 {
        #[inline(always)]
        fn zero() -> Self {
            Self::splat(0.0)
        }

        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: this type is used in functions compiled for AVX-512 only.
            Avx512(unsafe { _mm512_set1_ps(value) })
        }

        #[inline(always)]
        fn load(from: &[f32; 16]) -> Self {
            // SAFETY: as above; sixteen floats are there.
            Avx512(unsafe { _mm512_loadu_ps(from.as_ptr()) })
        }

        #[inline(always)]
        fn store(self, to: &mut [f32; 16]) {
            // SAFETY: as above; sixteen floats are there.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
        }

        #[inline(always)]
        fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: as above.
            Avx512(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
        }

        #[inline(always)]
        fn trees([a, b, c, d]: [Self; 4]) -> [f32; 4] {
            // In each 128 bits the sums of four lanes of a, b, c, d.
            let quads = pairs512(pairs512(a.0, b.0), pairs512(c.0, d.0));
            let mut out = [0f32; 4];
            // SAFETY: as above; four floats are there.
            unsafe {
                let low =
                    _mm_add_ps(_mm512_castps512_ps128(quads), _mm512_extractf32x4_ps(quads, 1));
                let high =
                    _mm_add_ps(_mm512_extractf32x4_ps(quads, 2), _mm512_extractf32x4_ps(quads, 3));
                _mm_storeu_ps(out.as_mut_ptr(), _mm_add_ps(low, high));
            }
            out
        }

        // A vector with a sum of each value in the end; each step halves how many there are, and
        // one of its two shuffles is a blend, which any port does.
        #[inline(always)]
        fn quads(values: [[Self; 4]; 4]) -> [[f32; 4]; 4] {
            let (v, mut out) = (values.as_flattened(), [[0f32; 4]; 4]);
            // SAFETY: this type is used in functions compiled for AVX-512 only; sixteen floats are
            // there.
            unsafe {
                let mut eight = [_mm512_setzero_ps(); 8];
                for (i, to) in eight.iter_mut().enumerate() {
                    let (a, b) = (v[2 * i].0, v[2 * i + 1].0);
                    *to = merge!(a, b, 0xaaaa, v => _mm512_permute_ps::<0xb1>(v));
                }
                let mut four = [_mm512_setzero_ps(); 4];
                for (i, to) in four.iter_mut().enumerate() {
                    let (a, b) = (eight[2 * i], eight[2 * i + 1]);
                    *to = merge!(a, b, 0xcccc, v => _mm512_permute_ps::<0x4e>(v));
                }
                let mut two = [_mm512_setzero_ps(); 2];
                for (i, to) in two.iter_mut().enumerate() {
                    let (a, b) = (four[2 * i], four[2 * i + 1]);
                    *to = merge!(a, b, 0xf0f0, v => _mm512_shuffle_f32x4::<0xb1>(v, v));
                }
                let [a, b] = two;
                let sums = merge!(a, b, 0xff00, v => _mm512_shuffle_f32x4::<0x4e>(v, v));
                _mm512_storeu_ps(out.as_mut_ptr().cast(), sums);
            }
            out
        }
    }
}
