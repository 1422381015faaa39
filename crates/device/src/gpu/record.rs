//! Launches of a step: recorded, then run together, as one replay where the same were run before.
//!
//! What changes from token to token lies in the step's data, one stretch of device memory that is
//! uploaded before the launches. So the launches of one token are equal to those of the next, and
//! a captured graph serves both.

use super::driver::{Address, Driver, Graph, Kernel};
use super::lanes::{self, Access};
use crate::Error;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

/// Where a buffer of a launch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// In memory that stays.
    At(Address),
    /// In the step's data, so many bytes from its start.
    Step(u64),
}

impl Place {
    /// A buffer that a kernel does not touch.
    pub const NONE: Place = Place::At(Address::NULL);

    /// A name for memory that is reached through tables; no allocation has such an address.
    pub fn hidden(bit: u8) -> Place {
        Place::At(Address(1 + u64::from(bit)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Command {
    kernel: Kernel,
    grid: [u32; 3],
    group: u32,
    places: usize,
    bytes: usize,
    access: Access,
}

/// Launches with their operands behind one another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct List {
    commands: Vec<Command>,
    places: Vec<Place>,
    bytes: Vec<u8>,
}

impl List {
    /// Launches with their places and arguments.
    fn each(&self) -> impl Iterator<Item = (&Command, &[Place], &[u8])> {
        let (mut places, mut bytes) = (&*self.places, &*self.bytes);
        self.commands.iter().map(move |command| {
            let (own, arguments);
            (own, places) = places.split_at(command.places);
            (arguments, bytes) = bytes.split_at(command.bytes);
            (command, own, arguments)
        })
    }

    /// Which of them may run beside each other.
    fn plan(&self) -> lanes::Plan {
        let mut planner = lanes::Planner::default();
        for (command, places, _) in self.each() {
            planner.push(command.access, places);
        }
        planner.finish()
    }
}

/// A quick hash for lists, which are some hundred kilobytes and are compared in full afterwards.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value.cast_unsigned() as u64);
    }
}

/// What is known of a list of launches.
enum Known {
    /// It was run once.
    Seen,
    /// It can be replayed.
    Captured { list: List, graph: Graph, used: u64 },
}

/// Recorder of one backend.
#[derive(Default)]
pub(super) struct Recorder {
    list: List,
    /// The step's data, and how much of it is on the device.
    data: Vec<u8>,
    uploaded: usize,
    base: Address,
    capacity: usize,
    /// By hash of a list.
    known: HashMap<u64, Known>,
    turn: u64,
    /// Launches of the step's next list from which on it is run.
    next_cut: usize,
    /// Whether lists are captured at all.
    pub graphs: bool,
    /// Whether launches of a captured list run beside each other.
    pub lanes: bool,
    /// The step is long: what was recorded runs in portions, and is not captured.
    long: bool,
    /// Runs lists in another order that their lanes allow, for tests.
    pub reorder: bool,
    /// Launches and replays so far, for reports.
    pub launches: u64,
    /// Replays so far.
    pub replays: u64,
    /// How often each kernel was recorded, by handle.
    pub counts: HashMap<Kernel, u64>,
}

/// Most lists that are remembered, and most launches of a list that is.
const KNOWN_MAX: usize = 256;
const LAUNCHES_MAX: usize = 1 << 13;
/// Launches of a long step that are run together: few at first, so that the device has work while
/// the host makes the step's tables.
const PORTION: usize = 64;
const PORTION_FIRST: usize = 4;
const PORTION_GROWTH: usize = 4;
/// Launches of a step's first list, where it is cut, and how many times as long the next ones are:
/// the device works on one while the next is recorded.
const CUT_FIRST: usize = 20;
const CUT_GROWTH: usize = 4;

impl Recorder {
    /// Forgets the step's data; everything recorded has been run.
    pub fn begin(&mut self, long: bool) {
        self.long = long;
        debug_assert!(self.list.commands.is_empty(), "the last step was flushed");
        self.data.clear();
        self.uploaded = 0;
        self.next_cut = if long { PORTION_FIRST } else { CUT_FIRST };
    }

