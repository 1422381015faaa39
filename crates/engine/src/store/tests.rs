//! The store on synthetic payloads: what it shares, what it lets go, and what it survives.
#![expect(clippy::unwrap_used, reason = "a failed lookup fails the test")]

use super::sim::{Faults, Rot, SimDisk};
use super::*;
use std::collections::BTreeMap;
use std::time::Duration;

const BLOCK: usize = 1000;
const RINGS: usize = 5000;

fn key() -> Key {
    Key::new(&[b"model"])
}

fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0u32..).take(count).map(|i| i.wrapping_mul(2_654_435_761) ^ seed).collect()
}

/// Bytes that only these tokens have.
fn payload(tokens: &[u32], len: usize) -> Vec<u8> {
    let sum = tokens.iter().fold(7_u32, |s, t| s.wrapping_mul(31).wrapping_add(*t));
    sum.to_le_bytes().into_iter().cycle().take(len).collect()
}

fn put(store: &mut Store, tokens: &[u32]) -> Receipt {
    let blocks = store.missing(tokens).into_iter();
    let blocks = blocks.map(|b| (b, payload(&tokens[..(b + 1) * BLOCK_TOKENS], BLOCK))).collect();
    let text = Some(Text::new(store.key(), &said(tokens)));
    store.insert(
        tokens,
        blocks,
        Checkpoint { bytes: payload(tokens, RINGS), has_logits: false, text },
    )
}

/// What tokens say here: the same for two that differ in the last bit only.
fn said(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| (token | 1).to_le_bytes()).collect()
}

/// The position of the best, when all its parts are what they should be.
fn get(store: &mut Store, wanted: &[u32]) -> Option<usize> {
    for _ in 0..100 {
        let found = store.find(wanted, wanted.len())?;
        let mut next = 0;
        let loaded = store.load(&found, wanted, 0, &mut |part| {
            match part {
                Loaded::Block(block, bytes) => {
                    assert_eq!(block, next);
                    next += 1;
                    assert!(
                        bytes == payload(&wanted[..next * BLOCK_TOKENS], BLOCK),
                        "block {block}"
                    );
                }
                Loaded::Checkpoint(bytes) => {
                    assert!(bytes == payload(&wanted[..found.position()], RINGS), "checkpoint");
                }
            }
            Ok::<(), ()>(())
        });
        match loaded {
            Ok(()) => return Some(found.position()),
            Err(LoadError::Lost) => {}
            Err(LoadError::Sink(())) => unreachable!("the sink asserts"),
        }
    }
    panic!("it finds what it cannot load, again and again");
}

fn disk_store(disk: &SimDisk, settings: Settings) -> Store {
    Store::new(key(), settings).with_disk(Arc::new(disk.clone()), Writing::OnFlush)
}

fn only_disk() -> Settings {
    Settings { ram_bytes: 0, ..Settings::default() }
}

#[test]
fn the_furthest_that_serves_is_found() {
    let mut store = Store::new(key(), Settings::default());
    let all = tokens(1, 1000);
    for end in [100, 300, 640, 700] {
        put(&mut store, &all[..end]);
    }
    let bytes = payload(&all[..300], RINGS);
    store.insert(&all[..300], vec![], Checkpoint { has_logits: true, ..Checkpoint::plain(bytes) });
    let mut best = |tokens: &[u32], most: usize| {
        store.find(tokens, most).map(|f| (f.position(), f.has_logits()))
    };
    assert_eq!(best(&all, 1000), Some((700, false)));
    assert_eq!(best(&all, 699), Some((640, false)));
    assert_eq!(best(&all[..700], 700), Some((640, false)), "one token must be left, or logits");
    assert_eq!(best(&all[..300], 300), Some((300, true)));
    assert_eq!(best(&all[..299], 299), Some((100, false)));
    assert_eq!(best(&all[..100], 100), None);
    assert_eq!(best(&[], 0), None);
    let mut other = all.clone();
    other[299] ^= 1;
    assert_eq!(best(&other, 1000), Some((100, false)), "another token in the tail");
    other[20] ^= 1;
    assert_eq!(best(&other, 1000), None);
    assert_eq!(store.nearest(&all[..100]), 100);
    let mut other = Store::new(Key::new(&[b"mod", b"el"]), Settings::default());
    put(&mut other, &all);
    assert_ne!(other.key(), store.key(), "where parts of a key end matters");
}

