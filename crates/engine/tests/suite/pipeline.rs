//! An engine whose model lies on several nodes, here threads of this process: sessions and answers
//! are those of one machine, and go on from what is stored when a node is lost.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{Dice, engine, generate, logits, options, sync, tiny};
use ironstar_device::{
    Cpu, CpuConfig, Exchange, ExchangeError, GateCounts, GateKind, Local, LocalGroup,
};
use ironstar_engine::{Blame, CancelFlag, Engine, EngineOptions, Generate, Token};
use ironstar_model::{Followed, Model, Options, Pipeline, Stages, Wire};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Long enough for a busy machine: only what hangs meets it.
const DEADLINE: Duration = Duration::from_secs(240);
const STEP_ROWS: usize = 64;

/// A node that ends at the next streams after it is told to.
struct Mortal(Local, Arc<AtomicBool>);

impl Mortal {
    fn end() -> ExchangeError {
        ExchangeError::Misuse { found: "the end".to_owned(), wanted: "nothing".to_owned() }
    }
}

impl Exchange for Mortal {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn ranks(&self) -> usize {
        self.0.ranks()
    }
    fn post(&mut self, gate: GateKind, mine: &[u8]) -> Result<(), ExchangeError> {
        self.0.post(gate, mine)
    }
    fn wait(&mut self, all: &mut [u8]) -> Result<(), ExchangeError> {
        self.0.wait(all)
    }
    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<(), ExchangeError> {
        self.0.broadcast(bytes)
    }
    fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), ExchangeError> {
        self.0.send(to, bytes)
    }
    fn receive(&mut self, from: usize) -> Result<Vec<u8>, ExchangeError> {
        if self.1.load(Ordering::Relaxed) { Err(Mortal::end()) } else { self.0.receive(from) }
    }
    fn abort(&mut self, reason: &str) {
        self.0.abort(reason);
    }
    fn reform(&mut self) -> Result<u64, ExchangeError> {
        if self.1.load(Ordering::Relaxed) { Err(Mortal::end()) } else { self.0.reform() }
    }
    fn epoch(&self) -> u64 {
        self.0.epoch()
    }
    fn counts(&self) -> GateCounts {
        self.0.counts()
    }
}

/// Follows until rank 0 dismisses it, or it is told to end.
fn follow(exchange: impl Exchange + 'static) {
    let dies = |error: &ExchangeError| *error == Mortal::end();
    let pipeline = Pipeline::hear(Box::new(exchange), &mut |error| !dies(error)).unwrap();
    let mut cpu = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let tiny = tiny(96);
    let (gguf, drafter) = (tiny.gguf(), tiny.drafter());
    let options = Options { step_rows_max: STEP_ROWS, ..Options::default() };
    let drafter = Some(&drafter);
    let node = Some(pipeline);
    let mut model = Model::load_node(&gguf, drafter, &mut cpu, options, node, &mut |_| {}).unwrap();
    let mut on_event = |event| match event {
        Followed::Broken(error) | Followed::Waiting(error) => !dies(&error),
        Followed::Epoch(_) => true,
    };
    let ended = model.follow(&mut cpu, &mut on_event);
    assert!(ended.is_ok() || ended.is_err_and(|error| error.to_string().contains("the end")));
}

/// Rank 0 of nodes with a layer each.
fn lead(local: Local) -> Engine {
    let stages = Stages::parse("0,1,2").unwrap();
    let pipeline = Pipeline::lead(Box::new(local), stages, Wire::F32).unwrap();
    let tiny = tiny(96);
    let (gguf, drafter) = (tiny.gguf(), tiny.drafter());
    let options = EngineOptions { checkpoint_spacing: 100, step_rows: STEP_ROWS, ..options() };
    let node = (pipeline, 0);
    let mut engine =
        Engine::on_pipeline(node, &gguf, Some(&drafter), options, &mut |_| {}).unwrap();
    engine.meet(DEADLINE).unwrap();
    engine
}

#[test]
fn answers_are_those_of_one_machine() {
    let tokens = Dice::new(5).tokens(330, 96);
    let what = Generate { seed: 4, tokens_max: Some(30), ..Generate::default() };
    let answer = |engine: &mut Engine| {
        let mut session = engine.session(400).unwrap();
        sync(&mut session, engine, &tokens);
        let read = logits(&session);
        let state = session.snapshot(engine).unwrap();
        let (tokens, _) = generate(&mut session, engine, &what);
        session.restore(engine, &state).unwrap();
        let (again, _) = generate(&mut session, engine, &what);
        let ids =
            |tokens: Vec<Token>| -> Vec<u32> { tokens.iter().map(|token| token.id).collect() };
        let (tokens, again) = (ids(tokens), ids(again));
        assert_eq!(tokens, again, "after the snapshot");
        (read, state.state().to_vec(), tokens)
    };
    let wanted = answer(&mut engine());
    let group = LocalGroup::new(3, DEADLINE);
    thread::scope(|scope| {
        for rank in [1, 2] {
            let local = group.join(rank).unwrap();
            scope.spawn(move || follow(local));
        }
        let mut engine = lead(group.join(0).unwrap());
        assert!(answer(&mut engine) == wanted);
    });
}

#[test]
fn a_lost_node_fails_one_request_and_sessions_go_on_from_the_store() {
    let tokens = Dice::new(6).tokens(330, 96);
    let wanted = {
        let mut engine = engine();
        let mut session = engine.session(400).unwrap();
        sync(&mut session, &mut engine, &tokens);
        logits(&session)
    };
    let group = LocalGroup::new(3, DEADLINE);
    thread::scope(|scope| {
        let ends = Arc::new(AtomicBool::new(false));
        let mortal = Mortal(group.join(1).unwrap(), ends.clone());
        let victim = scope.spawn(move || follow(mortal));
        let local = group.join(2).unwrap();
        scope.spawn(move || follow(local));
        let mut engine = lead(group.join(0).unwrap());
        let mut idle = engine.session(400).unwrap();
        sync(&mut idle, &mut engine, &tokens[..250]);
        let mut session = engine.session(400).unwrap();
        sync(&mut session, &mut engine, &tokens[..250]);

        ends.store(true, Ordering::Relaxed);
        let failed = session.sync(&mut engine, &tokens, &mut |_| {}, &CancelFlag::default());
        let error = failed.expect_err("node 1 has ended");
        assert_eq!(error.blame(), Blame::Environment);
        assert!(error.to_string().contains("rank 1 is lost"), "{error}");
        victim.join().unwrap();
        let local = group.join(1).unwrap();
        scope.spawn(move || follow(local));

        for session in [&mut session, &mut idle] {
            let report = sync(session, &mut engine, &tokens);
            assert_eq!(logits(session), wanted);
            assert!(report.reused >= 128, "it goes on from a stored state: {report:?}");
        }
    });
}
