//! What of a list of launches may run beside what.
//!
//! An operation says of a launch that it may run *beside* the others (`Gpu::beside`); what it then
//! waits for, and who waits for it, follows from what each kernel reads and writes. So a wrong
//! remark costs time and never a result. A lane runs its launches in their order; lane 0 has all
//! that were not said to be beside.

use super::record::Place;
use std::collections::HashMap;

/// Lanes, the main one included.
pub(super) const LANES: usize = 6;

/// What a launch touches, beyond what its places say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Access {
    /// Nothing is known: it comes after all before and before all behind.
    pub unknown: bool,
    /// Whether it may run beside others.
    pub beside: bool,
    /// Whether it then comes behind what the main lane has so far.
    pub behind: bool,
    /// Whether it then is no neighbour of what it waits for in a lane: it begins once that has
    /// ended, and is not set up before.
    pub fresh: bool,
    /// Places that it writes, a bit each; it reads the others.
    pub writes: u32,
    /// Memory behind tables that it reads and writes, a bit of [`hidden`] each.
    pub hidden: [u8; 2],
}

/// Memory that launches reach through tables of addresses. What one session or layer does to its
/// own is taken for all of them, so that lists of different sessions stay equal.
pub(super) mod hidden {
    /// Window rings.
    pub const RINGS: u8 = 1;
    /// Rows of compressors of keys and values.
    pub const ROWS: u8 = 2;
    /// Rows of indexers.
    pub const INDEX: u8 = 4;
    /// Rings of tokens that rows are made of, of either kind.
    pub const KEPT: u8 = 8;
    pub const INDEX_KEPT: u8 = 16;
}

