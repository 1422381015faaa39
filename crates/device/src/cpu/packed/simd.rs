//! The vector operations that tile kernels are written in.
//!
//! A vector has one 32-bit lane an output row. Kernels are generic over [`Simd`]; since a lane
//! never meets another one, the number of lanes decides nothing about bits.

use super::supers::grid_codes;
use super::tile::FloatFormat;

/// An instruction set of vectors with [`Simd::LANES`] lanes of 32 bits.
///
/// # Safety
/// Every function here has one contract: the machine has the instruction set. Loads and stores also
/// need as many readable or writable bytes as they say; no alignment.
pub(crate) trait Simd {
    /// Lanes: a divisor of [`super::TILE_ROWS`].
    const LANES: usize;
    /// Activation rows that integer kernels take at once (registers decide).
    const INT_ROWS: usize;
    /// Activation rows that float kernels take at once.
    const FLOAT_ROWS: usize;
    /// Whether [`Simd::dots_signed`] does more than one row at a time.
    const BY_ROWS: bool = false;
    /// Whether [`Simd::dots_biased`] is the cheapest of the dots of 32, and inputs are wanted in
    /// panels (`panel.rs`).
    const PANELS: bool = false;
    /// LANES times 4 bytes.
    type I: Copy;
    /// LANES f32.
    type F: Copy;
    /// Twice the lanes: panels meet unpacked weights of two tiles at once. Itself where that does
    /// not pay.
    type Two: Simd;

    /// Runs a kernel compiled for this instruction set.
    unsafe fn enter(kernel: impl TileKernel);

    /// LANES * 4 bytes.
    unsafe fn load(from: *const u8) -> Self::I;
    /// The same 4 bytes in each lane.
    unsafe fn broadcast(from: *const u8) -> Self::I;
    /// The same integer in each lane.
    unsafe fn splat(value: i32) -> Self::I;
    /// Sixteen bytes that [`Simd::lookup`] reads.
    unsafe fn table(bytes: &[u8; 16]) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn xor(a: Self::I, b: Self::I) -> Self::I;
    /// Lanes shifted right by a number that is the same for all, zeros in.
    unsafe fn shr(a: Self::I, by: i32) -> Self::I;
    /// Lanes shifted left.
    unsafe fn shl(a: Self::I, by: i32) -> Self::I;
    /// `count` bits of each byte from bit `by` on, brought to bit `to`; the others are zero.
    #[inline(always)]
    unsafe fn byte_bits(a: Self::I, by: i32, count: i32, to: i32) -> Self::I
    where
        Self: Sized,
    {
        // SAFETY: the caller's promise. A lane is shifted as a whole; what comes in from the next
        // byte is above the mask.
        unsafe {
            let mask = Self::splat(((1 << count) - 1) * 0x0101_0101);
            let bits = Self::and(Self::shr(a, by), mask);
            if to > 0 { Self::shl(bits, to) } else { bits }
        }
    }
    /// Byte `index` of each lane, sign extended.
    unsafe fn signed_byte(a: Self::I, index: i32) -> Self::I;
    /// Bytes 0 and 2 of each lane, sign extended to its 16-bit halves.
    unsafe fn even_bytes(a: Self::I) -> Self::I;
    /// Bytes 1 and 3 of each lane, sign extended to its 16-bit halves.
    unsafe fn odd_bytes(a: Self::I) -> Self::I;
    /// `table[byte]` for each byte; bytes must be below 16.
    unsafe fn lookup(table: Self::I, a: Self::I) -> Self::I;
    /// `base + a` for bytes whose bit `bit` of `signs` is clear, `base - a` where it is set.
    unsafe fn add_signed(base: Self::I, a: Self::I, signs: Self::I, bit: i32) -> Self::I;
    unsafe fn add(a: Self::I, b: Self::I) -> Self::I;
    /// Low 32 bits of lane products.
    unsafe fn mul(a: Self::I, b: Self::I) -> Self::I;
    /// `acc` plus the two products of signed 16-bit halves.
    unsafe fn madd16(acc: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Low 16 bits of the products of 16-bit halves.
    unsafe fn mul16(a: Self::I, b: Self::I) -> Self::I;
    /// `acc` plus, in each lane, the dot of 16 unsigned code bytes (4 of each vector) with 16 int8:
    /// word g of them lies at `x + 4 * STRIDE * g`.
    unsafe fn dot16<C: Codes, const STRIDE: usize>(
        acc: Self::I,
        codes: &[Self::I; 4],
        x: *const u8,
    ) -> Self::I;
    /// [`Simd::dot16`] of `4 Q` words with several rows.
    #[inline(always)]
    unsafe fn dots<C: Codes, const R: usize, const STRIDE: usize, const Q: usize>(
        acc: [Self::I; R],
        codes: &[[Self::I; 4]; Q],
        x: [*const u8; R],
    ) -> [Self::I; R] {
        let mut acc = acc;
        for (r, acc) in acc.iter_mut().enumerate() {
            for (quad, codes) in codes.iter().enumerate() {
                // SAFETY: the caller's promise.
                *acc =
                    unsafe { Self::dot16::<C, STRIDE>(*acc, codes, at::<STRIDE>(x[r], 4 * quad)) };
            }
        }
        acc
    }
    /// In each lane, the dot of 32 signed code bytes with the 32 int8 (-127..=127) of each of
    /// several [`Record32`], whose words are `STRIDE` words apart.
    ///
    /// [`Record32`]: super::inputs::Record32
    unsafe fn dots_signed<const R: usize, const STRIDE: usize>(
        codes: &[Self::I; 8],
        x: [*const u8; R],
    ) -> [Self::I; R];
    /// The same with codes that are 128 too large.
    #[inline(always)]
    unsafe fn dots_biased<const R: usize, const STRIDE: usize>(
        codes: &[Self::I; 8],
        x: [*const u8; R],
    ) -> [Self::I; R] {
        let mut codes = *codes;
        // SAFETY: the caller's promise.
        unsafe {
            let bias = Self::splat(i32::from_ne_bytes([128; 4]));
            for codes in &mut codes {
                *codes = Self::xor(*codes, bias);
            }
            Self::dots_signed::<R, STRIDE>(&codes, x)
        }
    }
    /// Asks for the line of memory at `at`, which may be anywhere, to come nearer.
    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}
    /// The same, but not into the nearest cache.
    #[inline(always)]
    unsafe fn prefetch_far(_at: *const u8) {}
    /// Grid points of IQ2_XXS: for index byte i of a lane, byte i of the results is the low and the
    /// high half of `GRID[index]`.
    unsafe fn grid(indices: Self::I) -> [Self::I; 2];
    /// The 32 codes of a group of IQ2_XXS, from its indices and its packed signs: see
    /// [`grid_codes`], which is what they have to equal.
    #[inline(always)]
    unsafe fn group_codes(indices: Self::I, packed: Self::I) -> [[Self::I; 4]; 2]
    where
        Self: Sized,
    {
        // SAFETY: the caller's promise.
        unsafe { grid_codes::<Self>(indices, packed) }
    }

