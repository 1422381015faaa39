use super::super::driver::Facts;
use super::*;

/// A driver that writes down what it is asked for.
#[derive(Default)]
struct Log {
    facts: Facts,
    lines: Vec<String>,
    next: u64,
    graphs: u32,
}

impl Driver for Log {
    fn name(&self) -> &'static str {
        "log"
    }
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn alloc(&mut self, bytes: u64) -> Result<Address, Error> {
        self.next += 1 << 32;
        self.lines.push(format!("alloc {bytes}"));
        Ok(Address(self.next))
    }
    fn free(&mut self, _address: Address) {
        self.lines.push("free".into());
    }
    fn upload(&mut self, _to: Address, bytes: &[u8]) -> Result<(), Error> {
        self.lines.push(format!("upload {bytes:?}"));
        Ok(())
    }
    fn download(&mut self, _from: Address, _bytes: &mut [u8]) -> Result<(), Error> {
        Ok(())
    }
    fn kernel(&mut self, _name: &'static str) -> Result<Kernel, Error> {
        Ok(Kernel(0))
    }
    fn launch(
        &mut self,
        kernel: Kernel,
        grid: [u32; 3],
        _group: u32,
        buffers: &[Address],
        arguments: &[u8],
    ) -> Result<(), Error> {
        let offsets: Vec<u64> = buffers.iter().map(|b| b.0 & 0xffff_ffff).collect();
        self.lines.push(format!("launch {} {grid:?} {offsets:?} {arguments:?}", kernel.0));
        Ok(())
    }
    fn finish(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn begin_capture(&mut self) -> Result<bool, Error> {
        self.lines.push("begin".into());
        Ok(true)
    }
    fn lane(&mut self, lane: usize, behind: &[usize]) -> Result<(), Error> {
        self.lines.push(format!("lane {lane} behind {behind:?}"));
        Ok(())
    }
    fn mark(&mut self, mark: usize) -> Result<(), Error> {
        self.lines.push(format!("mark {mark}"));
        Ok(())
    }
    fn end_capture(&mut self) -> Result<Graph, Error> {
        self.graphs += 1;
        self.lines.push("end".into());
        Ok(Graph(self.graphs))
    }
    fn replay(&mut self, graph: Graph) -> Result<(), Error> {
        self.lines.push(format!("replay {}", graph.0));
        Ok(())
    }
    fn drop_graph(&mut self, graph: Graph) {
        self.lines.push(format!("drop {}", graph.0));
    }
}

fn recorder() -> Recorder {
    Recorder { graphs: true, ..Recorder::default() }
}

/// One step: some data, and a launch on it.
fn step(recorder: &mut Recorder, log: &mut Log, data: &[u8], grid: u32) -> Vec<String> {
    recorder.begin(false);
    let first = recorder.put([7]);
    let place = recorder.put(data.iter().copied());
    assert_eq!((first, place), (Place::Step(0), Place::Step(16)));
    recorder.push(
        Kernel(3),
        [grid, 1, 1],
        32,
        &[Place::At(Address(9)), place],
        &[1, 2],
        Access::default(),
    );
    recorder.flush(log).expect("no errors");
    std::mem::take(&mut log.lines)
}

#[test]
fn what_comes_again_is_replayed() {
    let (mut recorder, mut log) = (recorder(), Log::default());
    let upload = |data: u8| {
        let mut bytes = vec![7];
        bytes.resize(16, 0);
        bytes.push(data);
        format!("upload {bytes:?}")
    };
    let launch = "launch 3 [1, 1, 1] [9, 16] [1, 2]";
    let first = step(&mut recorder, &mut log, &[1], 1);
    assert_eq!(first, ["alloc 65536", &upload(1), launch]);
    let second = step(&mut recorder, &mut log, &[2], 1);
    assert_eq!(second, [&upload(2), "begin", launch, "end", "replay 1"]);
    let third = step(&mut recorder, &mut log, &[3], 1);
    assert_eq!(third, [&upload(3), "replay 1"]);
    // Another grid is another list.
    let other = step(&mut recorder, &mut log, &[3], 2);
    assert_eq!(other[1], "launch 3 [2, 1, 1] [9, 16] [1, 2]");
    assert_eq!((recorder.launches, recorder.replays), (4, 1));
}

/// Data that no longer fits moves, and graphs with its old address are dropped.
#[test]
fn moved_data_drops_graphs() {
    let (mut recorder, mut log) = (recorder(), Log::default());
    for data in 0..2 {
        step(&mut recorder, &mut log, &[data], 1);
    }
    let lines = step(&mut recorder, &mut log, &[5; 70_000], 1);
    assert_eq!(lines[..3], ["free", "alloc 131072", "drop 1"]);
    assert!(lines[4].starts_with("launch"), "{}", lines[4]);
}

