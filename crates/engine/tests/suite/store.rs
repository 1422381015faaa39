//! Sessions that come back from stored states: the bits of never having left, whatever happens to
//! the folder.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{Dice, engine, engine_of, generate, logits, options, steps, sync, tiny};
use ironstar_engine::scheduler::{Event, FakeClock, Limits, Request, RequestId, Scheduler, Stats};
use ironstar_engine::store::sim::{Faults, Rot, SimDisk};
use ironstar_engine::store::{Disk, Folder, Writing};
use ironstar_engine::{Control, DrafterChoice, Engine, EngineOptions, Generate, Session};
use ironstar_model::RowStorage;
use ironstar_model::testing::Tiny;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An engine on a simulated disk, with nothing kept in memory unless said.
fn on_disk(tiny: &Tiny, disk: &SimDisk, options: EngineOptions) -> Engine {
    let mut engine = engine_of(tiny, options);
    engine.set_disk(Arc::new(disk.clone()), Writing::OnFlush);
    engine
}

fn no_ram() -> EngineOptions {
    EngineOptions { store_ram_bytes: 0, ..options() }
}

/// A folder of this test, empty.
fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("ironstar-{name}-{}", std::process::id()));
    let _absent = std::fs::remove_dir_all(&path);
    path
}

#[test]
fn the_next_run_goes_on_where_this_one_ended() {
    let folder = folder("runs");
    let with_folder = || EngineOptions { store_dir: Some(folder.clone()), ..options() };
    let prompt = Dice::new(1).tokens(500, 96);
    let what = Generate { seed: 3, tokens_max: Some(100), ..Generate::default() };
    let mut first = engine_of(&tiny(96), with_folder());
    let mut session = first.session(700).unwrap();
    sync(&mut session, &mut first, &prompt);
    let wanted = logits(&session);
    let (answer, _) = generate(&mut session, &mut first, &what);
    let evaluated = session.tokens()[..session.position()].to_vec();
    assert!(session.checkpoint(&mut first).unwrap().wait(), "reported saved");
    drop((session, first));

    let mut second = engine_of(&tiny(96), with_folder());
    let mut session = second.session(650).unwrap();
    // The last logits come back too, so that the first token after a switch is the right one.
    let report = sync(&mut session, &mut second, &prompt);
    assert_eq!((report.reused, report.evaluated, steps(&second)), (500, 0, 0));
    assert_eq!(logits(&session), wanted);
    // The same prompt again gives the same answer; a message less goes back a little.
    assert!(generate(&mut session, &mut second, &what).0 == answer);
    let report = sync(&mut session, &mut second, &prompt);
    assert_eq!((report.reused, report.evaluated), (500, 0), "asked again");
    assert!(generate(&mut session, &mut second, &what).0 == answer);
    let report = sync(&mut session, &mut second, &evaluated);
    assert_eq!(report.reused, evaluated.len());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn switching_back_and_forth_gives_the_logits_of_staying() {
    let disk = SimDisk::new(1);
    let mut engine = on_disk(&tiny(96), &disk, no_ram());
    let mut session = engine.session(600).unwrap();
    let (a, b) = (Dice::new(2).tokens(300, 96), Dice::new(3).tokens(333, 96));
    let mut wanted = Vec::new();
    for tokens in [&a, &b] {
        sync(&mut session, &mut engine, tokens);
        wanted.push(logits(&session));
        session.checkpoint(&mut engine).unwrap();
        engine.flush_store();
    }
    for round in 0..3 {
        for (tokens, wanted) in [&a, &b].into_iter().zip(&wanted) {
            let before = steps(&engine);
            assert_eq!(sync(&mut session, &mut engine, tokens).reused, tokens.len(), "{round}");
            assert_eq!((steps(&engine), &logits(&session)), (before, wanted));
        }
        // And after a rewind.
        sync(&mut session, &mut engine, &a[..200]);
    }
}

#[test]
fn other_weights_or_settings_never_meet() {
    let disk = SimDisk::new(2);
    let prompt = Dice::new(4).tokens(300, 96);
    let reused = |tiny: &Tiny, options: EngineOptions| {
        let mut engine = on_disk(tiny, &disk, options);
        let mut session = engine.session(400).unwrap();
        let report = sync(&mut session, &mut engine, &prompt);
        engine.flush_store();
        report.reused
    };
    let mut other = tiny(96);
    other.seed += 1;
    let cases = [
        (tiny(96), no_ram()),
        (other, no_ram()),
        (tiny(96), EngineOptions { rows: RowStorage::F32, ..no_ram() }),
        (tiny(96), EngineOptions { round_trips: false, ..no_ram() }),
        (tiny(96), EngineOptions { float_products: true, ..no_ram() }),
        (tiny(96), EngineOptions { drafter: DrafterChoice::None, ..no_ram() }),
    ];
    for (tiny, options) in &cases {
        assert_eq!(reused(tiny, options.clone()), 0, "{options:?}");
    }
    for (tiny, options) in &cases {
        assert_eq!(reused(tiny, options.clone()), 300, "{options:?}");
    }
    let threads = EngineOptions { threads: 2, step_rows: 7, ..no_ram() };
    assert_eq!(reused(&tiny(96), threads), 300, "what changes no bit shares");
}

fn nano() -> Engine {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/nano.gguf");
    let options = EngineOptions { drafter: DrafterChoice::None, ..options() };
    Engine::open(&path, options, &mut |_| {}).unwrap()
}

/// A client sends the text of an answer back, and not its tokens: the state is found, and the
/// answer goes on from the tokens that the model drew.
#[test]
fn a_text_that_comes_back_finds_its_state() {
    let mut engine = nano();
    let tokenizer = engine.tokenizer().unwrap().clone();
    let bos = tokenizer.bos().unwrap();
    let eos = tokenizer.eos().unwrap();
    let question = [&[bos][..], &tokenizer.encode("Tell me about the fox.")].concat();
    let answer = "The fox was happy. He ran home, and then he slept under the tree. ".repeat(4);
    let answer = answer.trim();
    // Tokens that nobody makes of this text, as a model may draw them.
    let drawn: Vec<u32> = answer.bytes().flat_map(|b| tokenizer.encode_bytes(&[b])).collect();
    let told = [&question[..], &drawn].concat();
    let mut session = engine.session(600).unwrap();
    sync(&mut session, &mut engine, &told);
    let follow = [&[eos][..], &tokenizer.encode(" And then what?")].concat();
    for (cut, more) in [(answer.len(), ""), (answer.len(), " The"), (answer.len() - 10, "")] {
        // The text as the client has it, with more behind it or cut short.
        let text = format!("{}{more}", &answer[..cut]);
        let prompt = [&question[..], &tokenizer.encode(&text), &follow].concat();
        let known = engine.known_tokens(&prompt);
        if cut < answer.len() {
            assert_eq!(known, None, "the stored text is no beginning of this one");
            continue;
        }
        let known = known.unwrap();
        assert!(known.starts_with(&told) && known.ends_with(&follow));
        assert_eq!(tokenizer.decode(&known), tokenizer.decode(&prompt));
        let mut session = engine.session(600).unwrap();
        let report = sync(&mut session, &mut engine, &known);
        assert_eq!(report.reused, told.len());
        let mut fresh = nano();
        let mut other = fresh.session(600).unwrap();
        sync(&mut other, &mut fresh, &known);
        assert_eq!(logits(&session), logits(&other), "the bits of these tokens");
        assert_eq!(engine.known_tokens(&known), None, "nothing to gain any more");
    }
    // Who only writes the marker's text has not said the same.
    let written = String::from_utf8(tokenizer.token_bytes(bos).to_vec()).unwrap();
    let plain = [tokenizer.encode(&written), question[1..].to_vec(), tokenizer.encode(answer)];
    assert_eq!(engine.known_tokens(&plain.concat()), None);
    by_requests(engine, [question, tokenizer.encode(answer), follow].concat(), told.len());
}

/// The same through the scheduler, where a request says that it is a text, and where it does not.
fn by_requests(engine: Engine, prompt: Vec<u32>, known: usize) {
    let mut scheduler = Scheduler::new(engine, Box::new(FakeClock::default()), Limits::default());
    for is_text in [true, false] {
        let told: Arc<Mutex<Option<Stats>>> = Arc::default();
        let heard = told.clone();
        let sink = move |event: Event| {
            if let Event::Done { stats, .. } = event {
                *heard.lock().unwrap() = Some(stats);
            }
            Control::Continue
        };
        let what = Generate { tokens_max: Some(3), ..Generate::default() };
        let request = Request { prompt: prompt.clone(), what, is_text, ..Request::default() };
        scheduler.submit(RequestId(1), request, Box::new(sink));
        while scheduler.turn() {}
        let stats = told.lock().unwrap().unwrap();
        assert_eq!(stats.tokens, 3);
        assert_eq!((stats.reused >= known, stats.prompt > prompt.len()), (is_text, is_text));
    }
}

#[test]
fn a_folder_that_goes_away_costs_time_only() {
    let folder = folder("gone");
    let mut engine = engine_of(&tiny(96), {
        EngineOptions { store_dir: Some(folder.clone()), store_ram_bytes: 0, ..options() }
    });
    let mut session = engine.session(400).unwrap();
    let prompt = Dice::new(5).tokens(300, 96);
    sync(&mut session, &mut engine, &prompt);
    let wanted = logits(&session);
    engine.flush_store();
    std::fs::remove_dir_all(&folder).unwrap();
    let mut other = engine.session(400).unwrap();
    assert_eq!(sync(&mut other, &mut engine, &prompt).reused, 0);
    assert_eq!(logits(&other), wanted);
    // The next save may still believe in some of the old files; the one after it does not.
    let saved: Vec<bool> = (0..3).map(|_| other.checkpoint(&mut engine).unwrap().wait()).collect();
    assert_eq!(saved.last(), Some(&true), "the folder is made again");
    std::fs::remove_dir_all(&folder).unwrap();
    // A file stands where the folder should be.
    std::fs::write(&folder, b"mine").unwrap();
    assert!(!other.checkpoint(&mut engine).unwrap().wait());
    assert_eq!(sync(&mut session, &mut engine, &prompt).reused, 300, "the session itself is there");
    let problems = &engine.store().status().problems;
    assert!(problems.iter().any(|p| p.text.contains("state folder")), "{problems:?}");
    assert_eq!(std::fs::read(&folder).unwrap(), b"mine");
    std::fs::remove_file(&folder).unwrap();
}

#[test]
fn a_dead_writers_leftovers_are_cleaned_and_a_living_ones_are_not() {
    let path = folder("leftovers");
    std::fs::create_dir_all(&path).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(Folder::new(path.clone()));
    let claim = disk.claim("writer0000000000000001.claim").unwrap();
    for name in ["writer0000000000000001-7.tmp", "writer0000000000000002-1.tmp", "mine.tmp"] {
        std::fs::write(path.join(name), b"half").unwrap();
    }
    engine().set_disk(disk.clone(), Writing::Thread);
    let left = || {
        let mut names: Vec<String> = disk.list().unwrap().into_iter().map(|f| f.name).collect();
        names.sort();
        names
    };
    let living = ["writer0000000000000001-7.tmp", "writer0000000000000001.claim"];
    assert_eq!(left(), ["mine.tmp", living[0], living[1]]);
    drop(claim);
    engine().set_disk(disk.clone(), Writing::Thread);
    assert_eq!(left(), ["mine.tmp"]);
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn branches_share_blocks() {
    let disk = SimDisk::new(3);
    let mut engine = on_disk(&tiny(96), &disk, EngineOptions { ..options() });
    let mut session = engine.session(1500).unwrap();
    let prefix = Dice::new(6).tokens(1280, 96);
    sync(&mut session, &mut engine, &prefix);
    let nodes = engine.store().status().ram_nodes;
    assert_eq!(nodes, 11, "ten blocks and a checkpoint");
    for branch in 0..10 {
        let tokens = [&prefix[..], &Dice::new(10 + branch).tokens(150, 96)].concat();
        assert_eq!(sync(&mut session, &mut engine, &tokens).reused, 1280);
    }
    engine.flush_store();
    let status = engine.store().status();
    assert_eq!((status.ram_nodes, status.disk_nodes), (11 + 10 * 2, 11 + 10 * 2));
    assert_eq!((status.saved, status.not_saved), (11, 0));
}

/// Logits and state of tokens, by an engine that stores nothing.
struct Oracle(Engine, HashMap<Vec<u32>, (Vec<u32>, Vec<u8>)>);

impl Oracle {
    fn new() -> Oracle {
        Oracle(engine_of(&tiny(96), no_ram()), HashMap::new())
    }

    #[track_caller]
    fn check(&mut self, session: &Session, engine: &mut Engine) {
        let tokens = session.tokens().to_vec();
        if tokens.is_empty() {
            return;
        }
        let Oracle(fresh, known) = self;
        let (wanted, state) = known.entry(tokens).or_insert_with_key(|tokens| {
            let mut session = fresh.session(600).unwrap();
            sync(&mut session, fresh, tokens);
            (logits(&session), session.snapshot(fresh).unwrap().state().to_vec())
        });
        assert!(logits(session) == *wanted, "logits");
        assert!(session.snapshot(engine).unwrap().state() == *state, "state");
    }
}

/// Two engines on one faulty disk: on, back, aside, flushes, rot, restarts, clocks that jump.
#[expect(clippy::print_stdout, reason = "only failing tests show it")]
fn walk(seed: u64, oracle: &mut Oracle) -> usize {
    println!("seed {seed}");
    let (mut dice, disk) = (Dice::new(seed), SimDisk::new(seed));
    let opts = |dice: &mut Dice| EngineOptions {
        checkpoint_spacing: [2048, 64, 128, 37][dice.below(4)],
        store_ram_bytes: dice.below(3) as u64 * 150_000,
        store_disk_bytes: [u64::MAX, 400_000][dice.below(2)],
        ..options()
    };
    let mut engines: Vec<(Engine, Session)> = Vec::new();
    let open = |dice: &mut Dice| {
        let mut engine = on_disk(&tiny(96), &disk, opts(dice));
        let session = engine.session(600).unwrap();
        (engine, session)
    };
    (0..2).for_each(|_| engines.push(open(&mut dice)));
    let trunk = dice.tokens(500, 96);
    let mut reused = 0;
    for _ in 0..30 {
        let which = dice.below(2);
        let (engine, session) = &mut engines[which];
        engine.set_prompt_rows(1 + dice.below(200));
        match dice.below(8) {
            0..4 => {
                let keep = dice.below(trunk.len());
                let own = dice.below(3) * dice.below(40);
                let tokens = [&trunk[..keep + 1], &dice.tokens(own, 96)].concat();
                reused += sync(session, engine, &tokens).reused;
                oracle.check(session, engine);
            }
            4 => {
                let here = session.tokens().to_vec();
                let back = here.len() - dice.below(here.len() + 1);
                reused += sync(session, engine, &here[..back]).reused;
                oracle.check(session, engine);
            }
            5 => engine.flush_store(),
            6 => {
                let names = disk.names();
                if !names.is_empty() {
                    let rot = [Rot::Flip, Rot::Cut, Rot::Swap, Rot::Gone][dice.below(4)];
                    disk.rot(&names[dice.below(names.len())], rot);
                }
                let chance = [0, 0, 40][dice.below(3)];
                disk.set_faults(Faults { read: chance, write: chance, ..Faults::default() });
                disk.set_now(Duration::from_secs(dice.below(100_000) as u64));
            }
            _ => engines[which] = open(&mut dice),
        }
    }
    reused
}

#[test]
fn any_walk_over_two_engines_and_a_faulty_disk_gives_the_same_bits() {
    let mut oracle = Oracle::new();
    let reused: usize = (0..8).map(|seed| walk(seed, &mut oracle)).sum();
    assert!(reused > 5_000, "{reused} tokens were reused");
}
