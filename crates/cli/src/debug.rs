//! `--debug steps`: each point of the forward pass with its time and a checksum of its numbers, in
//! the order of `forward.rs`. Two runs that should agree are compared with `diff` on the checksums.

use ironstar_model::{At, Observer, What};
use std::io::Write;
use std::time::Instant;

/// Prints a line a point to standard error.
pub struct StepPrinter {
    last: Instant,
}

impl Default for StepPrinter {
    fn default() -> Self {
        StepPrinter { last: Instant::now() }
    }
}

impl StepPrinter {
    fn line(&mut self, at: At, rows: usize, width: usize, bits: impl Iterator<Item = u32>) {
        let microseconds = self.last.elapsed().as_micros();
        let _ = writeln!(
            std::io::stderr(),
            "layer {:>3} {:<14} {rows:>5} x {width:<6} {microseconds:>8} us  {:016x}",
            at.layer,
            at.what.name(),
            checksum(bits),
        );
        self.last = Instant::now();
    }
}

impl Observer for StepPrinter {
    fn floats(&mut self, at: At, width: usize, values: &mut [f32]) -> bool {
        let rows = values.len() / width.max(1);
        self.line(at, rows, width, values.iter().map(|value| value.to_bits()));
        false
    }

    fn ids(&mut self, at: At, width: usize, ids: &[u32]) {
        // Of an indexer's choice only the first entries mean anything, and how many the model knows
        // alone.
        let known = if at.what == What::IndexChoice { 0 } else { ids.len() };
        self.line(at, ids.len() / width.max(1), width, ids[..known].iter().copied());
    }
}

/// FNV-1a over the numbers' bytes.
fn checksum(bits: impl Iterator<Item = u32>) -> u64 {
    bits.flat_map(u32::to_le_bytes).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
