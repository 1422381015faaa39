//! Directional steering: x -= scale * v * (v . x), rows alone; the dot product as `dot8` adds it.

use crate::cpu::isa::{Kernel, launch, parts};
use crate::cpu::lanes::dot8;
use crate::cpu::share::Pieces;
use crate::cpu::store::Ask;
use crate::cpu::{Cpu, size};
use crate::{Error, Steer};
use std::ops::Range;

const OPERATION: &str = "steer";

struct SteerRows<'a> {
    direction: &'a [f32],
    scale: f32,
    x: Pieces<'a, f32>,
}

impl Kernel for SteerRows<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, rows: Range<usize>) {
        for row in rows {
            // SAFETY: each row belongs to one part.
            let x = unsafe { self.x.get(row) };
            let share = -(self.scale * dot8(self.direction, x));
            x.iter_mut().zip(self.direction).for_each(|(x, v)| *x = share.mul_add(*v, *x));
        }
    }
}

pub(crate) fn steer(cpu: &mut Cpu, a: &Steer) -> Result<(), Error> {
    let ask = |operand| Ask { operation: OPERATION, operand };
    let (n, width) = (cpu.rows.len(), a.width);
    let end = size(&[a.row.saturating_add(1), width]);
    let directions = cpu.store.f32(ask("directions"), a.directions, end)?;
    let mut x = cpu.store.f32_mut(ask("x"), a.x, size(&[n, width]))?;
    let direction = &directions[end - width..end];
    let kernel = SteerRows { direction, scale: a.scale, x: Pieces::new(&mut x, width) };
    launch(&cpu.pool, cpu.isa, parts(&cpu.pool, n, 2 * width), n, &kernel);
    Ok(())
}