#[test]
fn tokens_are_found_by_what_they_say() {
    let disk = SimDisk::new(10);
    let mut store = disk_store(&disk, Settings::default());
    let all = tokens(1, 1000);
    let other: Vec<u32> = all.iter().map(|token| token ^ 1).collect();
    for end in [100, 300, 640] {
        put(&mut store, &all[..end]);
    }
    store.flush();
    let mut by_disk = disk_store(&disk, only_disk());
    for store in [&mut store, &mut by_disk] {
        assert_eq!(store.find(&other, 1000).map(|found| found.position()), None);
        let mut known =
            |end: usize, least: usize| store.tokens_of_text(&said(&other[..end]), least);
        assert_eq!(known(1000, 0).as_deref(), Some(&all[..640]));
        assert_eq!(known(640, 639 * 4).as_deref(), Some(&all[..640]));
        assert_eq!(known(640, 640 * 4), None, "no gain");
        assert_eq!(known(639, 0).as_deref(), Some(&all[..300]));
        assert_eq!(known(99, 0), None);
        assert_eq!(known(0, 0), None);
        let mut text = said(&other);
        text[0] ^= 2;
        assert_eq!(store.tokens_of_text(&text, 0), None, "another text");
    }
    // Another model's states are not known, whatever they say.
    let mut foreign = Store::new(Key::new(&[b"another"]), only_disk())
        .with_disk(Arc::new(disk.clone()), Writing::OnFlush);
    assert_eq!(foreign.tokens_of_text(&said(&all), 0), None);
    // A way with a wrong or a missing part is none; what lies before it still serves.
    let block = disk.names().into_iter().filter_map(|n| Name::parse(&n)).collect::<Vec<_>>();
    let fourth = block.iter().find(|n| n.position == 512 && n.kind == Kind::Block).unwrap();
    disk.rot(&fourth.path(), Rot::Gone);
    assert_eq!(by_disk.tokens_of_text(&said(&other), 0).as_deref(), Some(&all[..300]));
    let end = block.iter().find(|n| n.position == 300).unwrap();
    let mut bytes = disk.read(&end.path(), u64::MAX).unwrap();
    bytes[115] ^= 1;
    disk.put(&end.path(), bytes);
    assert_eq!(by_disk.tokens_of_text(&said(&other), 0).as_deref(), Some(&all[..100]));
    for seed in 0..20 {
        for name in disk.names() {
            disk.rot(&name, [Rot::Flip, Rot::Cut, Rot::Swap][seed % 3]);
        }
        if let Some(found) = by_disk.tokens_of_text(&said(&other), 0) {
            assert!(all.starts_with(&found), "tokens that were never stored");
        }
    }
}

#[test]
fn a_folder_has_one_limit_for_all_models_and_writers() {
    let disk = SimDisk::new(11);
    let settings = Settings { disk_bytes: 120_000, ..only_disk() };
    let open = |model: &[u8]| {
        let store = Store::new(Key::new(&[model]), settings);
        store.with_disk(Arc::new(disk.clone()), Writing::OnFlush)
    };
    let (mut a, mut b) = (open(b"model a"), open(b"model b"));
    let popular = tokens(0, 700);
    let wanted = [&popular[..], &[5]].concat();
    put(&mut a, &popular);
    a.flush();
    for round in 1..60 {
        disk.set_now(Duration::from_secs(u64::from(round) * 60));
        put(&mut b, &tokens(round, 400));
        b.flush();
        assert!(disk.bytes() <= 120_000, "round {round}: {} bytes", disk.bytes());
        if round % 4 == 0 {
            // The other process sees the use, and that what it wrote itself is worth less.
            assert_eq!(get(&mut a, &wanted), Some(700), "round {round}");
        }
        assert_eq!(get(&mut b, &[&tokens(round, 400)[..], &[5]].concat()), Some(400));
    }
    assert!(disk.bytes() > 90_000, "the room is used");
    let _asks_for_a_look = a.find(&wanted, 0);
    a.flush();
    assert_eq!(a.status().disk_bytes, disk.bytes(), "of all models");
    // Of no use for long: its room is given to another model.
    for round in 60..200 {
        disk.set_now(Duration::from_secs(u64::from(round) * 60));
        put(&mut b, &tokens(round, 400));
        b.flush();
        get(&mut b, &[&tokens(round, 400)[..], &[5]].concat());
    }
    assert_eq!(get(&mut a, &wanted), None);
    assert!(a.status().problems.is_empty() && b.status().problems.is_empty());
    // A later start with a smaller limit makes room at once, whatever model it is for.
    let small = Settings { disk_bytes: 50_000, ..settings };
    drop(Store::new(key(), small).with_disk(Arc::new(disk.clone()), Writing::OnFlush));
    assert!(disk.bytes() <= 50_000, "{}", disk.bytes());
}

