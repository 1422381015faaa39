//! Schedulers with a store on one faulty folder, and a day of traffic by a fake clock.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{Dice, engine_of, generate, options, sync, tiny};
use ironstar_engine::scheduler::{
    Clock, Event, FakeClock, Limits, Request, RequestId, Scheduler, Sink,
};
use ironstar_engine::store::Writing;
use ironstar_engine::store::sim::{Faults, Rot, SimDisk};
use ironstar_engine::{Control, Engine, EngineOptions, Generate, Speculation};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Told = Arc<Mutex<(Vec<u32>, String, usize)>>;

fn sink(told: &Told) -> Sink {
    let told = told.clone();
    Box::new(move |event| {
        let mut told = told.lock().unwrap();
        match event {
            Event::Token(token) => told.0.push(token.id),
            Event::Done { finish, stats } => {
                (told.1, told.2) = (format!("{finish:?}"), stats.reused);
            }
            Event::Failed { failure, .. } => told.1 = format!("failed: {failure}"),
            _ => {}
        }
        Control::Continue
    })
}

fn any_request(dice: &mut Dice, prompts: &[Vec<u32>]) -> Request {
    let mut prompt = prompts[dice.below(prompts.len())].clone();
    prompt.truncate(1 + dice.below(prompt.len()));
    let own = dice.below(2) * dice.below(40);
    prompt.extend(dice.tokens(own, 24));
    let kinds = [Speculation::Off, Speculation::Mtp, Speculation::Lookup];
    let what = Generate {
        seed: dice.below(1000) as u64,
        tokens_max: Some(dice.below(30)),
        speculation: kinds[dice.below(3)],
        ..Generate::default()
    };
    Request { prompt, what, ..Request::default() }
}

struct Server {
    scheduler: Scheduler<Engine>,
    disk: SimDisk,
}

impl Server {
    fn new(dice: &mut Dice, disk: &SimDisk, clock: &FakeClock) -> Server {
        let opts = EngineOptions {
            step_rows: 2 + dice.below(60),
            checkpoint_spacing: [50, 128, 2048][dice.below(3)],
            store_ram_bytes: dice.below(3) as u64 * 200_000,
            store_disk_bytes: [600_000, u64::MAX][dice.below(2)],
            ..options()
        };
        let mut engine = engine_of(&tiny(24), opts);
        let writing = [Writing::AtOnce, Writing::OnFlush][dice.below(2)];
        engine.set_disk(Arc::new(disk.clone()), writing);
        let limits = Limits { sessions: 1 + dice.below(4), ..Limits::default() };
        let scheduler = Scheduler::new(engine, Box::new(clock.clone()), limits);
        Server { scheduler, disk: disk.clone() }
    }

    /// Ends all requests, writes what waits, and comes up again on the same disk.
    fn restart(self, dice: &mut Dice, clock: &FakeClock) -> Server {
        let Server { scheduler, disk } = self;
        let mut engine = scheduler.stop();
        engine.flush_store();
        drop(engine);
        Server::new(dice, &disk, clock)
    }
}

