use super::super::words::{Slot, Wait};
use super::super::{CHUNKS_MIN, GatePeer, UNITS};
use super::*;
use crate::{Backend, Element, GpuConfig, Local, LocalGroup, RowsOf};
use std::thread;
use std::time::Instant;

/// Long enough for a busy machine.
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(60);
const LENGTHS: [usize; 6] = [1, 5, 4096, CHUNKS_MIN, 64, 3 * UNITS + 2];

fn card(local: Local, most: GateRoute, limit: Duration) -> Gpu {
    let gpu = Gpu::host(GpuConfig::default()).expect("a compiler");
    gpu.with_exchange(Box::new(local)).with_gates(most, limit)
}

/// Ranks of a group that do something at the same time.
fn on_all<T: Send>(ranks: usize, work: impl Fn(Local) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let each = LocalGroup::whole(ranks, LONG).into_iter();
        let threads: Vec<_> = each.map(|local| scope.spawn(move || work(local))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn part(rank: usize, turn: usize, len: usize) -> Vec<f32> {
    (0..len).map(|at| ((at * 31 + rank * 7 + turn) % 1009) as f32 * 0.37 - 150.0).collect()
}

fn sum_of(gpu: &mut Gpu, mine: &[f32]) -> Result<Option<Vec<u32>>, Error> {
    let arena = gpu.arena();
    let buffer = gpu.alloc(arena, Element::F32, mine.len()).expect("a small number");
    gpu.write_f32(buffer, 0, mine)?;
    let given = gpu.sum_ranks(GateKind::Ffn, buffer, mine.len()).and_then(|done| {
        let mut all = vec![0.0; mine.len()];
        gpu.read_f32(buffer, 0, &mut all)?;
        Ok(done.then(|| all.iter().map(|value| value.to_bits()).collect()))
    });
    gpu.release(arena);
    given
}

fn wanted(ranks: usize, turn: usize, len: usize) -> Vec<u32> {
    let parts: Vec<_> = (0..ranks).map(|rank| part(rank, turn, len)).collect();
    let sum = |at: usize| {
        let own: Vec<f32> = parts.iter().map(|part| part[at]).collect();
        ironstar_quant::subtree(&own).to_bits()
    };
    (0..len).map(sum).collect()
}

#[test]
fn sums_are_the_tree_of_all_parts_by_every_route() {
    use GateRoute::{Carried, Peer, Shared};
    for (ranks, most) in [(2, Peer), (2, Shared), (2, Carried), (4, Peer), (4, Shared)] {
        let lengths = if ranks == 2 { &LENGTHS[..] } else { &LENGTHS[..2] };
        on_all(ranks, |local| {
            let mut gpu = card(local, most, LONG);
            gpu.join_epoch().expect("all are there");
            let note = gpu.gates_note().expect("it was found out");
            assert!(note.contains("inside the graph") && !note.contains('('), "{note}");
            assert!(gpu.gates_note().is_none());
            assert_eq!(gpu.splits_rows(), most >= Shared);
            let rank = gpu.exchange().expect("a rank").rank();
            for (turn, len) in lengths.iter().copied().enumerate() {
                let given = sum_of(&mut gpu, &part(rank, turn, len)).expect("the group is whole");
                assert!(given == Some(wanted(ranks, turn, len)), "{most:?}, {len}");
            }
            let counts = gpu.exchange().expect("a rank").counts();
            // Tries and a second piece of the longest go over the exchange where they are carried.
            let more = if most == Carried { 8 + 1 } else { 0 };
            assert_eq!(counts.of(GateKind::Ffn), lengths.len() as u64 + more);
        });
    }
}

#[test]
fn rows_of_processes_meet_in_windows() {
    [GateRoute::Peer, GateRoute::Shared].into_iter().for_each(rows_meet);
}

fn rows_meet(most: GateRoute) {
    let starts = [0, 20, 43];
    let all = on_all(2, |local| {
        let mut gpu = card(local, most, LONG);
        gpu.join_epoch().expect("all are there");
        let rank = gpu.exchange().expect("a rank").rank();
        let arena = gpu.arena();
        let buffer = gpu.alloc(arena, Element::F32, 43 * 5).expect("a small number");
        gpu.write_f32(buffer, 0, &part(rank, 0, 43 * 5)).expect("it fits");
        let rows = RowsOf { buffer, width: 5 };
        gpu.share_rows(GateKind::Ffn, &[rows], &starts).expect("the group is whole");
        let mut all = vec![0.0; 43 * 5];
        gpu.read_f32(buffer, 0, &mut all).expect("the group is whole");
        all
    });
    let first = &part(0, 0, 43 * 5)[..20 * 5];
    let second = &part(1, 0, 43 * 5)[20 * 5..];
    assert!(all.iter().all(|found| *found == [first, second].concat()));
}

/// A rank that wants less decides for all, and what nobody can do inside a graph the host does.
#[test]
fn all_go_the_way_of_the_one_that_can_least() {
    let routes = [GateRoute::Shared, GateRoute::Host];
    on_all(2, |local| {
        let most = routes[Exchange::rank(&local)];
        let mut gpu = card(local, most, LONG);
        gpu.join_epoch().expect("all are there");
        let note = gpu.gates_note().expect("it was found out");
        assert!(note.contains("stops every step"), "{note}");
        assert_eq!(note.contains("another rank"), most == GateRoute::Shared, "{note}");
        assert_eq!(sum_of(&mut gpu, &[1.0, 2.0]).expect("nothing is exchanged"), None);
    });
}

#[test]
fn a_processor_passes_the_gates_of_a_card() {
    for most in [GateRoute::Shared, GateRoute::Carried] {
        on_all(2, |local| {
            let rank = Exchange::rank(&local);
            if rank == 0 {
                // A processor has no card's memory to give.
                let mut gpu = card(local, GateRoute::Peer, LONG);
                gpu.join_epoch().expect("all are there");
                for (turn, len) in LENGTHS.into_iter().enumerate() {
                    let given = sum_of(&mut gpu, &part(0, turn, len)).expect("both are there");
                    assert!(given == Some(wanted(2, turn, len)), "{most:?}, {len}");
                }
                return;
            }
            let mut peer = GatePeer::join(Box::new(local), most, LONG).expect("both are there");
            assert_eq!(peer.route(), most);
            for (turn, len) in LENGTHS.into_iter().enumerate() {
                let mut mine = part(1, turn, len);
                peer.sum(GateKind::Ffn, &mut mine).expect("both are there");
                let bits: Vec<u32> = mine.iter().map(|value| value.to_bits()).collect();
                assert!(bits == wanted(2, turn, len), "{most:?}, {len}");
            }
        });
    }
}

/// A peer that damages a word, or says nothing, costs a gate its time and no more; the reason
/// names it.
#[test]
fn damaged_and_missing_parts_end_in_an_error() {
    for (most, damage) in
        [(GateRoute::Shared, true), (GateRoute::Shared, false), (GateRoute::Carried, false)]
    {
        let begun = Instant::now();
        let found = thread::scope(|scope| {
            // Who carries waits for the other rank as long as the group does.
            let limit = if most == GateRoute::Carried { Duration::from_secs(8) } else { LONG };
            let mut group = LocalGroup::whole(2, limit);
            let other = group.pop().expect("rank 1");
            let silent = scope.spawn(move || {
                let peer = GatePeer::join(Box::new(other), most, LONG).expect("both are there");
                if damage {
                    // The gate behind the tries, with a bit that its word does not prove.
                    let (sequence, epoch) = (peer.sequence() + 1, 0);
                    let slot = Slot { ranks: 2, from: 1, sequence, epoch, chunked: false };
                    slot.put(&peer.windows()[0], &[7; 12]);
                    let word = peer.windows()[0].word(slot.first_word());
                    word.fetch_xor(1 << 9, std::sync::atomic::Ordering::Relaxed);
                }
                peer
            });
            let mut gpu = card(group.remove(0), GateRoute::Shared, LONG);
            gpu.join_epoch().expect("both are there");
            gpu.gates.as_mut().expect("inside the graph").limit = SHORT;
            let _peer = silent.join().expect("no panic");
            let error = sum_of(&mut gpu, &[1.0, 2.0, 3.0]).expect_err("rank 1 says nothing good");
            let again = gpu.exchange().expect("a rank").post(GateKind::Ffn, &[]);
            assert!(again.is_err(), "the group is broken");
            error.to_string()
        });
        assert!(found.contains("rank 1 was silent"), "{most:?}: {found}");
        assert!(begun.elapsed() < LONG / 2);
    }
}

/// In a new epoch the ranks try anew, in new windows, and go on.
#[test]
fn a_new_epoch_has_windows_of_its_own() {
    for most in [GateRoute::Peer, GateRoute::Shared, GateRoute::Carried] {
        on_all(2, |local| {
            let mut gpu = card(local, most, LONG);
            gpu.join_epoch().expect("all are there");
            let rank = gpu.exchange().expect("a rank").rank();
            if rank == 1 {
                gpu.exchange().expect("a rank").abort("no memory");
            } else {
                let error = sum_of(&mut gpu, &part(0, 0, 300)).expect_err("rank 1 gave up");
                assert_eq!(error.to_string(), "rank 1 gave up: no memory");
            }
            gpu.exchange().expect("a rank").reform().expect("both come");
            // Windows of the epoch before are not used in this one.
            assert_eq!(sum_of(&mut gpu, &[1.0]).expect("nothing is exchanged"), None);
            gpu.join_epoch().expect("all are there");
            for turn in 1..4 {
                let given = sum_of(&mut gpu, &part(rank, turn, 300)).expect("whole again");
                assert!(given == Some(wanted(2, turn, 300)), "{most:?}");
            }
        });
    }
}

#[test]
fn gates_that_are_left_out_change_nothing() {
    let local = LocalGroup::whole(2, SHORT).remove(0);
    let gpu = Gpu::host(GpuConfig::default()).expect("a compiler");
    let mut gpu = gpu.with_exchange(Box::new(local)).with_gates_left_out();
    gpu.join_epoch().expect("nobody is asked");
    assert!(gpu.splits_rows());
    let bits = [1.5f32, 2.5].map(f32::to_bits).to_vec();
    assert_eq!(sum_of(&mut gpu, &[1.5, 2.5]).expect("nobody is asked"), Some(bits));
}

/// Memory of a process that is gone, of another size, or of somebody else is refused.
#[test]
fn windows_that_are_not_offered_are_refused() {
    let map = Map::new(4096).expect("a machine has some memory");
    let offer = map.offer();
    let open = |offer| Map::open(&offer, 4096).map(|_| ()).map_err(|error| error.to_string());
    open(offer).expect("the one that was offered");
    let error = open(super::super::map::Offer { nonce: !offer.nonce, ..offer });
    assert!(error.expect_err("another nonce").contains("no window"));
    let error = open(super::super::map::Offer { bytes: 8192, ..offer });
    assert!(error.expect_err("another size").contains("8192 bytes"));
    let error = open(super::super::map::Offer { process: u64::MAX, ..offer });
    assert!(error.expect_err("no process").contains("/proc/"));
    let path = std::env::temp_dir().join(format!("ironstar-no-window-{}", std::process::id()));
    let file = std::fs::File::create(&path).expect("a folder for passing files");
    file.set_len(4096).expect("a small file");
    let descriptor = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&file)).expect("it is open");
    let error = open(super::super::map::Offer { descriptor, ..offer });
    assert!(error.expect_err("it may be shortened").contains("/proc/"));
    std::fs::remove_file(path).expect("it is there");
    let mut wait = Wait::new(Duration::ZERO, &|| true);
    let slot = Slot { ranks: 2, from: 1, sequence: 1, epoch: 0, chunked: false };
    let whole = Map::new(bytes(2)).expect("a machine has some memory");
    assert!(!slot.take(&whole, &mut [0; 12], &mut wait), "nothing is there");
}