#[test]
fn ten_branches_of_a_long_prefix_store_it_once() {
    let disk = SimDisk::new(1);
    let mut store = disk_store(&disk, Settings::default());
    let prefix = tokens(1, 50_000);
    put(&mut store, &prefix);
    for branch in 0..10 {
        put(&mut store, &[&prefix[..], &tokens(100 + branch, 500)].concat());
    }
    store.flush();
    let status = store.status();
    // 390 whole blocks of the prefix. The rest of it, 80 tokens, begins each branch's own blocks:
    // 580 tokens are four and a tail.
    let (blocks, checkpoints) = (390 + 10 * 4, 11);
    assert_eq!(status.ram_bytes, (blocks * BLOCK + checkpoints * RINGS) as u64);
    assert_eq!((status.ram_nodes, status.disk_nodes), (blocks + checkpoints, blocks + checkpoints));
    // A file is 116 bytes and its tokens more than its payload.
    let tails = 4 * (80 + 10 * (580 - 512));
    let files = blocks * (BLOCK + 116 + 512) + checkpoints * (RINGS + 116) + tails;
    assert_eq!(status.disk_bytes, files as u64);
    assert!(disk.bytes() == files as u64, "nothing but that, and an empty claim");
    assert_eq!((status.saved, status.not_saved, status.queued_bytes), (11, 0, 0));
    let mut next = disk_store(&disk, Settings::default());
    for branch in 0..10 {
        let wanted = [&prefix[..], &tokens(100 + branch, 500), &[1]].concat();
        assert_eq!(get(&mut store, &wanted), Some(50_500));
        assert_eq!(get(&mut next, &wanted), Some(50_500), "by another process");
    }
    // All but the checkpoint at the prefix's end, which nobody asked for.
    let asked = status.ram_bytes - RINGS as u64;
    assert_eq!(next.status().ram_bytes, asked, "shared in memory again");
}

#[test]
fn limits_hold_and_inner_nodes_stay() {
    let disk = SimDisk::new(2);
    let settings = Settings { ram_bytes: 60_000, disk_bytes: 200_000, ..Settings::default() };
    let mut store = disk_store(&disk, settings);
    let popular = tokens(0, 700);
    put(&mut store, &popular);
    for round in 0..200 {
        let branch = [&popular[..], &tokens(round + 1, 300 + round as usize % 400)].concat();
        put(&mut store, if round % 3 == 0 { &branch } else { &branch[700..] });
        store.flush();
        let wanted = [&popular[..], &[5]].concat();
        assert_eq!(get(&mut store, &wanted), Some(700), "round {round}: used all the time");
        let status = store.status();
        assert!(status.ram_bytes <= 60_000 && status.disk_bytes <= 200_000, "{status:?}");
        assert!(disk.bytes() <= 200_000);
        // What is there can be reached: no node lost its parent.
        for name in disk.names().iter().filter_map(|n| Name::parse(n)) {
            let parent =
                disk.names().iter().filter_map(|n| Name::parse(n)).any(|p| p.id == name.parent);
            assert!(parent || name.parent == chain::root(&key()), "round {round}: {name:?}");
        }
    }
    assert!(store.status().disk_bytes > 150_000, "the room is used");
    let whole = [&popular[..], &tokens(400, 30_000)].concat();
    put(&mut store, &whole);
    store.flush();
    assert_eq!(store.status().not_saved, 1, "larger than the limit");
    assert_eq!(get(&mut store, &popular), None);
    assert_eq!(get(&mut store, &[&popular[..], &[5]].concat()), Some(700), "nothing else went");
}

