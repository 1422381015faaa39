//! When each launch of a replayed list starts: every kernel leaves the card's clock twice, when its
//! first group is there and when it may begin, in the order of a recording. For diagnosis.

use super::call::check;
use crate::Error;
use cudarc::driver::sys;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

/// Launches of a recording that have a place; the last one takes those without.
const LAUNCHES_MAX: usize = 1 << 13;

/// What the text needs before everything else: a table, and the start of a kernel with its stamps.
pub(super) const DEFINITION: &str = r#"
__device__ unsigned long long launch_stamps[16384];
#define LAUNCH_CLOCK(t) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
#define GRID_NEXT asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#define GRID_WAIT { \
    unsigned long long there_ = 0ull, begun_ = 0ull; \
    const bool first_ = threadIdx.x + blockIdx.x + blockIdx.y + blockIdx.z == 0u; \
    if (first_) { LAUNCH_CLOCK(there_) } \
    asm volatile("griddepcontrol.wait;" ::: "memory"); \
    if (first_) { \
        LAUNCH_CLOCK(begun_) \
        launch_stamps[2u * launch_number] = there_; \
        launch_stamps[2u * launch_number + 1u] = begun_; \
    } \
}
#define GRID_START GRID_NEXT GRID_WAIT
"#;

/// The text with one more parameter in every kernel, the number of its launch; `None` if the
/// prelude is not the expected one.
pub(super) fn with_numbers(text: &str) -> Option<String> {
    let (before, after) = text.split_once("#define GRID_ARGS\n")?;
    Some(format!("{before}#define GRID_ARGS , const unsigned int launch_number\n{after}"))
}

/// One launch of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Kernel.
    pub name: &'static str,
    /// Lane of the recording; 0 is the main one.
    pub lane: usize,
    /// Whether it comes behind another lane too.
    pub joins: bool,
    /// Groups.
    pub groups: u32,
    /// Nanoseconds of the card's clock when its first group was there.
    pub there_ns: u64,
    /// The same when all that it comes behind had ended.
    pub begun_ns: u64,
}

/// The replays that were seen; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    replays: Arc<Mutex<Vec<Vec<Stamp>>>>,
}