/// Places that a kernel writes, of kernels whose places are all that they touch but for what the
/// operation adds. A test compares this with the kernel text.
pub(super) const WRITES: &[(&str, u32)] = &[
    ("activate", 0b11 << 3),
    ("activate_256", 0b11 << 3),
    ("activate_32", 0b11 << 3),
    ("add_pairs", 1 << 1),
    ("ahead_normed_q8_0", 0b10),
    ("ahead_q8_0_4096", 0b110010),
    ("ahead_q8_0_8192", 0b110010),
    ("attend_few_mix", 0b111 << 11),
    ("attend_few_mix_long", 0b111 << 11),
    ("attend_few_scores", 1 << 9),
    ("attend_few_weights", 0b111 << 5),
    ("attend_row", 0b111 << 10),
    ("attend_some_mix", 0b111 << 11),
    ("attend_some_scores", 1 << 9),
    ("chosen_iq2_xxs", 0b1010_1010),
    ("chosen_iq2_xxs_pooled", 0b1010_1010),
    ("chosen_iq2_xxs_shared", 0b1010_1010),
    ("chosen_mxfp4_last_pooled", 0b1010_1010),
    ("chosen_mxfp4_pooled", 0b1010_1010),
    ("chosen_q2_k", 0b1010_1010),
    ("chosen_q2_k_pooled", 0b1010_1010),
    ("chosen_q2_k_shared", 0b1010_1010),
    ("chosen_q4_k", 0b1010_1010),
    ("chosen_q4_k_last", 0b1010_1010),
    ("compress", 0),
    ("compress_pooled", 0),
    ("decode_bf16", 0b1010_1010),
    ("decode_bf16_short", 0b1010_1010),
    ("decode_f16", 0b1010_1010),
    ("decode_f16_short", 0b1010_1010),
    ("decode_iq2_xxs", 0b1010_1010),
    ("decode_mxfp4", 0b1010_1010),
    ("decode_q2_k", 0b1010_1010),
    ("decode_q4_0", 0b1010_1010),
    ("decode_q4_k", 0b1010_1010),
    ("decode_q8_0", 0b1010_1010),
    ("expert_cells", 1 << 3),
    ("expert_cells_four", 1 << 3),
    ("expert_cells_part", 1 << 3),
    ("few_bf16", 0b1010_1010),
    ("few_bf16_low", 0b1010_1010),
    ("few_f16", 0b1010_1010),
    ("few_f16_low", 0b1010_1010),
    ("few_iq2_xxs", 0b1010_1010),
    ("few_mxfp4", 0b1010_1010),
    ("few_q2_k", 0b1010_1010),
    ("few_q4_0", 0b1010_1010),
    ("few_q4_k", 0b1010_1010),
    ("few_q8_0", 0b1010_1010),
    ("few_tiles_q8_0", 0b1100_1010_1010),
    ("floats_q8_0", 0b1010_1010),
    ("halves_ahead", 0b1010_1010),
    ("halves_few", 0b1010_1010),
    ("halves_one", 0b1010_1010),
    ("halves_ring", 0b1010_1010),
    ("halves_split", 0b110),
    ("hc_mixing", 1),
    ("hc_post", 1 << 1),
    ("hc_post_cells", 0b11 << 3),
    ("hc_post_four", 1 << 1),
    ("hc_post_pre_1024", 0b111_1111_0000_0100),
    ("hc_post_pre_4096", 0b111_1111_0000_0100),
    ("hc_post_pre_7168", 0b111_1111_0000_0100),
    ("hc_post_route_4096", 0b11_0001_0111_1111_0000_0100),
    ("hc_pre_1024", 0b111_1111_1110_0000),
    ("hc_pre_4096", 0b111_1111_1110_0000),
    ("hc_pre_7168", 0b111_1111_1110_0000),
    ("index_choose", 1 << 2),
    ("index_choose_few", 1 << 2),
    ("index_choose_many", 1 << 2),
    ("index_cluster", 1 << 5),
    ("index_queries", 0b1001),
    ("index_queries_128", 1 << 3),
    ("index_scores_few", 1 << 5),
    ("index_scores_fp4", 1 << 5),
    ("kv_rows", 1 << 3),
    ("local_ids", 1 << 1),
    ("normed_q8_0", 0b1010_1010),
    ("pool_long", 1 << 6),
    ("post_shards_bf16", 0b11 << 5),
    ("post_shards_f16", 0b11 << 5),
    ("post_shards_some_bf16", 0b11 << 5),
    ("post_shards_some_f16", 0b11 << 5),
    ("quantise", 0b110),
    ("quantise_part", 0b110),
    ("query_heads", 1),
    ("query_heads_512", 1),
    ("query_heads_few", 1),
    ("repeat_floats", 1 << 1),
    ("rms_norm", 1 << 2),
    ("rms_norm_blocks", 0b11100),
    ("route", 0b11 << 4),
    ("route_ranks", 0b11 << 4),
    ("shards_bf16", 1 << 2),
    ("shards_f16", 1 << 2),
    ("sort_slots", 0b1110),
    ("spread_mix_f16", 0b10_0100),
    ("staged_iq2_xxs", 0b1010_1010),
    ("staged_q2_k", 0b1010_1010),
    ("staged_q4_k", 0b1010_1010),
    ("staged_q8_0", 0b1010_1010),
    ("store_window", 0),
];

impl Access {
    /// Access of a kernel by its name; unknown if the table has none.
    pub fn of(name: &str) -> Access {
        match WRITES.binary_search_by_key(&name, |(own, _)| own) {
            Ok(index) => Access { writes: WRITES[index].1, ..Access::default() },
            Err(_) => Access { unknown: true, ..Access::default() },
        }
    }
}

/// When a launch runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    /// Its lane, whose launches run one after the other.
    pub lane: usize,
    /// Launches of other lanes that it waits for, at most one a lane.
    pub waits: Vec<usize>,
    /// Whether one of another lane waits for it.
    pub awaited: bool,
}

/// Orders of all launches, and the last launches of the side lanes, which the end waits for.
pub(super) struct Plan {
    pub orders: Vec<Order>,
    pub last: Vec<usize>,
}

/// What is known of a piece of memory.
#[derive(Default)]
struct Touched {
    written: Option<usize>,
    read: Vec<usize>,
}

/// Of each lane, how many launches of the list (by index, exclusive) have certainly ended.
type Clock = [usize; LANES];

/// Works through a list.
#[derive(Default)]
pub(super) struct Planner {
    memory: HashMap<Place, Touched>,
    orders: Vec<Order>,
    /// What has ended when a launch begins, and it with it.
    clocks: Vec<Clock>,
    /// The last launch of each lane.
    tails: [Option<usize>; LANES],
    /// The last launch that nothing may pass.
    floor: Option<usize>,
}