#[test]
fn what_is_worth_least_for_its_bytes_goes_first() {
    let mut store = Store::new(key(), Settings { ram_bytes: 60_000, ..Settings::default() });
    // A long one, and short ones that save little.
    let (long, short) = (tokens(1, 1280), |seed| tokens(seed, 128));
    put(&mut store, &long);
    (2..12).for_each(|seed| {
        put(&mut store, &short(seed));
    });
    assert_eq!(store.nearest(&long), 1280, "older, but worth more");
    assert_eq!(store.nearest(&short(2)), 0);
    assert_eq!(store.nearest(&short(11)), 128);
    // Checkpoints on the way go before the end of a conversation.
    let mut store = Store::new(key(), Settings { ram_bytes: 40_000, ..Settings::default() });
    let talk = tokens(20, 4000);
    for end in (256..2000).step_by(256) {
        put(&mut store, &talk[..end]);
        assert_eq!(store.nearest(&talk), end, "the newest is always kept");
    }
}

#[test]
fn two_stores_on_one_folder_see_each_other_and_share() {
    let disk = SimDisk::new(3);
    let settings = only_disk();
    let (mut a, mut b) = (disk_store(&disk, settings), disk_store(&disk, settings));
    let prefix = tokens(1, 1000);
    let (left, right) = ([&prefix[..], &[1; 200]].concat(), [&prefix[..], &[2; 200]].concat());
    put(&mut a, &left);
    put(&mut b, &right);
    a.flush();
    b.flush();
    disk.set_now(Duration::from_secs(60));
    for store in [&mut a, &mut b] {
        let _ = store.find(&left, 0);
        store.flush();
        assert_eq!(get(store, &[&left[..], &[0]].concat()), Some(1200));
        assert_eq!(get(store, &[&right[..], &[0]].concat()), Some(1200));
    }
    let names: Vec<Name> = disk.names().iter().filter_map(|n| Name::parse(n)).collect();
    assert_eq!(names.len(), 7 + 2 + 2 + 2, "7 shared blocks, two more and a checkpoint each");
    // What one removes, the other misses without an error.
    names.iter().for_each(|name| disk.rot(&name.path(), Rot::Gone));
    assert_eq!(get(&mut a, &[&left[..], &[0]].concat()), None);
    assert!(a.status().problems.is_empty(), "{:?}", a.status().problems);
    // The view still had the other blocks, so this one is not acknowledged, and the next one is.
    for saved in [false, true] {
        let receipt = put(&mut a, &left);
        a.flush();
        assert_eq!(receipt.is_saved(), saved);
    }
    assert_eq!(get(&mut a, &[&left[..], &[0]].concat()), Some(1200), "written again");
}

#[test]
fn files_of_others_and_of_other_versions_are_left_alone() {
    let disk = SimDisk::new(4);
    let mut other = Store::new(Key::new(&[b"other model"]), only_disk())
        .with_disk(Arc::new(disk.clone()), Writing::OnFlush);
    let all = tokens(1, 400);
    put(&mut other, &all);
    other.flush();
    drop(other);
    let before = disk.names();
    disk.put("notes.txt", b"mine".to_vec());
    disk.put("b0000000128-xyz-1.state", b"odd".to_vec());
    let mut store = disk_store(&disk, only_disk());
    assert_eq!(get(&mut store, &[&all[..], &[1]].concat()), None);
    put(&mut store, &all);
    store.flush();
    assert_eq!(get(&mut store, &[&all[..], &[1]].concat()), Some(400));
    for name in before.iter().map(String::as_str).chain(["notes.txt", "b0000000128-xyz-1.state"]) {
        assert!(disk.names().iter().any(|n| n == name), "{name}");
    }
    // A file of another version under our name, and a whole file under another's name.
    let ours: Vec<String> = disk.names().into_iter().filter(|n| !before.contains(n)).collect();
    let ours: Vec<String> = ours.into_iter().filter(|n| Name::parse(n).is_some()).collect();
    let mut bytes = disk.read(&ours[0], u64::MAX).unwrap();
    bytes[7] = 2;
    disk.put(&ours[0], bytes);
    assert_eq!(get(&mut store, &[&all[..], &[1]].concat()), None);
    assert!(store.status().problems[0].text.contains("version 1"), "{:?}", store.status());
}