    /// Runs what was recorded if it is long enough, so that the device need not wait for the rest.
    pub fn cut(&mut self, driver: &mut dyn Driver) -> Result<(), Error> {
        if !self.graphs || self.list.commands.len() < self.next_cut {
            return Ok(());
        }
        self.next_cut = self.next_cut.saturating_mul(CUT_GROWTH);
        self.flush(driver)
    }

    /// Puts bytes into the step's data, aligned to 16.
    pub fn put(&mut self, bytes: impl IntoIterator<Item = u8>) -> Place {
        let at = self.data.len().next_multiple_of(16);
        self.data.resize(at, 0);
        self.data.extend(bytes);
        Place::Step(at as u64)
    }

    /// The same of floats, which may be very many.
    pub fn put_floats(&mut self, values: &[f32]) -> Place {
        let at = self.data.len().next_multiple_of(16);
        self.data.resize(at + size_of_val(values), 0);
        for (bytes, value) in self.data[at..].as_chunks_mut::<4>().0.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
        Place::Step(at as u64)
    }

    /// Records a launch; one without groups is left out.
    pub fn push(
        &mut self,
        kernel: Kernel,
        grid: [u32; 3],
        group: u32,
        places: &[Place],
        bytes: &[u8],
        access: Access,
    ) {
        if grid.contains(&0) {
            return;
        }
        *self.counts.entry(kernel).or_default() += 1;
        let (count, len) = (places.len(), bytes.len());
        let command = Command { kernel, grid, group, places: count, bytes: len, access };
        self.list.commands.push(command);
        self.list.places.extend_from_slice(places);
        self.list.bytes.extend_from_slice(bytes);
    }

    /// Whether what was recorded is to run now.
    pub fn is_due(&self) -> bool {
        self.long && !self.reorder && self.list.commands.len() >= self.next_cut
    }

    /// Runs what was recorded. After an error nothing of it is left.
    pub fn flush(&mut self, driver: &mut dyn Driver) -> Result<(), Error> {
        if self.list.commands.is_empty() {
            return Ok(());
        }
        if self.long {
            self.next_cut = self.next_cut.saturating_mul(PORTION_GROWTH).min(PORTION);
        }
        let list = std::mem::take(&mut self.list);
        self.upload(driver)?;
        self.launches += list.commands.len() as u64;
        let result = self.run(driver, &list);
        // The vectors keep their memory for the next step.
        self.list = list;
        self.list.commands.clear();
        self.list.places.clear();
        self.list.bytes.clear();
        result
    }

    fn upload(&mut self, driver: &mut dyn Driver) -> Result<(), Error> {
        if self.data.len() > self.capacity {
            driver.finish()?;
            if self.capacity > 0 {
                driver.free(self.base);
                self.capacity = 0;
            }
            let capacity = self.data.len().next_power_of_two().max(1 << 16);
            self.base = driver.alloc(capacity as u64)?;
            self.capacity = capacity;
            self.uploaded = 0;
            self.forget(driver);
        }
        driver.upload(self.base.offset(self.uploaded as u64), &self.data[self.uploaded..])?;
        self.uploaded = self.data.len();
        Ok(())
    }

    fn run(&mut self, driver: &mut dyn Driver, list: &List) -> Result<(), Error> {
        if self.reorder {
            return self.launch_reordered(driver, list);
        }
        if !self.graphs || self.long || list.commands.len() > LAUNCHES_MAX {
            return self.launch(driver, list);
        }
        let mut hasher = Mixer::default();
        list.hash(&mut hasher);
        let hash = hasher.finish();
        self.turn += 1;
        match self.known.get_mut(&hash) {
            Some(Known::Captured { list: same, graph, used }) if same == list => {
                *used = self.turn;
                self.replays += 1;
                driver.replay(*graph)
            }
            Some(Known::Captured { .. }) => self.launch(driver, list),
            Some(Known::Seen) => self.capture(driver, list, hash),
            None => {
                self.make_room(driver);
                self.known.insert(hash, Known::Seen);
                self.launch(driver, list)
            }
        }
    }

