//! Root-mean-square norm of rows: x / sqrt(mean(x^2) + eps) * weight.

use crate::cpu::isa::{Kernel, launch, parts};
use crate::cpu::lanes::{rms_factor, rms_norm_in_place, rms_scale};
use crate::cpu::share::Pieces;
use crate::cpu::store::Ask;
use crate::cpu::{Cpu, size};
use crate::{Error, RmsNorm};
use std::ops::Range;

const OPERATION: &str = "rms_norm";

struct NormRows<'a> {
    /// `None`: in place.
    x: Option<&'a [f32]>,
    weight: &'a [f32],
    eps: f32,
    out: Pieces<'a, f32>,
}

impl Kernel for NormRows<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, rows: Range<usize>) {
        let width = self.weight.len();
        for row in rows {
            // SAFETY: each row belongs to one part.
            let out = unsafe { self.out.get(row) };
            match self.x {
                None => rms_norm_in_place(out, self.weight, self.eps),
                Some(x) => {
                    let x = &x[row * width..][..width];
                    rms_scale(x, rms_factor(x, self.eps), self.weight, out);
                }
            }
        }
    }
}

pub(crate) fn rms_norm(cpu: &mut Cpu, a: &RmsNorm) -> Result<(), Error> {
    let ask = |operand| Ask { operation: OPERATION, operand };
    let width = a.weight.len;
    let weight = cpu.store.f32(ask("weight"), a.weight, width)?;
    let len = size(&[a.rows, width]);
    let x = match a.x == a.out {
        true => None,
        false => Some(cpu.store.f32(ask("x"), a.x, len)?),
    };
    let mut out = cpu.store.f32_mut(ask("out"), a.out, len)?;
    let out = Pieces::new(&mut out, width);
    let kernel = NormRows { x: x.as_deref(), weight: &weight, eps: a.eps, out };
    launch(&cpu.pool, cpu.isa, parts(&cpu.pool, a.rows, 2 * width), a.rows, &kernel);
    Ok(())
}
