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
