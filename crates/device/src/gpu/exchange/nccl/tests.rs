//! Sums by a library that behaves like NVIDIA's (`tests/fake/nccl.cpp`), ranks on threads.

use super::super::super::host::compiled;
use super::*;
use crate::{Backend, Element, GpuConfig, LocalGroup};
use std::path::PathBuf;
use std::thread;

/// Long enough for a busy machine.
const LONG: Duration = Duration::from_secs(600);

fn library() -> PathBuf {
    compiled(include_str!("../../../../tests/fake/nccl.cpp")).expect("a compiler")
}

/// Runs a closure on each rank of a group whose sums go by the library.
fn on_all<T: Send>(ranks: usize, work: impl Fn(&mut Gpu) -> T + Sync) -> Vec<T> {
    let nccl = Nccl::load(Some(&library()), ranks).expect("it was just compiled");
    thread::scope(|scope| {
        let (nccl, work) = (&nccl, &work);
        let start = |local| {
            scope.spawn(move || {
                let gpu = Gpu::host(GpuConfig::default()).expect("a compiler");
                let gpu = gpu.with_exchange(Box::new(local)).with_nccl(nccl, LONG);
                let (mut gpu, refused) = gpu.expect("all are there");
                assert_eq!(refused, None);
                let given = work(&mut gpu);
                // Who leaves ends what the others have not looked at.
                let exchange = gpu.exchange().expect("a rank");
                exchange.gather(GateKind::Status, &[1], &mut vec![0; ranks]).expect("all end");
                given
            })
        };
        let threads: Vec<_> = LocalGroup::whole(ranks, LONG).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn part(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|at| (at as f32 * 1.7 - 40.0) * (rank + 1) as f32 * 0.3).collect()
}

fn sum_of(gpu: &mut Gpu, mine: &[f32]) -> Result<Vec<u32>, Error> {
    let arena = gpu.arena();
    let buffer = gpu.alloc(arena, Element::F32, mine.len()).expect("a small number");
    gpu.write_f32(buffer, 0, mine)?;
    let mut all = vec![0.0; mine.len()];
    let given = gpu.sum_ranks(GateKind::Ffn, buffer, mine.len());
    let given = given.and_then(|done| {
        assert!(done);
        gpu.read_f32(buffer, 0, &mut all)
    });
    gpu.release(arena);
    given.map(|()| all.iter().map(|value| value.to_bits()).collect())
}

#[test]
fn gathered_parts_are_added_by_the_tree() {
    for ranks in [2, 4, 8] {
        let all = on_all(ranks, |gpu| {
            let rank = gpu.exchange().expect("a rank").rank();
            assert!(!gpu.splits_rows(), "rows go whole");
            let sums = [1, 700, 4096].map(|len| sum_of(gpu, &part(rank, len)));
            let counts = gpu.exchange().expect("a rank").counts();
            (sums.map(|sum| sum.expect("the group is whole")), counts.of(GateKind::Ffn))
        });
        for (sums, gates) in all {
            assert_eq!(gates, 3);
            for sum in sums {
                let parts: Vec<_> = (0..ranks).map(|rank| part(rank, sum.len())).collect();
                for (at, bits) in sum.iter().enumerate() {
                    let own: Vec<f32> = parts.iter().map(|part| part[at]).collect();
                    let wanted = ironstar_quant::subtree(&own).to_bits();
                    assert_eq!(*bits, wanted, "{at} of {}, {ranks} ranks", sum.len());
                }
            }
        }
    }
}

/// A rank that gives up ends the others' waiting inside the library; the next epoch has
/// communicators of its own.
#[test]
fn who_gives_up_ends_the_gathers_of_the_others() {
    let all = on_all(2, |gpu| {
        let exchange = gpu.exchange().expect("a rank");
        let rank = exchange.rank();
        if rank == 1 {
            exchange.abort("no memory");
        } else {
            let begun = Instant::now();
            sum_of(gpu, &part(0, 300)).expect_err("rank 1 gave up");
            assert!(begun.elapsed() < LONG / 4, "{:?}", begun.elapsed());
        }
        let exchange = gpu.exchange().expect("a rank");
        assert_eq!(exchange.reform(), Ok(1));
        sum_of(gpu, &part(rank, 300)).expect("whole again")
    });
    assert_eq!(all[0], all[1]);
}

/// The library ends a communicator only when the graphs that were recorded with it are gone, which
/// belong to another thread: whoever gives up does not wait for that, and the next epoch's first
/// call drops them.
#[test]
fn nobody_waits_for_a_communicator_that_graphs_keep() {
    // SAFETY: loading it runs no code of its own.
    let fake = unsafe { Library::new(library()) }.expect("it was just compiled");
    // SAFETY: the types are those of the fake.
    let ending: libloading::Symbol<'_, unsafe extern "C" fn() -> c_int> =
        unsafe { fake.get(b"fakeEnding\0") }.expect("the fake has it");
    // SAFETY: as above.
    let let_go: libloading::Symbol<'_, unsafe extern "C" fn()> =
        unsafe { fake.get(b"fakeLetGo\0") }.expect("the fake has it");
    let all = on_all(2, |gpu| {
        let exchange = gpu.exchange().expect("a rank");
        let rank = exchange.rank();
        sum_of(gpu, &part(rank, 317)).expect("whole, and recorded for the library");
        let remembered = gpu.recorder.remembers();
        assert!(remembered > 0, "the sum's launches");
        let exchange = gpu.exchange().expect("a rank");
        match rank {
            1 => exchange.abort("no memory"),
            _ => {
                sum_of(gpu, &part(0, 300)).expect_err("rank 1 gave up");
            }
        }
        assert_eq!(gpu.exchange().expect("a rank").reform(), Ok(1));
        let sum = sum_of(gpu, &part(rank, 300)).expect("whole again");
        assert_eq!(gpu.recorder.remembers(), remembered, "launches of the last epoch are gone");
        let begun = Instant::now();
        // SAFETY: it takes nothing.
        while unsafe { ending() } < 2 && begun.elapsed() < LONG {
            thread::yield_now();
        }
        // SAFETY: as above.
        assert_eq!(unsafe { ending() }, 2, "both are still in the library");
        sum
    });
    // SAFETY: as above.
    unsafe { let_go() };
    assert_eq!(all[0], all[1]);
}

/// A rank that lives but does not come: whoever waits for it ends that by itself, says so, and the
/// group goes on in the next epoch.
#[test]
fn a_rank_that_is_stuck_is_not_waited_for_without_limit() {
    let (seen, come) = std::sync::mpsc::channel();
    let (seen, come) = (Mutex::new(Some(seen)), Mutex::new(come));
    let all = on_all(2, |gpu| {
        let rank = gpu.exchange().expect("a rank").rank();
        if rank == 1 {
            // Stuck until rank 0 has given up.
            let come = come.lock().unwrap_or_else(PoisonError::into_inner);
            come.recv().expect("rank 0 ends");
        } else {
            // Its sender ends with it, so that a panic here ends the other rank too.
            let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
            let waits = gpu.nccl.as_ref().expect("by the library").waits.clone();
            *waits.limit() = Duration::from_millis(50);
            let error = sum_of(gpu, &part(0, 300)).expect_err("rank 1 does not come");
            *waits.limit() = LONG;
            let text = error.to_string();
            assert!(text.contains("another rank lives but is stuck"), "{text}");
            let exchange = gpu.exchange().expect("a rank");
            exchange.abort(&text);
            seen.expect("one rank 0").send(()).expect("rank 1 waits");
        }
        let exchange = gpu.exchange().expect("a rank");
        assert_eq!(exchange.reform(), Ok(1));
        sum_of(gpu, &part(rank, 300)).expect("whole again")
    });
    assert_eq!(all[0], all[1]);
}

/// The same while a group is made, where there is nothing yet that could be ended.
#[test]
fn a_rank_that_does_not_join_is_not_waited_for_without_limit() {
    use super::super::super::driver::Open;
    let nccl = Nccl::load(Some(&library()), 2).expect("it was just compiled");
    let join = |rank, id, limit| nccl.open(Part { rank, ranks: 2 }, id, (Box::new(Open), limit));
    let id = nccl.id().expect("a number");
    let error = join(0, id, Duration::from_millis(20)).expect_err("alone").to_string();
    assert!(error.contains("joining a group") && error.contains("rank 0"), "{error}");
    assert!(matches!(*nccl.seat(0), Seat::Empty));
    // Whoever comes late finds the thread that was left behind, which gives its place back.
    join(1, id, LONG).expect("the library has both");
    nccl.end(1, None);
    let id = nccl.id().expect("a number");
    thread::scope(|scope| {
        let both = [0, 1].map(|rank| scope.spawn(move || join(rank, id, LONG)));
        both.into_iter().for_each(|one| one.join().expect("no panic").expect("both are there"));
    });
}

#[test]
fn a_library_that_is_not_there_is_named() {
    let error = Nccl::load(Some(Path::new("/no/such/libnccl.so.2")), 2).map(|_| ());
    let error = error.expect_err("no such file").to_string();
    assert!(error.contains("transport nccl") && error.contains("--transport peer"), "{error}");
}
