use super::super::host::Memory;
use super::window::bytes;
use super::*;
use crate::{Backend, Element, GpuConfig, Local, LocalGroup, RowsOf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

/// Long enough for a busy machine.
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(40);

fn gpu(local: Local) -> Gpu {
    Gpu::host(GpuConfig::default()).expect("a compiler").with_exchange(Box::new(local))
}

/// Runs a closure on each rank of a group, with gates that were tried.
fn on_all<T: Send>(ranks: usize, limit: Duration, work: impl Fn(Gpu) -> T + Sync) -> Vec<T> {
    let peers = Peers::host(ranks);
    let group = LocalGroup::whole(ranks, LONG);
    thread::scope(|scope| {
        let (peers, work) = (&peers, &work);
        let threads: Vec<_> = group
            .into_iter()
            .map(|local| {
                scope.spawn(move || {
                    let (gpu, refused) =
                        gpu(local).with_peers(peers, limit).expect("all are there");
                    assert_eq!(refused, None);
                    work(gpu)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn part(rank: usize, turn: usize, len: usize) -> Vec<f32> {
    let value =
        |at: usize| f32::from_bits(0x3f00_0000 + u32::try_from(at * 7919).expect("few of them"));
    (0..len).map(|at| value(at) * (rank + 3 * turn + 1) as f32 * 0.3).collect()
}

fn sum_of(gpu: &mut Gpu, gate: GateKind, mine: &[f32]) -> Result<Vec<u32>, Error> {
    let arena = gpu.arena();
    let buffer = gpu.alloc(arena, Element::F32, mine.len()).expect("a small number");
    gpu.write_f32(buffer, 0, mine)?;
    let given = gpu.sum_ranks(gate, buffer, mine.len()).and_then(|done| {
        assert!(done);
        let mut all = vec![0.0; mine.len()];
        gpu.read_f32(buffer, 0, &mut all)?;
        Ok(all.iter().map(|v| v.to_bits()).collect())
    });
    gpu.release(arena);
    given
}

#[test]
fn sums_of_all_ranks_are_the_tree_of_their_parts() {
    for (ranks, lens) in
        [(2, &[1, 5, 4096, CHUNKS_MIN, 64, 3 * UNITS + 2, 3][..]), (4, &[700, 2]), (8, &[301])]
    {
        let all = on_all(ranks, LONG, |mut gpu| {
            let rank = gpu.exchange().expect("a rank").rank();
            let mut given = Vec::new();
            for (turn, len) in lens.iter().copied().enumerate() {
                given.push(
                    sum_of(&mut gpu, GateKind::Ffn, &part(rank, turn, len))
                        .expect("the group is whole"),
                );
            }
            let counts = gpu.exchange().expect("a rank").counts();
            (given, counts.of(GateKind::Ffn), gpu.gate_times().expect("the card is alive").len())
        });
        for (given, gates, times) in all {
            // One of the lengths is longer than the words of a gate.
            let pieces = lens.iter().filter(|len| **len == 3 * UNITS + 2).count();
            assert_eq!((gates, times), (lens.len() as u64, TRIES + lens.len() + pieces));
            for (turn, (given, len)) in given.iter().zip(lens.iter().copied()).enumerate() {
                let parts: Vec<_> = (0..ranks).map(|rank| part(rank, turn, len)).collect();
                for (at, bits) in given.iter().enumerate() {
                    let own: Vec<f32> = parts.iter().map(|part| part[at]).collect();
                    let wanted = ironstar_quant::subtree(&own).to_bits();
                    assert_eq!(*bits, wanted, "{at} of {len}, {ranks} ranks");
                }
            }
        }
    }
}

/// A buffer of a rank's numbers, `[rows, width]`.
fn rows_of(gpu: &mut Gpu, element: Element, [rows, width]: [usize; 2], seed: usize) -> RowsOf {
    let arena = gpu.arena();
    let buffer = gpu.alloc(arena, element, rows * width).expect("a small number");
    let bytes = element.bytes() * rows * width;
    let bytes: Vec<u8> =
        (0..bytes).map(|at| ((at * 7 + seed * 31 + at / 251) % 127).to_le_bytes()[0]).collect();
    gpu.write(buffer, 0, &bytes).expect("it fits");
    RowsOf { buffer, width }
}

fn bytes_of_rows(gpu: &mut Gpu, rows: RowsOf) -> Vec<u8> {
    let mut bytes = vec![0; rows.buffer.len * rows.buffer.element.bytes()];
    gpu.read(rows.buffer, 0, &mut bytes).expect("the group is whole");
    bytes
}

#[test]
fn rows_of_all_ranks_meet() {
    let kinds = [
        (Element::F32, 5),
        (Element::Bf16, 2),
        (Element::U32, 3),
        (Element::F32, 700),
        (Element::F32, 1),
        (Element::Bf16, 64),
        (Element::F32, 2),
    ];
    for (ranks, starts) in [(2, &[0, 20, 43][..]), (4, &[0, 8, 20, 28, 37])] {
        let rows = starts[ranks];
        let all = on_all(ranks, LONG, |mut gpu| {
            let rank = gpu.exchange().expect("a rank").rank();
            let mine: Vec<RowsOf> = kinds
                .iter()
                .map(|(element, width)| rows_of(&mut gpu, *element, [rows, *width], rank))
                .collect();
            let before: Vec<_> = mine.iter().map(|own| bytes_of_rows(&mut gpu, *own)).collect();
            gpu.sum_rows(GateKind::Ffn, mine[3], starts).expect("the group is whole");
            let sums = bytes_of_rows(&mut gpu, mine[3]);
            gpu.write(mine[3].buffer, 0, &before[3]).expect("it fits");
            gpu.share_rows(GateKind::Ffn, &mine, starts).expect("the group is whole");
            let after: Vec<_> = mine.iter().map(|own| bytes_of_rows(&mut gpu, *own)).collect();
            (before, sums, after)
        });
        for (rank, (_, sums, after)) in all.iter().enumerate() {
            for (at, (element, width)) in kinds.iter().enumerate() {
                let row = width * element.bytes();
                for (owner, range) in starts.windows(2).enumerate() {
                    let range = range[0] * row..range[1] * row;
                    let wanted = &all[owner].0[at][range.clone()];
                    assert!(after[at][range] == *wanted, "{element:?} {width}, rank {rank}");
                }
            }
            let words = |bytes: &[u8], at: usize| f32::from_le_bytes(bytes.as_chunks::<4>().0[at]);
            for at in starts[rank] * 700..starts[rank + 1] * 700 {
                let parts: Vec<f32> = all.iter().map(|rank| words(&rank.0[3], at)).collect();
                let wanted = ironstar_quant::subtree(&parts);
                assert_eq!(words(sums, at).to_bits(), wanted.to_bits(), "{at}, rank {rank}");
            }
        }
    }
}

#[test]
fn ranges_of_rows_that_cannot_be_are_refused() {
    let reasons = on_all(2, LONG, |mut gpu| {
        let rows = rows_of(&mut gpu, Element::F32, [40, 4], 0);
        let mut refused = |rows: RowsOf, starts: &[usize]| {
            gpu.share_rows(GateKind::Ffn, &[rows], starts).expect_err("cannot be").to_string()
        };
        let odd = RowsOf { width: 0, ..rows };
        [
            refused(rows, &[0, 18, 40]),
            refused(rows, &[0, 4, 40]),
            refused(rows, &[0, 40]),
            refused(rows, &[0, 20, 48]),
            refused(odd, &[0, 20, 40]),
        ]
    });
    for text in &reasons[0] {
        assert!(text.contains("share_rows"), "{text}");
    }
}

/// A rank 0 whose peer is this test, by the words that it puts into the window.
struct Half {
    gpu: Gpu,
    window: Arc<Memory>,
    _other: Local,
}

fn half() -> Half {
    let windows = [(); 2].map(|()| Arc::new(Memory::new(bytes(2))));
    let window = windows[0].clone();
    let windows = windows.map(|window| window as Arc<dyn Window>);
    let mut group = LocalGroup::whole(2, LONG);
    let _other = group.pop().expect("rank 1");
    let mut gpu = gpu(group.remove(0));
    gpu.join(&Peers::of(windows.into()), SHORT).expect("rank 0 of 2");
    Half { gpu, window, _other }
}

/// The key of a gate and a tagged word, as `gates.k` has them.
fn key(sequence: u32, epoch: u32) -> u32 {
    sequence.wrapping_mul(0x9e37_79b1) ^ (epoch + 1).wrapping_mul(0x85eb_ca6b)
}

fn tagged(key: u32, words: [u32; 3]) -> [u32; 4] {
    let [x, y, z] = words;
    [x, y, z, key ^ x ^ y.rotate_left(11) ^ z.rotate_left(22)]
}

fn put(window: &Memory, at: usize, words: [u32; 4]) {
    for (index, word) in words.into_iter().enumerate() {
        window.word(at / 4 + index).store(word, Ordering::Relaxed);
    }
}

/// Where rank 1's words and chunks of gate 1 lie in rank 0's window.
fn place(unit: usize) -> usize {
    HEAD + (2 + 1) * 16 * UNITS + 16 * unit
}

fn chunk_place() -> [usize; 2] {
    let flags = HEAD + 4 * 16 * UNITS;
    let chunks = flags + 4 * 16 * CHUNKS;
    [flags + 3 * 16 * CHUNKS, chunks + 3 * 4 * CHUNKS * CHUNK]
}

const MINE: [f32; 3] = [1.0, 2.0, 3.0];
const THEIRS: [u32; 3] = [0x3f80_0000, 0x4000_0000, 0x4040_0000];

#[test]
fn words_that_do_not_prove_themselves_are_not_taken() {
    let good = tagged(key(1, 0), THEIRS);
    let [x, y, z, w] = good;
    let spoilt = [
        [x ^ 1, y, z, w],
        [x, y ^ 1 << 31, z, w],
        [x, y, z ^ 4, w],
        [y, x, z, w],
        [x, y, z, w ^ 1 << 13],
        tagged(key(3, 0), THEIRS),
        tagged(key(1, 1), THEIRS),
        [0; 4],
    ];
    for words in spoilt {
        let mut half = half();
        put(&half.window, place(0), words);
        let error = sum_of(&mut half.gpu, GateKind::Attention, &MINE).expect_err("not proven");
        let late = ExchangeError::Late { rank: 1, waited_ms: 40, gate: "attention" };
        assert!(matches!(&error, Error::Exchange(found) if *found == late), "{error}");
        // What follows in the same epoch fails at once, and says the first reason.
        let begun = Instant::now();
        let error = half.gpu.exchange().expect("a rank").post(GateKind::Ffn, &[]);
        assert!(error.is_err() && begun.elapsed() < LONG);
    }
    let mut half = half();
    half.gpu.gates.as_mut().expect("it has joined").limit = LONG;
    put(&half.window, place(0), good);
    let given = sum_of(&mut half.gpu, GateKind::Attention, &MINE).expect("it proves itself");
    assert_eq!(given, [2.0f32, 4.0, 6.0].map(f32::to_bits));
}

/// A chunk of ones and its flag.
fn chunk(window: &Memory, spoil: Option<usize>) -> u32 {
    let [_, chunks] = chunk_place();
    let one = 1.0f32.to_bits();
    let mut sum = 0u32;
    for at in 0..CHUNK {
        let (unit, k) = (at / 4, at % 4);
        let factor = u32::try_from(8 * unit + 2 * k + 1).expect("a small number");
        sum = sum.wrapping_add(one.wrapping_mul(factor));
        let word = if spoil == Some(at) { one ^ 1 } else { one };
        window.word(chunks / 4 + at).store(word, Ordering::Relaxed);
    }
    sum
}

#[test]
fn a_chunk_is_taken_when_it_is_what_its_flag_says() {
    // The kernel for chunks is asked for by length; the others of the sum are right.
    let all = |window: &Memory, spoil: Option<usize>| {
        let [flags, chunks] = chunk_place();
        let sum = chunk(window, None);
        for c in 0..CHUNKS_MIN / CHUNK {
            for at in 0..CHUNK {
                let word = 1.0f32.to_bits() ^ u32::from(spoil == Some(c * CHUNK + at));
                window.word(chunks / 4 + c * CHUNK + at).store(word, Ordering::Relaxed);
            }
            let c_word = u32::try_from(c).expect("few of them");
            let units = u32::try_from(CHUNK / 4).expect("a small number");
            put(window, flags + 16 * c, tagged(key(1, 0), [sum, c_word, units]));
        }
    };
    let mine = vec![0.5; CHUNKS_MIN];
    for spoil in [Some(0), Some(CHUNK + 77), Some(CHUNKS_MIN - 1), None] {
        let mut half = half();
        if spoil.is_none() {
            half.gpu.gates.as_mut().expect("it has joined").limit = LONG;
        }
        all(&half.window, spoil);
        let given = sum_of(&mut half.gpu, GateKind::Ffn, &mine);
        match spoil {
            Some(_) => {
                let error = given.expect_err("damaged").to_string();
                assert!(error.contains("rank 1 was silent for 40 ms"), "{error}");
            }
            None => {
                assert!(given.expect("the group is whole").iter().all(|v| *v == 1.5f32.to_bits()))
            }
        }
    }
    // Damaged at first, and right before time is up: late payloads are waited for.
    let mut half = half();
    half.gpu.gates.as_mut().expect("it has joined").limit = LONG;
    all(&half.window, Some(CHUNK));
    let window = half.window.clone();
    let mend = thread::spawn(move || {
        thread::sleep(SHORT);
        let [_, chunks] = chunk_place();
        window.word(chunks / 4 + CHUNK).store(1.0f32.to_bits(), Ordering::Relaxed);
    });
    let given = sum_of(&mut half.gpu, GateKind::Ffn, &mine).expect("right at last");
    assert!(given.iter().all(|v| *v == 1.5f32.to_bits()));
    mend.join().expect("no panic");
}

/// A rank that gives up, or is gone, ends the others' waiting long before its limit, and they say
/// its reason; in the next epoch gates work again.
#[test]
fn who_gives_up_is_heard_inside_a_kernel() {
    let begun = Instant::now();
    let all = on_all(2, LONG, |mut gpu| {
        let exchange = gpu.exchange().expect("a rank");
        let rank = exchange.rank();
        let mine = part(rank, 0, 300);
        let reason = if rank == 1 {
            exchange.abort("no memory");
            String::new()
        } else {
            sum_of(&mut gpu, GateKind::Ffn, &mine).expect_err("rank 1 gave up").to_string()
        };
        let exchange = gpu.exchange().expect("a rank");
        assert_eq!(exchange.reform(), Ok(1));
        let whole = sum_of(&mut gpu, GateKind::Ffn, &mine).expect("whole again");
        // Shared rows are gates like others.
        let rows = rows_of(&mut gpu, Element::F32, [16, 40], rank);
        let shared = if rank == 1 {
            gpu.exchange().expect("a rank").abort("no more memory");
            String::new()
        } else {
            gpu.share_rows(GateKind::Ffn, &[rows], &[0, 8, 16])
                .expect("a gate is recorded before it is run");
            gpu.finish().expect_err("rank 1 gave up").to_string()
        };
        (reason, whole, shared)
    });
    assert!(begun.elapsed() < LONG / 2);
    assert_eq!(all[0].0, "rank 1 gave up: no memory");
    assert_eq!(all[0].1, all[1].1);
    assert_eq!(all[0].2, "rank 1 gave up: no more memory");
    let lost = on_all(2, LONG, |mut gpu| {
        let rank = gpu.exchange().expect("a rank").rank();
        (rank == 0).then(|| sum_of(&mut gpu, GateKind::Ffn, &[1.0; 64]).map_err(|e| e.to_string()))
    });
    let error = lost[0].as_ref().expect("rank 0").as_ref().expect_err("rank 1 is gone");
    assert!(error.contains("rank 1 is lost"), "{error}");
}

#[test]
fn a_rank_of_another_group_is_refused() {
    let mut group = LocalGroup::whole(2, LONG);
    let gpu = gpu(group.remove(0));
    let error = gpu.with_peers(&Peers::host(4), SHORT).map(|_| ()).expect_err("four windows");
    assert!(error.to_string().contains("a rank of 2"), "{error}");
}
