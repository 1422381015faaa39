use super::*;

/// Every part runs once, whatever the numbers.
fn check(threads: usize, parts: usize) {
    let pool = Pool::new(threads);
    for _ in 0..50 {
        let counts: Vec<AtomicU32> = (0..parts).map(|_| AtomicU32::new(0)).collect();
        pool.run(parts, &|part| {
            counts[part].fetch_add(1, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn every_part_runs_once() {
    for threads in [1, 2, 3, 8] {
        for parts in [0, 1, 2, 3, 7, 64, 1000] {
            check(threads, parts);
        }
    }
}

#[test]
fn zero_threads_means_all_cores() {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(Pool::new(0).threads(), all);
}

#[test]
fn regions_after_a_sleep_wake_the_workers() {
    let pool = Pool::new(3);
    for _ in 0..5 {
        while pool.shared.sleepers.load(Ordering::SeqCst) < 2 {
            yield_now();
        }
        // Each part waits for the other two, so all three threads must come.
        let arrived = AtomicU32::new(0);
        pool.run(3, &|_| {
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < 3 {
                yield_now();
            }
        });
    }
}

#[test]
fn a_panic_arrives_after_all_parts_and_the_pool_lives() {
    for threads in [1, 3] {
        let pool = Pool::new(threads);
        for _ in 0..20 {
            let ran = AtomicU32::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(16, &|part| {
                    ran.fetch_add(1, Ordering::Relaxed);
                    assert!(part % 5 != 1, "part {part} fails");
                });
            }));
            let message = *result.expect_err("parts fail").downcast::<String>().expect("a text");
            assert!(message.ends_with("fails"), "{message}");
            assert_eq!(ran.load(Ordering::Relaxed), 16);
        }
        pool.run(4, &|_| {});
    }
}

#[test]
fn a_region_inside_a_part_runs_there() {
    let pool = Pool::new(4);
    let sum = AtomicUsize::new(0);
    pool.run(8, &|outer| {
        pool.run(8, &|inner| {
            sum.fetch_add(outer * 8 + inner, Ordering::Relaxed);
        });
    });
    assert_eq!(sum.load(Ordering::Relaxed), 63 * 64 / 2);
}

#[test]
fn callers_on_several_threads_do_not_mix() {
    let pool = Pool::new(2);
    std::thread::scope(|scope| {
        for caller in 0..3usize {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..500 {
                    let sum = AtomicUsize::new(0);
                    pool.run(5, &|part| {
                        sum.fetch_add(caller * 1000 + round + part, Ordering::Relaxed);
                    });
                    assert_eq!(sum.load(Ordering::Relaxed), 5 * (caller * 1000 + round) + 10);
                }
            });
        }
    });
}

#[test]
fn a_stage_begins_when_those_before_have_ended() {
    const SIZES: [usize; 4] = [7, 1, 0, 5];
    for threads in [1, 2, 4] {
        let pool = Pool::new(threads);
        for alone in [false, true] {
            for _ in 0..100 {
                let ended = [const { AtomicUsize::new(0) }; 4];
                let part = |stage: usize, part: usize| {
                    assert!(part < SIZES[stage]);
                    for before in 0..stage {
                        assert_eq!(ended[before].load(Ordering::SeqCst), SIZES[before]);
                    }
                    ended[stage].fetch_add(1, Ordering::SeqCst);
                };
                pool.run_stages(
                    alone,
                    &[
                        (SIZES[0], &|at| part(0, at)),
                        (SIZES[1], &|at| part(1, at)),
                        (SIZES[2], &|at| part(2, at)),
                        (SIZES[3], &|at| part(3, at)),
                    ],
                );
                assert_eq!(ended.map(AtomicUsize::into_inner), SIZES);
            }
        }
        let failed = catch_unwind(AssertUnwindSafe(|| {
            pool.run_stages(false, &[(3, &|at| assert!(at != 1, "part 1")), (2, &|_| {})]);
        }));
        assert!(failed.is_err(), "{threads} threads");
        pool.run_stages(false, &[(3, &|_| {}), (2, &|_| {})]);
    }
}