/// What was captured is dropped on demand, and captured anew by the lanes that were asked for.
#[test]
fn starting_over_captures_anew() {
    let (mut recorder, mut log) = (recorder(), Log::default());
    for data in 0..3 {
        step(&mut recorder, &mut log, &[data], 1);
    }
    recorder.start_over(&mut log, true);
    assert_eq!(std::mem::take(&mut log.lines), ["drop 1"]);
    let launch = "launch 3 [1, 1, 1] [9, 16] [1, 2]";
    assert_eq!(step(&mut recorder, &mut log, &[3], 1)[1..], [launch]);
    let beside = ["begin", "lane 0 behind []", launch, "lane 0 behind []", "end", "replay 2"];
    assert_eq!(step(&mut recorder, &mut log, &[4], 1)[1..], beside);
}

/// Launches without groups are left out, and a flush without launches does nothing.
#[test]
fn nothing_is_nothing() {
    let (mut recorder, mut log) = (recorder(), Log::default());
    recorder.begin(false);
    recorder.push(Kernel(0), [1, 0, 1], 32, &[], &[], Access::default());
    recorder.flush(&mut log).expect("no errors");
    assert_eq!(log.lines, Vec::<String>::new());
}

/// A long step runs in portions as it is recorded, small ones first, and nothing of it is captured.
#[test]
fn long_steps_run_in_portions() {
    let (mut recorder, mut log) = (recorder(), Log::default());
    let portions = [PORTION_FIRST, PORTION_FIRST * PORTION_GROWTH, PORTION, PORTION];
    for _ in 0..3 {
        recorder.begin(true);
        for portion in portions {
            for at in 1..=portion {
                recorder.push(Kernel(0), [1; 3], 32, &[], &[], Access::default());
                assert_eq!(recorder.is_due(), at == portion);
            }
            recorder.flush(&mut log).expect("no errors");
            assert!(!recorder.is_due());
        }
    }
    let launched = log.lines.iter().filter(|line| line.starts_with("launch")).count();
    assert_eq!((launched, recorder.replays), (3 * portions.iter().sum::<usize>(), 0));
    assert!(!log.lines.iter().any(|line| line == "begin"));
    recorder.begin(false);
    recorder.push(Kernel(0), [1; 3], 32, &[], &[], Access::default());
    assert!(!recorder.is_due());
}

/// A step of few rows is run in lists that grow, and what was put before a cut is not sent again.
#[test]
fn steps_of_few_rows_are_cut() {
    let (mut recorder, mut log) = (recorder(), Log::default());
    recorder.begin(false);
    recorder.put([7]);
    let mut runs = Vec::new();
    for index in 0..120 {
        recorder.push(Kernel(0), [1; 3], 32, &[], &[], Access::default());
        recorder.cut(&mut log).expect("no errors");
        if !log.lines.is_empty() {
            runs.push((index + 1, std::mem::take(&mut log.lines)));
        }
    }
    assert_eq!(runs.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [20, 100]);
    assert_eq!(runs[0].1[..2], ["alloc 65536", "upload [7]"]);
    assert_eq!((&*runs[1].1[0], runs[1].1.len()), ("upload []", 81));
}

/// There is a bound on what is remembered.
#[test]
fn lists_are_forgotten() {
    let (mut recorder, mut log) = (recorder(), Log::default());
    for grid in 1..400 {
        step(&mut recorder, &mut log, &[0], grid);
        step(&mut recorder, &mut log, &[0], grid);
    }
    assert!(recorder.known.len() <= KNOWN_MAX, "{} lists", recorder.known.len());
}

/// A list is captured on the lanes that its plan has, and all of them meet at the end.
#[test]
fn lanes_are_captured() {
    let (mut recorder, mut log) = (recorder(), Log::default());
    recorder.lanes = true;
    let beside = Access { beside: true, writes: 2, ..Access::default() };
    let [x, y] = [Place::At(Address(1 << 32)), Place::At(Address(2 << 32))];
    for _ in 0..2 {
        log.lines.clear();
        recorder.begin(false);
        recorder.push(Kernel(1), [1; 3], 32, &[x], &[], Access { writes: 1, ..Access::default() });
        recorder.push(Kernel(2), [1; 3], 32, &[x, y], &[], beside);
        recorder.push(Kernel(3), [1; 3], 32, &[x], &[], Access::default());
        recorder.flush(&mut log).expect("no errors");
    }
    let wanted = [
        "upload []",
        "begin",
        "lane 0 behind []",
        "launch 1 [1, 1, 1] [0] []",
        "mark 0",
        "lane 1 behind [0]",
        "launch 2 [1, 1, 1] [0, 0] []",
        "mark 1",
        "lane 0 behind []",
        "launch 3 [1, 1, 1] [0] []",
        "lane 0 behind [1]",
        "end",
        "replay 1",
    ];
    assert_eq!(log.lines, wanted);
}