/// Two servers on one folder; saves, restores, evictions, rot and restarts between their turns.
fn simulate(seed: u64, alone: &mut Engine) -> usize {
    let (mut dice, disk, clock) = (Dice::new(seed), SimDisk::new(seed), FakeClock::default());
    let mut servers: Vec<Server> = (0..2).map(|_| Server::new(&mut dice, &disk, &clock)).collect();
    let prompts: Vec<Vec<u32>> = (0..2).map(|_| dice.tokens(320, 24)).collect();
    let mut asked: Vec<(Request, Told)> = Vec::new();
    let mut busy = true;
    while asked.len() < 16 || busy {
        if asked.len() < 16 && dice.below(5) == 0 {
            let (request, told) = (any_request(&mut dice, &prompts), Told::default());
            let server = &mut servers[dice.below(2)];
            server.scheduler.submit(RequestId(asked.len() as u64), request.clone(), sink(&told));
            asked.push((request, told));
        }
        match dice.below(40) {
            0 => {
                let at = dice.below(2);
                let fresh = servers.remove(at).restart(&mut dice, &clock);
                servers.insert(at, fresh);
            }
            1 => {
                let chance = [0, 30][dice.below(2)];
                disk.set_faults(Faults { read: chance, write: chance, ..Faults::default() });
                disk.set_now(Duration::from_secs(dice.below(100_000) as u64));
            }
            2 => {
                let names = disk.names();
                if !names.is_empty() {
                    let rot = [Rot::Flip, Rot::Cut, Rot::Swap, Rot::Gone][dice.below(4)];
                    disk.rot(&names[dice.below(names.len())], rot);
                }
            }
            _ => {}
        }
        clock.wait(Duration::from_millis(20));
        busy = false;
        for server in &mut servers {
            busy |= server.scheduler.turn();
        }
    }
    let mut reused = 0;
    for (index, (request, told)) in asked.iter().enumerate() {
        let (tokens, end, from_store) = &*told.lock().unwrap();
        reused += from_store;
        let mut session = alone.session(400).unwrap();
        sync(&mut session, alone, &request.prompt);
        let what = Generate { speculation: Speculation::Off, ..request.what.clone() };
        let (expected, report) = generate(&mut session, alone, &what);
        let expected: Vec<u32> = expected.iter().map(|token| token.id).collect();
        let whole = *end == format!("{:?}", report.finish);
        let place = format!("seed {seed}, request {index}: {end}");
        assert!(whole || end.contains("the engine is stopping"), "{place}");
        let count = if whole { expected.len() } else { tokens.len() };
        assert!(tokens[..] == expected[..count], "{place}: {tokens:?} but {expected:?}");
    }
    reused
}

#[test]
fn two_servers_on_one_faulty_folder_answer_as_lone_sessions_do() {
    let mut alone = engine_of(&tiny(24), EngineOptions { store_ram_bytes: 0, ..options() });
    let reused: usize = (0..8).map(|seed| simulate(seed, &mut alone)).sum();
    assert!(reused > 1500, "{reused} tokens came from stores");
}

/// Conversations come and go for 24 hours of the fake clock. Nothing grows.
#[test]
fn a_day_of_requests_stays_within_its_memory() {
    const RAM: u64 = 400_000;
    const DISK: u64 = 1_500_000;
    let (mut dice, disk, clock) = (Dice::new(1), SimDisk::new(1), FakeClock::default());
    let opts = EngineOptions { store_ram_bytes: RAM, store_disk_bytes: DISK, ..options() };
    let mut engine = engine_of(&tiny(24), opts);
    engine.set_disk(Arc::new(disk.clone()), Writing::Thread);
    let limits = Limits { sessions: 4, ..Limits::default() };
    let mut scheduler = Scheduler::new(engine, Box::new(clock.clone()), limits);
    let system = dice.tokens(200, 24);
    let mut talks: Vec<Vec<u32>> = vec![system.clone(); 12];
    let (mut id, mut reused, mut most) = (0, 0, (0, 0));
    // A request every six minutes.
    while clock.now() < Duration::from_secs(24 * 3600) {
        let at = dice.below(talks.len());
        if talks[at].len() > 500 {
            talks[at] = system.clone();
        }
        let own = 5 + dice.below(60);
        talks[at].extend(dice.tokens(own, 24));
        let what = Generate { tokens_max: Some(8), ..Generate::default() };
        let request = Request { prompt: talks[at].clone(), what, ..Request::default() };
        let told = Told::default();
        scheduler.submit(RequestId(id), request, sink(&told));
        id += 1;
        while scheduler.turn() {
            clock.wait(Duration::from_millis(30));
        }
        let (answer, end, from_store) = &*told.lock().unwrap();
        assert_eq!(end, "TokensMax");
        talks[at].extend(answer);
        reused += from_store;
        clock.wait(Duration::from_secs(360));
        disk.set_now(clock.now());
        let status = scheduler.source().store().status();
        most = (most.0.max(status.ram_bytes), most.1.max(disk.bytes()));
        assert!(status.ram_bytes <= RAM && disk.bytes() <= DISK, "{status:?}");
        assert!(status.ram_nodes < 200 && status.disk_nodes < 600, "{status:?}");
        assert_eq!(scheduler.status().session_bytes, 0);
    }
    assert!(id > 200 && reused > 40_000, "{id} requests, {reused} tokens reused");
    assert!(most.0 > RAM / 2 && most.1 > DISK / 2, "{most:?}: the limits were reached");
    let mut engine = scheduler.stop();
    engine.flush_store();
    let status = engine.store().status();
    assert_eq!((status.queued_bytes, status.problems.len()), (0, 0), "{status:?}");
}
