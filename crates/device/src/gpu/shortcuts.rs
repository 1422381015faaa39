//! Ways to record a step in fewer or overlapping launches, each of which can be left out for
//! diagnosis. None changes a bit of a result.

use super::Gpu;
use crate::Error;
use std::fmt;

/// A set of shortcuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortcuts(u32);

/// Names as in `--debug disable=NAME`, by bit.
const NAMES: [&str; 19] = [
    "lanes", "staged", "spread", "index", "few", "wide", "halves", "heads", "onward", "mapped",
    "pairs", "scores", "pooled", "direct", "four", "cluster", "shared", "attend", "ahead",
];

impl Shortcuts {
    /// None of them.
    pub const NONE: Shortcuts = Shortcuts(0);
    /// Launches of a graph run beside each other.
    pub const LANES: Shortcuts = Shortcuts(1);
    /// Products of one row make the blocks of their input themselves, and do what small launches
    /// before them would: the activation, a norm. Attention does so with its queries.
    pub const STAGED: Shortcuts = Shortcuts(2);
    /// A spread over the streams is made by the mix that follows it.
    pub const SPREAD: Shortcuts = Shortcuts(4);
    /// The indexer shares a key's heads out among simdgroups.
    pub const INDEX: Shortcuts = Shortcuts(8);
    /// Products of two to some rows read each weight once for up to eight of them.
    pub const FEW: Shortcuts = Shortcuts(16);
    /// Products of very many rows wait for their copies in two halves.
    pub const WIDE: Shortcuts = Shortcuts(32);
    /// Half-width float matrices are read once for two to some rows.
    pub const HALVES: Shortcuts = Shortcuts(64);
    /// Attention of very many rows has 64 heads in a group, which share keys.
    pub const HEADS: Shortcuts = Shortcuts(128);
    /// Groups of such products go on from tile to tile.
    pub const ONWARD: Shortcuts = Shortcuts(256);
    /// Weights whose layout is the file's are read where the file is mapped, by devices whose
    /// memory is the host's.
    pub const MAPPED: Shortcuts = Shortcuts(512);
    /// Threads of tall float tiles have pairs of rows and slots.
    pub const PAIRS: Shortcuts = Shortcuts(1024);
    /// The indexer scores very many rows on matrix units.
    pub const SCORES: Shortcuts = Shortcuts(2048);
    /// Weights of chosen experts for two to some rows come to shared memory by asynchronous copies.
    pub const POOLED: Shortcuts = Shortcuts(4096);
    /// Weights of two bits times very many rows are decoded to where matrices take them from.
    pub const DIRECT: Shortcuts = Shortcuts(8192);
    /// Attention and scores of the indexer of very many rows have four simdgroups multiply together
    /// what is in shared memory.
    pub const FOUR: Shortcuts = Shortcuts(16_384);
    /// A spread, the mixing product and the mix of one row are a launch of groups that exchange by
    /// shared memory.
    pub const CLUSTER: Shortcuts = Shortcuts(32_768);
    /// Products of the shared expert of one row are made by the launches of the chosen ones, whose
    /// groups have its weights in shared memory before the row is there.
    pub const SHARED: Shortcuts = Shortcuts(65_536);
    /// Attention of one row is one launch of groups that exchange by shared memory.
    pub const ATTEND: Shortcuts = Shortcuts(131_072);
    /// Output products of one row, and query heads, have their weights in shared memory before the
    /// row is there.
    pub const AHEAD: Shortcuts = Shortcuts(262_144);

    /// The names of all of them.
    #[must_use]
    pub fn names() -> &'static [&'static str] {
        &NAMES
    }

    /// Whether all of the others are in it.
    #[must_use]
    pub fn contains(self, others: Shortcuts) -> bool {
        self.0 & others.0 == others.0
    }

    /// Those of both.
    #[must_use]
    pub fn with(self, others: Shortcuts) -> Shortcuts {
        Shortcuts(self.0 | others.0)
    }

    /// The shortcut of a name.
    pub fn named(name: &str) -> Result<Shortcuts, Error> {
        let index = NAMES.iter().position(|own| *own == name);
        index.map(|index| Shortcuts(1 << index)).ok_or_else(|| Error::Unsupported {
            found: format!("the shortcut {name:?}"),
            wanted: format!("one of {}", NAMES.join(", ")),
        })
    }
}

/// [`crate::Backend::leave_out`]: what was captured with others is captured anew.
pub(super) fn leave_out(gpu: &mut Gpu, shortcuts: Shortcuts) -> Result<bool, Error> {
    gpu.flush()?;
    gpu.prepared.set(None);
    gpu.config.disabled = shortcuts;
    let lanes = gpu.takes(Shortcuts::LANES);
    gpu.recorder.start_over(&mut *gpu.driver, lanes);
    Ok(true)
}

impl fmt::Display for Shortcuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = (0..).zip(NAMES).filter(|(bit, _)| self.0 >> bit & 1 == 1);
        f.write_str(&bits.map(|(_, name)| name).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::{NAMES, Shortcuts};

    #[test]
    fn every_name_is_another_one() {
        let all = [
            Shortcuts::LANES,
            Shortcuts::STAGED,
            Shortcuts::SPREAD,
            Shortcuts::INDEX,
            Shortcuts::FEW,
            Shortcuts::WIDE,
            Shortcuts::HALVES,
            Shortcuts::HEADS,
            Shortcuts::ONWARD,
            Shortcuts::MAPPED,
            Shortcuts::PAIRS,
            Shortcuts::SCORES,
            Shortcuts::POOLED,
            Shortcuts::DIRECT,
            Shortcuts::FOUR,
            Shortcuts::CLUSTER,
            Shortcuts::SHARED,
            Shortcuts::ATTEND,
            Shortcuts::AHEAD,
        ];
        for (name, own) in NAMES.iter().zip(all) {
            assert_eq!(Shortcuts::named(name).expect("it is in the table"), own);
            assert!(!Shortcuts::NONE.contains(own) && Shortcuts::NONE.with(own).contains(own));
            assert_eq!(own.to_string(), *name);
        }
        let error = Shortcuts::named("all").expect_err("no such shortcut").to_string();
        assert!(error.contains(&NAMES.join(", ")), "{error}");
    }
}
