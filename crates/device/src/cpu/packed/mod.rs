//! Tiles of 16 output rows and the kernels that multiply them.
//!
//! **Layout** (`layout.rs`). A matrix is cut into tiles of 16 rows; a tile has the bytes of the
//! file, permuted so that a vector load gives the same unit (four code bytes, a scale) of
//! neighbouring rows. So a lane is an output row, nothing is ever added across lanes, and memory is
//! that of the file.
//!
//! **Cost sketch** (AVX-512, Q8_0, one activation row). 16 rows by 32 columns are 544 bytes and 8
//! `vpdpbusd` beside some 12 other instructions: about 10 cycles, so a core consumes some 50 bytes
//! a cycle, more than its memory gives. With eight activation rows a loaded code is used eight
//! times: 64 `vpdpbusd` beside 8 loads, 8 xors and 8 * 5 others for 8 * 16 * 32 products.
//!
//! **Panels** (`panel.rs`). AVX-512 takes up to twelve activation rows at once, from a copy in
//! which the same word of all of them lies together: one pointer, memory in the order of use. Where
//! there are several panels, whatever does not depend on the rows is done to the weights of a few
//! shards first (`IntFormat::unpack`), which then wait in the first-level cache. Two tiles do that
//! side by side (`pair.rs`), so that a word of an input that is in a register meets both.
//!
//! **Kernels.** `simd.rs` says what an instruction set has to offer; `narrow.rs` and `supers.rs`
//! have one step of each format in those words; `tile.rs` has the loops around it. Integers are
//! exact and each lane follows the format's expression in block order, so all instruction sets give
//! the bits of `ironstar_quant::dot_shards`. The number of activation rows that share a loaded
//! weight changes nothing about any of them.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod floats;
pub(super) mod inputs;
pub(super) mod layout;
mod narrow;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod pair;
pub(super) mod panel;
mod simd;
mod supers;
pub(super) mod tile;

#[cfg(target_arch = "x86_64")]
pub(super) use amx::is_present as has_amx;

use super::isa::Isa;
use ironstar_quant::Format;
use panel::GatherFn;
use simd::Simd;
use std::marker::PhantomData;
use tile::{FloatFormat, FloatTiles, IntFormat, IntTiles, Part};

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// A kernel for one format and instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    /// Multiplies.
    ///
    /// # Safety
    /// The machine has the instruction set that it was chosen for; the invariants of [`Part`].
    pub run: unsafe fn(&Part<'_>),
    /// Lays inputs out in panels, where that pays.
    pub gather: Option<GatherFn>,
}

/// The kernel of a format, or `None` where the instruction set has none.
pub(crate) fn kernel(isa: Isa, format: Format) -> Option<Kernel> {
    match isa {
        Isa::Scalar => None,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Some(of_format::<avx2::Avx2>(format)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx if format == Format::Iq2Xxs && avx512::looks_in_two() => {
            Some(integers::<avx512::Sixteen<true>, supers::Iq2Xxs>())
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Some(of_format::<avx512::Avx512>(format)),
        #[cfg(target_arch = "x86_64")]
        // The tile unit adds nothing to the others.
        Isa::Amx => by_rows::<amx::Amx>(format).or(Some(of_format::<avx512::Avx512>(format))),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Some(of_format::<neon::Neon<false>>(format)),
        #[cfg(target_arch = "aarch64")]
        Isa::I8mm => Some(of_format::<neon::Neon<true>>(format)),
        _ => None,
    }
}

#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    expect(dead_code, reason = "no vectors there yet")
)]
fn of_format<S: Simd>(format: Format) -> Kernel {
    match format {
        Format::F32 => floats::<S, narrow::F32>(),
        Format::F16 => floats::<S, narrow::F16>(),
        Format::Bf16 => floats::<S, narrow::Bf16>(),
        Format::Q4_0 => integers::<S, narrow::Q4_0>(),
        Format::Q8_0 => integers::<S, narrow::Q8_0>(),
        Format::Mxfp4 => integers::<S, narrow::Mxfp4>(),
        Format::Q2K => integers::<S, supers::Q2K>(),
        Format::Q3K => integers::<S, supers::Q3K>(),
        Format::Q4K => integers::<S, supers::Q4K>(),
        Format::Q5K => integers::<S, supers::Q5K>(),
        Format::Q6K => integers::<S, supers::Q6K>(),
        Format::Iq2Xxs => integers::<S, supers::Iq2Xxs>(),
    }
}

/// The formats with [`IntFormat::BY_ROWS`].
#[cfg(target_arch = "x86_64")]
fn by_rows<S: Simd>(format: Format) -> Option<Kernel> {
    match format {
        Format::Q4_0 => Some(integers::<S, narrow::Q4_0>()),
        Format::Q8_0 => Some(integers::<S, narrow::Q8_0>()),
        Format::Mxfp4 => Some(integers::<S, narrow::Mxfp4>()),
        _ => None,
    }
}

fn integers<S: Simd, F: IntFormat>() -> Kernel {
    Kernel { run: int_tiles::<S, F>, gather: S::PANELS.then_some(panel::gather::<F> as GatherFn) }
}

fn floats<S: Simd, F: FloatFormat>() -> Kernel {
    Kernel { run: float_tiles::<S, F>, gather: None }
}

unsafe fn int_tiles<S: Simd, F: IntFormat>(part: &Part<'_>) {
    // SAFETY: the caller's promise.
    unsafe { S::enter(IntTiles::<F>(part, PhantomData)) }
}

unsafe fn float_tiles<S: Simd, F: FloatFormat>(part: &Part<'_>) {
    // SAFETY: the caller's promise.
    unsafe { S::enter(FloatTiles::<F>(part, PhantomData)) }
}