#[test]
fn rotten_files_are_noticed_removed_and_written_again() {
    for seed in 0..300 {
        let disk = SimDisk::new(seed);
        let mut store = disk_store(&disk, only_disk());
        let (short, long) = (tokens(1, 700), tokens(1, 1400));
        put(&mut store, &short);
        put(&mut store, &long);
        store.flush();
        let names: Vec<String> =
            disk.names().into_iter().filter(|n| Name::parse(n).is_some()).collect();
        let pick = usize::try_from(seed).unwrap();
        let rot = [Rot::Flip, Rot::Cut, Rot::Swap, Rot::Gone][pick % 4];
        disk.rot(&names[pick / 4 % names.len()], rot);
        let wanted = [&long[..], &[1]].concat();
        // Whatever comes is right; `get` compares it.
        let first = get(&mut store, &wanted);
        assert!([None, Some(700), Some(1400)].contains(&first), "seed {seed}: {first:?}");
        put(&mut store, &long);
        store.flush();
        assert_eq!(get(&mut store, &wanted), Some(1400), "seed {seed}: {rot:?}, healed");
    }
}

/// A life of random saves and loads on a faulty disk. What was acknowledged, and what was given to
/// the store.
fn live(
    store: &mut Store,
    disk: &SimDisk,
    seed: u64,
    rounds: usize,
) -> BTreeMap<Vec<u32>, Receipt> {
    let mut known: BTreeMap<Vec<u32>, Receipt> = BTreeMap::new();
    let mut dice = seed;
    let mut below = |bound: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % bound
    };
    for _ in 0..rounds {
        let base =
            known.keys().nth(usize::try_from(below(8)).unwrap()).cloned().unwrap_or_default();
        let base = if base.len() > 1500 { Vec::new() } else { base };
        let own =
            tokens(u32::try_from(below(1000)).unwrap(), 1 + usize::try_from(below(400)).unwrap());
        let all = [base, own].concat();
        let receipt = put(store, &all);
        known.insert(all, receipt);
        if below(3) > 0 {
            store.flush();
        }
        if below(3) == 0 {
            let wanted =
                known.keys().nth(usize::try_from(below(known.len() as u64)).unwrap()).unwrap();
            get(store, &[&wanted[..], &[3]].concat());
        }
        // The clock goes as it likes.
        disk.set_now(Duration::from_secs(below(1_000_000)));
        if disk.has_crashed() {
            break;
        }
    }
    known
}

#[test]
fn nothing_that_was_acknowledged_is_lost_at_any_crash_point() {
    let (mut points, mut acknowledged) = (0, 0);
    for seed in 0..12 {
        let disk = SimDisk::new(seed);
        live(&mut disk_store(&disk, only_disk()), &disk, seed, 12);
        let operations = disk.operations();
        for crash_at in 1..=operations {
            let disk = SimDisk::new(seed ^ crash_at << 8);
            disk.set_faults(Faults { crash_at: Some(crash_at), ..Faults::default() });
            let mut store = disk_store(&disk, only_disk());
            let known = live(&mut store, &disk, seed, 12);
            let survivors = disk.restart();
            let mut next = disk_store(&survivors, only_disk());
            for (tokens, receipt) in &known {
                let found = get(&mut next, &[&tokens[..], &[9]].concat()).unwrap_or(0);
                if receipt.is_saved() {
                    assert_eq!(found, tokens.len(), "seed {seed}, crash at {crash_at}");
                    acknowledged += 1;
                }
            }
            // What a dead writer left half-written is gone, and life goes on.
            let left = survivors.names().into_iter().find(|n| n.contains(".tmp"));
            assert_eq!(left, None, "seed {seed}, crash at {crash_at}");
            let receipt = put(&mut next, &tokens(7777, 300));
            next.flush();
            assert!(receipt.is_saved());
            points += usize::from(disk.has_crashed());
        }
    }
    assert!(points >= 1000 && acknowledged > 1000, "{points} crash points, {acknowledged} saves");
}

#[test]
fn a_faulty_disk_costs_saves_and_nothing_else() {
    for seed in 0..60 {
        let disk = SimDisk::new(seed);
        let faults = Faults { read: 60, write: 60, ..Faults::default() };
        disk.set_faults(faults);
        let mut store = disk_store(&disk, Settings { ram_bytes: 20_000, ..Settings::default() });
        let known = live(&mut store, &disk, seed, 40);
        assert!(!store.status().problems.is_empty(), "faults are told");
        disk.set_faults(Faults::default());
        disk.set_now(Duration::from_secs(9_000_000));
        for (tokens, receipt) in &known {
            let found = get(&mut store, &[&tokens[..], &[9]].concat());
            // A read that failed took its file out of the view until the next look at the folder.
            if receipt.is_saved() && found != Some(tokens.len()) {
                drop(store);
                store = disk_store(&disk, Settings { ram_bytes: 20_000, ..Settings::default() });
                assert_eq!(get(&mut store, &[&tokens[..], &[9]].concat()), Some(tokens.len()));
            }
        }
    }
}