impl Timeline {
    /// All replays since the last call, launch by launch in the order of their recording.
    #[must_use]
    pub fn take(&self) -> Vec<Vec<Stamp>> {
        std::mem::take(&mut *self.replays.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the driver keeps of a timeline.
pub(super) struct Stamps {
    timeline: Timeline,
    table: sys::CUdeviceptr,
    /// Launches of the present recording, and the place of its first.
    recording: Vec<Stamp>,
    base: usize,
    /// Place of the first launch of each graph, and its launches.
    graphs: HashMap<u32, (usize, Vec<Stamp>)>,
    /// Graphs that were started since the last wait.
    replayed: Vec<u32>,
}

impl Stamps {
    /// The table of a loaded module.
    pub fn new(timeline: Timeline, module: sys::CUmodule) -> Result<Stamps, Error> {
        let name = CString::new("launch_stamps").expect("a word");
        let (mut table, mut bytes) = (0, 0);
        // SAFETY: the module is loaded; the name ends with zero; the out-parameters live here.
        let status = unsafe {
            sys::cuModuleGetGlobal_v2(&raw mut table, &raw mut bytes, module, name.as_ptr())
        };
        check("finding the table of stamps", status)?;
        let (recording, graphs, replayed) = (Vec::new(), HashMap::new(), Vec::new());
        Ok(Stamps { timeline, table, recording, base: 0, graphs, replayed })
    }

    /// The number of the next launch, which is part of a recording or not.
    pub fn number(&mut self, capturing: bool, launch: Stamp) -> u32 {
        let last = LAUNCHES_MAX - 1;
        let number = if capturing { (self.base + self.recording.len()).min(last) } else { last };
        if capturing {
            self.recording.push(launch);
        }
        u32::try_from(number).expect("a few thousand")
    }

    /// A recording became a graph.
    pub fn recorded(&mut self, graph: u32) {
        let launches = std::mem::take(&mut self.recording);
        let next = self.base + launches.len();
        self.graphs.insert(graph, (self.base, launches));
        // When the table is full, graphs share places from its start on; those of one step are
        // recorded one behind the other.
        self.base = if next < LAUNCHES_MAX / 2 { next } else { 0 };
    }

    /// A graph was started.
    pub fn replayed(&mut self, graph: u32) {
        self.replayed.push(graph);
    }

    /// Everything started has ended: reads the stamps of the graphs since the last wait.
    pub fn waited(&mut self) -> Result<(), Error> {
        let mut all = Vec::new();
        for graph in self.replayed.drain(..) {
            let Some((base, launches)) = self.graphs.get(&graph) else { continue };
            let mut launches = launches.clone();
            launches.truncate(LAUNCHES_MAX - 1 - base);
            let mut words = vec![0u64; 2 * launches.len()];
            let (bytes, from) = (size_of_val(&*words), self.table + 16 * *base as u64);
            // SAFETY: the table has room for all launches behind `base`, and so has the vector.
            let status = unsafe { sys::cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), from, bytes) };
            check("reading the stamps", status)?;
            for (launch, [there, begun]) in launches.iter_mut().zip(words.as_chunks::<2>().0) {
                (launch.there_ns, launch.begun_ns) = (*there, *begun);
            }
            all.append(&mut launches);
        }
        if !all.is_empty() {
            let mut replays = self.timeline.replays.lock().unwrap_or_else(PoisonError::into_inner);
            replays.push(all);
        }
        Ok(())
    }
}

/// A launch of a stretch, averaged over equal stretches and replays; microseconds.
#[derive(Clone, Debug, PartialEq)]
struct Mean {
    launch: Stamp,
    there: f64,
    begun: f64,
}

/// Tables of the stretches of a list, each of which begins with a launch of the named kernels:
/// equal stretches are averaged, and every launch has its start from the stretch's own.
#[must_use]
pub fn timeline_tables(replays: &[Vec<Stamp>], starts: impl Fn(&str) -> bool) -> String {
    let mut out = String::new();
    let Some(first) = replays.first().filter(|first| !first.is_empty()) else { return out };
    let alike = |other: &&Vec<Stamp>| other.len() == first.len();
    let same: Vec<_> = replays.iter().filter(alike).collect();
    let borders: Vec<usize> = (0..first.len())
        .filter(|i| *i == 0 || starts(first[*i].name))
        .chain([first.len()])
        .collect();
    let mut kinds: Vec<(Vec<&str>, Vec<usize>)> = Vec::new();
    for (index, pair) in borders.windows(2).enumerate() {
        let names: Vec<&str> = first[pair[0]..pair[1]].iter().map(|s| s.name).collect();
        match kinds.iter_mut().find(|(own, _)| *own == names) {
            Some((_, own)) => own.push(index),
            None => kinds.push((names, vec![index])),
        }
    }
    let whole: f64 = same.iter().map(|replay| length(replay)).sum::<f64>() / count(same.len());
    out.push_str(&format!("{} launches, first start to last {whole:.1} us\n", first.len()));
    for (_, own) in &kinds {
        let stretches: Vec<_> = own.iter().map(|i| (borders[*i], borders[*i + 1])).collect();
        out.push_str(&table(&same, &stretches));
    }
    out
}

fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

/// Microseconds from one clock to another, which may lie before it.
fn between(from: u64, to: u64) -> f64 {
    let ns = |value: u64| f64::from(u32::try_from(value).unwrap_or(u32::MAX));
    if to >= from { ns(to - from) / 1e3 } else { -ns(from - to) / 1e3 }
}

fn length(replay: &[Stamp]) -> f64 {
    let starts = || replay.iter().map(|stamp| stamp.begun_ns);
    between(starts().min().unwrap_or(0), starts().max().unwrap_or(0))
}

fn table(replays: &[&Vec<Stamp>], stretches: &[(usize, usize)]) -> String {
    let (begin, end) = stretches[0];
    let all = count(replays.len() * stretches.len());
    let mut means: Vec<Mean> = replays[0][begin..end]
        .iter()
        .map(|launch| Mean { launch: launch.clone(), there: 0.0, begun: 0.0 })
        .collect();
    let mut whole = 0.0;
    for replay in replays {
        for (begin, end) in stretches {
            let zero = replay[*begin].begun_ns;
            for (mean, stamp) in means.iter_mut().zip(&replay[*begin..*end]) {
                mean.there += between(zero, stamp.there_ns) / all;
                mean.begun += between(zero, stamp.begun_ns) / all;
            }
            let next = replay.get(*end).or(replay.last());
            whole += next.map_or(0.0, |next| between(zero, next.begun_ns)) / all;
        }
    }
    let mut out =
        format!("{} stretches of {} launches, {whole:.2} us each\n", stretches.len(), end - begin);
    means.sort_by(|a, b| a.begun.total_cmp(&b.begun));
    for (index, mean) in means.iter().enumerate() {
        let Stamp { name, lane, joins, groups, .. } = mean.launch;
        let later = means[index + 1..].iter().find(|other| other.launch.lane == lane);
        let lasts = later.map_or(whole, |later| later.begun) - mean.begun;
        let joins = if joins { "join" } else { "" };
        out.push_str(&format!(
            "  lane {lane} {name:<22} {groups:>6} groups there {:>7.2} begun {:>7.2} next \
             {lasts:>6.2} {joins}\n",
            mean.there, mean.begun
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(name: &'static str, lane: usize, ns: u64) -> Stamp {
        Stamp { name, lane, joins: false, groups: 3, there_ns: ns - 500, begun_ns: ns }
    }

    #[test]
    fn equal_stretches_are_averaged() {
        let replay = |late: u64| {
            vec![
                stamp("mix", 0, 10_000),
                stamp("side", 1, 11_000 + late),
                stamp("last", 0, 12_000),
                stamp("mix", 0, 14_000),
                stamp("side", 1, 17_000),
                stamp("last", 0, 18_000),
                stamp("mix", 0, 20_000),
            ]
        };
        let text = timeline_tables(&[replay(0), replay(2000)], |name| name == "mix");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "7 launches, first start to last 10.0 us");
        assert_eq!(lines[1], "2 stretches of 3 launches, 5.00 us each");
        assert!(lines[2].contains("mix") && lines[2].contains("next   3.00"), "{text}");
        assert!(lines[3].contains("side") && lines[3].contains("begun    2.50"), "{text}");
        assert!(lines[4].contains("last") && lines[4].contains("next   2.00"), "{text}");
        assert_eq!(lines[5], "1 stretches of 1 launches, 0.00 us each");
        assert_eq!(timeline_tables(&[], |_| true), "");
    }

    #[test]
    fn every_kernel_takes_its_number() {
        let text = crate::gpu::text::cuda();
        let with = with_numbers(&text).expect("the prelude spells it");
        assert!(with.contains("launch_number") && !with.contains("#define GRID_ARGS\n"));
        assert!(DEFINITION.contains(&format!("launch_stamps[{}]", 2 * LAUNCHES_MAX)));
        assert_eq!(with_numbers("no prelude"), None);
    }
}
