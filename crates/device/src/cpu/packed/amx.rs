//! AVX-512 with the tile unit for bytes (Xeons from Sapphire Rapids on): sixteen input rows at a
//! time meet sixteen output rows in one instruction, where a format has blocks of 32.
//!
//! **Not run**: no machine that this was written on has the unit. The arrangement of operands is
//! tested on a model of the instruction; detection, configuration and the instructions themselves
//! are not. So it is never chosen by itself: only `--isa amx` asks for it, on a machine that has
//! it the conformance tests run it, and until they did its bits are a claim.
//!
//! A packed block is already what the instruction wants of its second operand: row k of eight holds
//! codes 4 k .. 4 k + 4 of sixteen output rows.

use super::avx512::Avx512;
use super::inputs::Record32;
use super::simd::{Codes, Simd, TileKernel};
use std::arch::asm;
use std::arch::x86_64::{__m512, __m512i};
use std::sync::OnceLock;

/// Sixteen rows in a vector, and sixteen inputs in a tile.
pub(crate) struct Amx;

/// Inputs of a tile.
const INPUTS: usize = 16;

/// What `ldtilecfg` reads: tile 0 holds 16 x 16 sums of 4 bytes, tile 1 sixteen inputs of 32 codes
/// each, tile 2 the eight rows of a packed block.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: Config = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    (row_bytes[0], row_bytes[1], row_bytes[2]) = (64, 32, 64);
    (rows[0], rows[1], rows[2]) = (16, 16, 8);
    Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// Whether the processor has the unit and the system lets this process use it.
pub(crate) fn is_present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    *PRESENT.get_or_init(|| {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        // Leaf 7, edx: bit 24 tiles, bit 25 products of bytes.
        const UNIT: u32 = 3 << 24;
        let has_unit = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & UNIT == UNIT;
        has_unit && is_permitted()
    })
}

/// Linux keeps the unit's registers only for processes that asked for it.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: usize = 158;
    const REQUEST_PERMISSION: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: the call changes nothing but this process's permission; registers that system calls
    // overwrite are named.
    unsafe {
        asm!(
            "syscall",
            inout("rax") result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Unknown.
#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// The dots of sixteen inputs with a packed block of sixteen rows.
///
/// # Safety
/// The machine has the unit, configured by [`CONFIG`].
#[inline]
unsafe fn product(x: &[[i8; 32]; INPUTS], block: &[[i8; 64]; 8], sums: &mut [[i32; 16]; INPUTS]) {
    // SAFETY: tiles are loaded from and stored to arrays of exactly their size; the compiler uses
    // no tile register of its own.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tileloadd tmm1, [{x} + {x_stride}*1]",
            "tileloadd tmm2, [{block} + {stride}*1]",
            "tdpbssd tmm0, tmm1, tmm2",
            "tilestored [{sums} + {stride}*1], tmm0",
            x = in(reg) x.as_ptr(),
            x_stride = in(reg) 32usize,
            block = in(reg) block.as_ptr(),
            stride = in(reg) 64usize,
            sums = in(reg) sums.as_mut_ptr(),
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            options(nostack, preserves_flags),
        );
    }
}

/// Each operation that the tile unit adds nothing to.
macro_rules! as_avx512 {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name($($arg: $kind),*) -> $result {
                // SAFETY: the caller's promise.
                unsafe { Avx512::$name($($arg),*) }
            }
        )*
    };
}