    /// Runs a list for the second time: as a graph from now on, if the driver can.
    fn capture(&mut self, driver: &mut dyn Driver, list: &List, hash: u64) -> Result<(), Error> {
        if !driver.begin_capture()? {
            self.graphs = false;
            return self.launch(driver, list);
        }
        let recorded = match self.lanes {
            true => self.launch_beside(driver, list),
            false => self.launch(driver, list),
        };
        let graph = driver.end_capture();
        recorded?;
        let graph = graph?;
        let used = self.turn;
        self.known.insert(hash, Known::Captured { list: list.clone(), graph, used });
        driver.replay(graph)
    }

    fn launch(&self, driver: &mut dyn Driver, list: &List) -> Result<(), Error> {
        list.each().try_for_each(|(command, places, bytes)| {
            self.launch_one(driver, command, places, bytes)
        })
    }

    /// Records a list on as many lanes as its dependencies allow.
    fn launch_beside(&self, driver: &mut dyn Driver, list: &List) -> Result<(), Error> {
        let plan = list.plan();
        for (index, (command, places, bytes)) in list.each().enumerate() {
            let order = &plan.orders[index];
            driver.lane(order.lane, &order.waits)?;
            self.launch_one(driver, command, places, bytes)?;
            if order.awaited {
                driver.mark(index)?;
            }
        }
        driver.lane(0, &plan.last)
    }

    fn launch_reordered(&self, driver: &mut dyn Driver, list: &List) -> Result<(), Error> {
        let all: Vec<_> = list.each().collect();
        lanes::reordered(&list.plan()).into_iter().try_for_each(|index| {
            let (command, places, bytes) = all[index];
            self.launch_one(driver, command, places, bytes)
        })
    }

    fn launch_one(
        &self,
        driver: &mut dyn Driver,
        command: &Command,
        places: &[Place],
        bytes: &[u8],
    ) -> Result<(), Error> {
        let buffers: Vec<Address> = places
            .iter()
            .map(|place| match place {
                Place::At(address) => *address,
                Place::Step(offset) => self.base.offset(*offset),
            })
            .collect();
        driver.launch(command.kernel, command.grid, command.group, &buffers, bytes)
    }

    /// Drops the graph that was not used for the longest time if there are too many lists.
    fn make_room(&mut self, driver: &mut dyn Driver) {
        if self.known.len() < KNOWN_MAX {
            return;
        }
        let used = |known: &Known| match known {
            Known::Seen => 0,
            Known::Captured { used, .. } => *used,
        };
        let oldest = self.known.iter().min_by_key(|(_, known)| used(known)).map(|(hash, _)| *hash);
        if let Some(Known::Captured { graph, .. }) =
            oldest.and_then(|hash| self.known.remove(&hash))
        {
            driver.drop_graph(graph);
        }
    }

    /// How many lists are remembered.
    #[cfg(all(test, feature = "host-driver"))]
    pub fn remembers(&self) -> usize {
        self.known.len()
    }

    /// Drops all graphs, whose launches may be others from here on, on lanes or not.
    pub fn start_over(&mut self, driver: &mut dyn Driver, lanes: bool) {
        self.lanes = lanes;
        self.forget(driver);
    }

    /// Drops all graphs: what they were made from has changed.
    fn forget(&mut self, driver: &mut dyn Driver) {
        for (_, known) in self.known.drain() {
            if let Known::Captured { graph, .. } = known {
                driver.drop_graph(graph);
            }
        }
    }
}

#[cfg(test)]
mod tests;