impl Planner {
    /// Takes the next launch.
    pub fn push(&mut self, access: Access, places: &[Place]) {
        let index = self.orders.len();
        let mut after = Vec::new();
        after.extend(self.floor);
        if access.unknown {
            after.extend(self.tails.iter().flatten());
            self.floor = Some(index);
            self.memory.clear();
        }
        for (number, place) in places.iter().enumerate() {
            if !matches!(place, Place::Step(_)) && *place != Place::NONE {
                self.touch(*place, access.writes >> number & 1 == 1, index, &mut after);
            }
        }
        for bit in 0..8 {
            let [reads, writes] = access.hidden.map(|mask| mask >> bit & 1 == 1);
            if reads || writes {
                self.touch(Place::hidden(bit), writes, index, &mut after);
            }
        }
        if access.beside && access.behind {
            after.extend(self.tails[0]);
        }
        let side = access.beside && !access.unknown;
        let lane = if side { self.lane(&after, access.fresh) } else { 0 };
        self.place(index, lane, &after);
    }

    /// Notes an access and what it comes after.
    fn touch(&mut self, place: Place, writes: bool, index: usize, after: &mut Vec<usize>) {
        let touched = self.memory.entry(place).or_default();
        after.extend(touched.written.filter(|own| *own != index));
        if writes {
            after.extend(touched.read.drain(..).filter(|own| *own != index));
            touched.written = Some(index);
        } else {
            touched.read.push(index);
        }
    }

    /// A side lane where a launch loses least: one that it goes on with, else one that is idle by
    /// then, else the one with the oldest tail.
    fn lane(&self, after: &[usize], fresh: bool) -> usize {
        let known = after.iter().fold([0; LANES], |all, own| latest(all, self.clocks[*own]));
        let last = after.iter().max();
        let neighbour = |lane: &usize| self.tails[*lane].is_some_and(|own| after.contains(&own));
        let side = (1..LANES).filter(|lane| !fresh || !neighbour(lane));
        let goes_on =
            side.clone().find(|lane| last.is_some() && self.tails[*lane].as_ref() == last);
        let idle = side.clone().find(|lane| self.tails[*lane].is_none_or(|own| own < known[*lane]));
        let oldest = side.min_by_key(|lane| self.tails[*lane]);
        goes_on.or(idle).or(oldest).unwrap_or(0)
    }

    fn place(&mut self, index: usize, lane: usize, after: &[usize]) {
        let mut clock = self.tails[lane].map_or([0; LANES], |own| self.clocks[own]);
        let mut waits = Vec::new();
        let mut after = after.to_vec();
        after.sort_unstable_by(|a, b| b.cmp(a));
        for own in after {
            let other = self.orders[own].lane;
            if own >= clock[other] {
                waits.push(own);
                clock = latest(clock, self.clocks[own]);
                self.orders[own].awaited = true;
            }
        }
        clock[lane] = index + 1;
        self.clocks.push(clock);
        self.orders.push(Order { lane, waits, awaited: false });
        self.tails[lane] = Some(index);
    }

    /// The whole plan.
    pub fn finish(mut self) -> Plan {
        let last: Vec<usize> = self.tails[1..].iter().flatten().copied().collect();
        for own in &last {
            self.orders[*own].awaited = true;
        }
        Plan { orders: self.orders, last }
    }
}

fn latest(a: Clock, b: Clock) -> Clock {
    std::array::from_fn(|lane| a[lane].max(b[lane]))
}

/// Another order that the plan allows, as far from the list's own as the lanes let it be.
pub(super) fn reordered(plan: &Plan) -> Vec<usize> {
    let mut lanes: [std::collections::VecDeque<usize>; LANES] = Default::default();
    for (index, order) in plan.orders.iter().enumerate() {
        lanes[order.lane].push_back(index);
    }
    let (mut done, mut made) = (vec![false; plan.orders.len()], Vec::new());
    // Lane 0 runs ahead as far as it can, then the last lane, and so on.
    let turn = [0, 5, 4, 3, 2, 1];
    while made.len() < plan.orders.len() {
        let ready = |lane: &usize| {
            let next = lanes[*lane].front()?;
            plan.orders[*next].waits.iter().all(|own| done[*own]).then_some((*lane, *next))
        };
        let (lane, next) = turn.iter().find_map(ready).expect("waits are for earlier launches");
        lanes[lane].pop_front();
        done[next] = true;
        made.push(next);
    }
    made
}

#[cfg(test)]
mod tests;