    unsafe fn zero() -> Self::F;
    unsafe fn splat_f32(value: f32) -> Self::F;
    unsafe fn from_i32(a: Self::I) -> Self::F;
    unsafe fn add_f32(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul_f32(a: Self::F, b: Self::F) -> Self::F;
    /// a * b + c, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// a * b - c, rounded once.
    unsafe fn fms(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// LANES f32.
    unsafe fn load_f32(from: *const u8) -> Self::F;
    /// LANES f16.
    unsafe fn load_f16(from: *const u8) -> Self::F;
    /// LANES bf16.
    unsafe fn load_bf16(from: *const u8) -> Self::F;
    /// LANES exponents e as 2^(e - 128): what `ironstar_quant::mxfp4::half_scale` gives.
    unsafe fn load_half_e8m0(from: *const u8) -> Self::F;
    /// LANES weights of a float format: `from` on, or where vectors are of two tiles, the second
    /// one's `apart` bytes behind.
    #[inline(always)]
    unsafe fn weights<W: FloatFormat>(from: *const u8, _apart: usize) -> Self::F
    where
        Self: Sized,
    {
        // SAFETY: the caller's promise.
        unsafe { W::load::<Self>(from) }
    }
    unsafe fn store(to: *mut f32, a: Self::F);
}

/// Word `word` of a block of activations whose words are `STRIDE` words apart.
///
/// # Safety
/// The block has the word.
#[inline(always)]
pub(crate) unsafe fn at<const STRIDE: usize>(x: *const u8, word: usize) -> *const u8 {
    // SAFETY: the caller's promise.
    unsafe { x.add(4 * STRIDE * word) }
}

/// Unsigned code bytes that [`Simd::dot16`] multiplies.
pub(crate) trait Codes {
    /// The largest, so that an instruction set knows how many products 16 bits hold.
    const MAX: i32;
}

/// A kernel that [`Simd::enter`] compiles for an instruction set.
pub(crate) trait TileKernel {
    /// Must be `#[inline(always)]`, like everything that it calls.
    ///
    /// # Safety
    /// The machine has `S`; and what the kernel states.
    unsafe fn run<S: Simd>(self);
}

/// Low and high halves of the IQ2_XXS grid, for byte lookups.
pub(crate) static GRID_BYTES: [[u8; 256]; 2] = {
    let mut bytes = [[0; 256]; 2];
    let mut i = 0;
    while i < 256 {
        [bytes[0][i], bytes[1][i]] = ironstar_quant::iq2_xxs::GRID[i].to_le_bytes();
        i += 1;
    }
    bytes
};