#[test]
fn a_full_disk_keeps_what_is_worth_most() {
    let disk = SimDisk::new(5);
    disk.set_faults(Faults { capacity: 100_000, ..Faults::default() });
    let mut store = disk_store(&disk, only_disk());
    let mut last = Receipt::default();
    for seed in 0..40 {
        last = put(&mut store, &tokens(seed, 500));
        store.flush();
        disk.set_now(Duration::from_secs(u64::from(seed) * 60));
        assert!(disk.bytes() <= 100_000);
    }
    assert!(last.is_saved(), "{:?}", store.status());
    assert_eq!(get(&mut store, &tokens(39, 501)), Some(500));
    // So small that nothing fits: told once, and requests go on.
    disk.set_faults(Faults { capacity: 10, ..Faults::default() });
    for seed in 100..110 {
        assert!(!put(&mut store, &tokens(seed, 500)).is_saved());
        store.flush();
    }
    let told = store.status().problems;
    assert!(told.iter().any(|p| p.text.contains("cannot write to the state folder")), "{told:?}");
    assert!(told.len() < 4, "{told:?}");
    assert!(!disk.names().iter().any(|n| n.contains(".tmp")), "nothing half-written is left");
}

#[test]
fn a_folder_that_is_read_only_or_goes_away_is_no_error() {
    let disk = SimDisk::new(6);
    let mut store = disk_store(&disk, Settings::default());
    let all = tokens(1, 500);
    put(&mut store, &all);
    store.flush();
    disk.set_faults(Faults { read_only: true, ..Faults::default() });
    let receipt = put(&mut store, &tokens(2, 500));
    store.flush();
    assert!(!receipt.wait());
    assert_eq!(get(&mut store, &tokens(2, 501)), Some(500), "from memory");
    let mut reader = disk_store(&disk, Settings::default());
    assert_eq!(get(&mut reader, &[&all[..], &[1]].concat()), Some(500));
    disk.set_faults(Faults::default());
    disk.wipe();
    disk.set_now(Duration::from_secs(100));
    let receipt = put(&mut store, &tokens(3, 500));
    store.flush();
    assert!(receipt.is_saved());
    let mut next = disk_store(&disk, Settings::default());
    assert_eq!(get(&mut next, &tokens(3, 501)), Some(500));
}

#[test]
fn what_is_set_aside_is_not_found_again() {
    let disk = SimDisk::new(7);
    let mut store = disk_store(&disk, Settings::default());
    let all = tokens(1, 500);
    put(&mut store, &all);
    store.flush();
    let wanted = [&all[..], &[1]].concat();
    let found = store.find(&wanted, 501).unwrap();
    store.suspects().lock().unwrap().push(found);
    assert_eq!(get(&mut store, &wanted), None);
    assert_eq!(get(&mut disk_store(&disk, Settings::default()), &wanted), None);
    assert_eq!(store.missing(&all), [0, 1, 2], "all of it is brought anew");
    put(&mut store, &all);
    store.flush();
    assert_eq!(get(&mut store, &wanted), Some(500));
}

#[test]
fn a_day_of_traffic_stays_within_all_limits() {
    let disk = SimDisk::new(8);
    let settings = Settings { ram_bytes: 300_000, disk_bytes: 1_000_000, ..Settings::default() };
    let (mut a, mut b) = (disk_store(&disk, settings), disk_store(&disk, settings));
    let mut talks: Vec<Vec<u32>> = (0..30).map(|i| tokens(i % 3, 400 + i as usize)).collect();
    let (mut hits, mut dice) = (0, 1_u64);
    for second in (0..24 * 3600).step_by(60) {
        disk.set_now(Duration::from_secs(second));
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(97);
        let pick = usize::try_from((dice >> 40) % 30).unwrap();
        let store = if dice >> 63 == 0 { &mut a } else { &mut b };
        let talk = &mut talks[pick];
        if talk.len() > 3000 {
            *talk = tokens(u32::try_from(second % 3).unwrap(), 400 + pick);
        }
        talk.extend(tokens(u32::try_from(second).unwrap(), 150));
        hits += usize::from(get(store, talk).is_some());
        put(store, talk);
        store.flush();
        for store in [&a, &b] {
            let status = store.status();
            assert!(status.ram_bytes <= 300_000 && status.ram_nodes < 300, "{second}: {status:?}");
            // Each knows the other's files a moment later; so one save may be too many.
            assert!(status.disk_nodes < 1200 && disk.bytes() <= 1_050_000, "{second}: {status:?}");
            assert_eq!(status.queued_bytes, 0);
        }
    }
    assert!(hits > 700, "{hits} of 1440 found something");
}

