//! Instruction sets, and the one place where kernel text is compiled for each of them.

use super::pool::Pool;
use crate::Error;
use std::ops::Range;

/// An instruction set that kernels are compiled for. All of them give equal bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Whatever the compiler's target has; the definition of the bits.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, VNNI and VBMI, and GFNI, which all that have those have.
    Avx512,
    /// AVX-512 and the tile unit for bytes; never run so far, so only chosen when asked for.
    Amx,
    /// Arm with the dot product extension.
    Neon,
    /// Arm with the matrix extension for bytes too.
    I8mm,
}

impl Isa {
    /// All instruction sets, slowest first.
    pub const ALL: [Isa; 6] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Amx, Isa::Neon, Isa::I8mm];

    /// Those that this machine has, slowest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_present())
    }

    /// The fastest that this machine has, of those that have been run.
    #[must_use]
    pub fn best() -> Isa {
        Isa::available().filter(|isa| *isa != Isa::Amx).last().unwrap_or(Isa::Scalar)
    }

    /// Name as in flags and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
            Isa::I8mm => "i8mm",
        }
    }

    /// Whether this machine has it.
    #[must_use]
    pub fn is_present(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let (avx2, avx512) = (
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c"),
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
                && is_x86_feature_detected!("avx512vbmi")
                && is_x86_feature_detected!("gfni"),
        );
        #[cfg(not(target_arch = "x86_64"))]
        let (avx2, avx512) = (false, false);
        #[cfg(target_arch = "aarch64")]
        let (neon, i8mm) = (
            std::arch::is_aarch64_feature_detected!("dotprod"),
            std::arch::is_aarch64_feature_detected!("i8mm"),
        );
        #[cfg(not(target_arch = "aarch64"))]
        let (neon, i8mm) = (false, false);
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => avx2,
            Isa::Avx512 => avx2 && avx512,
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => avx2 && avx512 && super::packed::has_amx(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Amx => false,
            Isa::Neon => neon,
            Isa::I8mm => neon && i8mm,
        }
    }

    /// The wanted set if the machine has it, or the best one.
    pub(crate) fn choose(wanted: Option<Isa>) -> Result<Isa, Error> {
        match wanted {
            None => Ok(Isa::best()),
            Some(isa) if isa.is_present() => Ok(isa),
            Some(isa) => {
                let names: Vec<_> = Isa::available().map(Isa::name).collect();
                Err(Error::Unsupported {
                    found: format!("instruction set {}", isa.name()),
                    wanted: format!("this machine has {}", names.join(", ")),
                })
            }
        }
    }
}

/// A loop over independent items. `run` must be `#[inline(always)]`, so that its text is compiled
/// again inside each instruction set's wrapper.
pub(crate) trait Kernel: Sync {
    /// Does the items of one part; `part` numbers its scratch.
    fn run(&self, part: usize, items: Range<usize>);
}

/// How to cut `items` of `work` multiplications each, so that no part is too small to be worth a
/// hand-over.
pub(crate) fn parts(pool: &Pool, items: usize, work: usize) -> usize {
    /// About ten microseconds on one core.
    const PART_WORK: usize = 1 << 15;
    let worth = items.saturating_mul(work) / PART_WORK;
    worth.min(pool.threads() * 4).min(items).max(1)
}

/// Runs a kernel over `0..items`, cut into `parts`.
pub(crate) fn launch(pool: &Pool, isa: Isa, parts: usize, items: usize, kernel: &impl Kernel) {
    let cut = |part: usize| part * (items / parts) + part * (items % parts) / parts;
    if parts == 1 {
        call(isa, kernel, 0, 0..items);
    } else {
        pool.run(parts, &|part| call(isa, kernel, part, cut(part)..cut(part + 1)));
    }
}

/// Runs some items as one part. Never inlined: a kernel's text is long, and this way it is compiled
/// once for each set.
#[inline(never)]
pub(crate) fn call(isa: Isa, kernel: &impl Kernel, part: usize, items: Range<usize>) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` above `Scalar` is only made for a machine that has it (`Isa::choose`).
        Isa::Avx2 => unsafe { call_avx2(kernel, part, items) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512 | Isa::Amx => unsafe { call_avx512(kernel, part, items) },
        _ => kernel.run(part, items),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn call_avx2(kernel: &impl Kernel, part: usize, items: Range<usize>) {
    kernel.run(part, items);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn call_avx512(kernel: &impl Kernel, part: usize, items: Range<usize>) {
    kernel.run(part, items);
}