impl Simd for Amx {
    const LANES: usize = 16;
    const INT_ROWS: usize = INPUTS;
    const FLOAT_ROWS: usize = Avx512::FLOAT_ROWS;
    const BY_ROWS: bool = true;
    type I = __m512i;
    type F = __m512;
    type Two = Self;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,gfni,avx2,fma,f16c")]
    unsafe fn enter(kernel: impl TileKernel) {
        // SAFETY: the machine has the unit by the caller's promise; a configuration lasts until it
        // is released, and only this thread sees it.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, preserves_flags));
            kernel.run::<Self>();
            asm!("tilerelease", options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn dots_signed<const R: usize, const STRIDE: usize>(
        codes: &[__m512i; 8],
        x: [*const u8; R],
    ) -> [__m512i; R] {
        if R != INPUTS || STRIDE != 1 {
            // SAFETY: the caller's promise.
            return unsafe { Avx512::dots_signed::<R, STRIDE>(codes, x) };
        }
        let mut result = [const { None }; R];
        // SAFETY: the caller's promise; vectors and arrays of 64 bytes are each other's bytes; `x`
        // are records.
        unsafe {
            let mut inputs = [[0; 32]; INPUTS];
            for (to, x) in inputs.iter_mut().zip(x) {
                *to = (*x.cast::<Record32>()).codes;
            }
            let mut sums = [[0; 16]; INPUTS];
            product(&inputs, &*codes.as_ptr().cast::<[[i8; 64]; 8]>(), &mut sums);
            for (to, sums) in result.iter_mut().zip(&sums) {
                *to = Some(Avx512::load(sums.as_ptr().cast()));
            }
            result.map(|sum| sum.unwrap_unchecked())
        }
    }

    #[inline(always)]
    unsafe fn dot16<C: Codes, const STRIDE: usize>(
        acc: __m512i,
        codes: &[__m512i; 4],
        x: *const u8,
    ) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { Avx512::dot16::<C, STRIDE>(acc, codes, x) }
    }

    #[inline(always)]
    unsafe fn dots<C: Codes, const R: usize, const STRIDE: usize, const Q: usize>(
        acc: [__m512i; R],
        codes: &[[__m512i; 4]; Q],
        x: [*const u8; R],
    ) -> [__m512i; R] {
        // SAFETY: the caller's promise.
        unsafe { Avx512::dots::<C, R, STRIDE, Q>(acc, codes, x) }
    }

    as_avx512! {
        fn load(from: *const u8) -> __m512i;
        fn broadcast(from: *const u8) -> __m512i;
        fn splat(value: i32) -> __m512i;
        fn table(bytes: &[u8; 16]) -> __m512i;
        fn and(a: __m512i, b: __m512i) -> __m512i;
        fn or(a: __m512i, b: __m512i) -> __m512i;
        fn xor(a: __m512i, b: __m512i) -> __m512i;
        fn shr(a: __m512i, by: i32) -> __m512i;
        fn shl(a: __m512i, by: i32) -> __m512i;
        fn byte_bits(a: __m512i, by: i32, count: i32, to: i32) -> __m512i;
        fn signed_byte(a: __m512i, index: i32) -> __m512i;
        fn even_bytes(a: __m512i) -> __m512i;
        fn odd_bytes(a: __m512i) -> __m512i;
        fn lookup(table: __m512i, a: __m512i) -> __m512i;
        fn add_signed(base: __m512i, a: __m512i, signs: __m512i, bit: i32) -> __m512i;
        fn add(a: __m512i, b: __m512i) -> __m512i;
        fn mul(a: __m512i, b: __m512i) -> __m512i;
        fn madd16(acc: __m512i, a: __m512i, b: __m512i) -> __m512i;
        fn mul16(a: __m512i, b: __m512i) -> __m512i;
        fn prefetch(at: *const u8) -> ();
        fn grid(indices: __m512i) -> [__m512i; 2];
        fn group_codes(indices: __m512i, packed: __m512i) -> [[__m512i; 4]; 2];
        fn zero() -> __m512;
        fn splat_f32(value: f32) -> __m512;
        fn from_i32(a: __m512i) -> __m512;
        fn add_f32(a: __m512, b: __m512) -> __m512;
        fn mul_f32(a: __m512, b: __m512) -> __m512;
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512;
        fn fms(a: __m512, b: __m512, c: __m512) -> __m512;
        fn load_f32(from: *const u8) -> __m512;
        fn load_f16(from: *const u8) -> __m512;
        fn load_bf16(from: *const u8) -> __m512;
        fn load_half_e8m0(from: *const u8) -> __m512;
        fn store(to: *mut f32, a: __m512) -> ();
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Plan;
    use super::{CONFIG, Config, INPUTS};
    use ironstar_quant::Format;

    /// What the processor's manual says of `tdpbssd`, on arrays.
    fn model(x: &[[i8; 32]; INPUTS], block: &[[i8; 64]; 8], sums: &mut [[i32; 16]; INPUTS]) {
        for (sums, x) in sums.iter_mut().zip(x) {
            for (k, row) in block.iter().enumerate() {
                for (n, sum) in sums.iter_mut().enumerate() {
                    let dot = |i: usize| i32::from(x[4 * k + i]) * i32::from(row[4 * n + i]);
                    *sum += (0..4).map(dot).sum::<i32>();
                }
            }
        }
    }

    /// Sixteen rows of Q8_0 as they are packed, times sixteen inputs, against plain sums.
    #[test]
    fn a_packed_block_is_the_second_operand() {
        let code = |i: usize| i8::try_from((i * 89 + 13) % 255).map_or(-77, |code| code);
        let mut rows = vec![0u8; 16 * 34];
        for (n, row) in rows.chunks_exact_mut(34).enumerate() {
            for (k, byte) in row[2..].iter_mut().enumerate() {
                *byte = code(n * 32 + k).cast_unsigned();
            }
        }
        let plan = Plan::new(Format::Q8_0, 32).expect("one block a row");
        let mut tile = vec![0; plan.tile_bytes];
        plan.pack(&rows, &mut tile);
        let codes = &tile[plan.offsets(0)[0]..];
        let block: [[i8; 64]; 8] =
            std::array::from_fn(|k| std::array::from_fn(|i| codes[64 * k + i].cast_signed()));
        let x: [[i8; 32]; INPUTS] =
            std::array::from_fn(|m| std::array::from_fn(|k| code(7 * m + 3 * k)));
        let mut sums = [[0; 16]; INPUTS];
        model(&x, &block, &mut sums);
        for (m, sums) in sums.iter().enumerate() {
            for (n, sum) in sums.iter().enumerate() {
                let dot = |k: usize| i32::from(x[m][k]) * i32::from(code(n * 32 + k));
                assert_eq!(*sum, (0..32).map(dot).sum::<i32>(), "input {m}, row {n}");
            }
        }
    }

    #[test]
    fn the_configuration_has_the_size_that_is_read() {
        assert_eq!((size_of::<Config>(), CONFIG.palette, CONFIG.rows[2]), (64, 1, 8));
    }
}