#[test]
fn a_writer_thread_saves_and_readers_read_ahead() {
    let disk = SimDisk::new(9);
    let open = || Store::new(key(), only_disk()).with_disk(Arc::new(disk.clone()), Writing::Thread);
    let mut store = open();
    let all = tokens(1, 5000);
    assert!(put(&mut store, &all).wait());
    drop(store);
    let mut next = open();
    assert_eq!(get(&mut next, &[&all[..], &[1]].concat()), Some(5000));
    let broken = disk.names()[20].clone();
    disk.rot(&broken, Rot::Flip);
    assert_eq!(get(&mut next, &[&all[..], &[1]].concat()), None);
    put(&mut next, &all);
    next.flush();
    assert_eq!(get(&mut next, &[&all[..], &[1]].concat()), Some(5000));
}

#[test]
fn a_file_says_what_it_is_in_any_state() {
    let all = tokens(3, 200);
    let chain = chain::blocks(&key(), &all);
    let id = chain::child(&key(), chain[1], Kind::Checkpoint, &all[128..]);
    let (home, text) = (key().home(), Some(Text::new(&key(), b"hello")));
    let kind = Kind::Checkpoint;
    let name = Name { home, kind, position: 200, parent: chain[1], id, text };
    assert_eq!(Name::parse(&name.path()), Some(name));
    let name = Name { text: None, ..name };
    assert_eq!(Name::parse(&name.path()), Some(name));
    let [head, tail] = file::frame(&key(), &name, &all[128..], b"payload");
    let bytes = [&head[..], b"payload", &tail].concat();
    let view = read_file(&bytes).unwrap();
    assert_eq!(
        (view.position, &view.tokens[..], view.payload),
        (200, &all[128..], &b"payload"[..])
    );
    for end in 0..bytes.len() {
        assert!(read_file(&bytes[..end]).is_err(), "cut at {end}");
        let mut flipped = bytes.clone();
        flipped[end] ^= 1;
        assert!(read_file(&flipped).is_err(), "flipped at {end}");
    }
    for wrong in ["", "b", "b0000000128", "x0000000128-a-b.state", "é.state"] {
        assert_eq!(Name::parse(wrong), None);
    }
}

#[test]
fn every_piece_of_a_large_file_has_its_checksum() {
    let all = tokens(4, 128);
    let parent = chain::root(&key());
    let id = chain::child(&key(), parent, Kind::Block, &all);
    let (home, kind, text) = (key().home(), Kind::Block, None);
    let name = Name { home, kind, position: 128, parent, id, text };
    // Pieces of 65,536 bytes after a header of 112 and 512 of tokens.
    for len in [0, 1, 64_911, 64_912, 64_913, 130_448, 200_000] {
        let payload = payload(&all, len);
        let [head, tail] = file::frame(&key(), &name, &all, &payload);
        let bytes = [&head[..], &payload, &tail].concat();
        assert_eq!(bytes.len() as u64, file::file_bytes(128, len));
        assert_eq!(read_file(&bytes).unwrap().payload, payload);
        assert_eq!(sealed(bytes.clone()), bytes);
        let opened = file::open(bytes.clone(), &key(), &name, &all).unwrap();
        assert_eq!(opened[..], payload[..]);
        for at in [0, 8, 111, 112, 65_535, 65_536, 131_071, bytes.len() - 1] {
            let mut flipped = bytes.clone();
            if let Some(byte) = flipped.get_mut(at) {
                *byte ^= 0x10;
                assert!(read_file(&flipped).is_err(), "{len} bytes, flipped at {at}");
            }
        }
    }
    // The sum is the CRC-32 of zip and PNG, whose value of these digits is published.
    assert_eq!(crc32fast::hash(b"123456789"), 0xCBF4_3926);
}
