//! A device that fails in the middle of a step leaves sessions that go on when it works again.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{Dice, engine, logits, options, sync, tiny};
use ironstar_device::{
    AddToStreams, Arena, Attend, Backend, Buffer, Compress, Counters, Cpu, CpuConfig, Element,
    Embed, Error, Experts, GatherRows, HcHead, HcPost, HcPre, IndexSelect, KvRows, Matrix,
    MatrixSource, Project, ProjectGrouped, QueryHeads, RmsNorm, Rope, Route, Steer, Step,
    StoreWindow,
};
use ironstar_engine::scheduler::{Event, FakeClock, Limits, Request, RequestId, Scheduler};
use ironstar_engine::store::Writing;
use ironstar_engine::store::sim::SimDisk;
use ironstar_engine::{Blame, CancelFlag, Control, Engine, EngineOptions, Generate};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The CPU, but the operation that takes the fuse to 0 fails, and all after it until the fuse is
/// reset.
struct Faulty {
    cpu: Cpu,
    fuse: Fuse,
    kind: &'static str,
}

#[derive(Clone)]
struct Fuse(Arc<AtomicU64>, Arc<AtomicBool>);

impl Fuse {
    fn set(&self, operations: u64) {
        self.0.store(operations, Ordering::Relaxed);
    }

    /// The next step fails at its beginning, and no other.
    fn fail_a_step(&self) {
        self.1.store(true, Ordering::Relaxed);
    }

    fn mend(&self) {
        self.set(u64::MAX);
    }

    fn burn(&self) -> Result<(), Error> {
        let left = self.0.load(Ordering::Relaxed).saturating_sub(1);
        self.set(left);
        if left > 0 {
            return Ok(());
        }
        Err(Error::Memory { device: "faulty", what: "a test".into(), wanted: 1 })
    }
}

/// Operations that burn the fuse first.
macro_rules! burning {
    ($($name:ident: $args:ty),* $(,)?) => {
        $(fn $name(&mut self, a: &$args) -> Result<(), Error> {
            self.fuse.burn()?;
            self.cpu.$name(a)
        })*
    };
}

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }
    fn kind(&self) -> String {
        self.kind.to_owned()
    }
    fn counters(&self) -> Counters {
        self.cpu.counters()
    }
    fn arena(&mut self) -> Arena {
        self.cpu.arena()
    }
    fn alloc(&mut self, arena: Arena, element: Element, len: usize) -> Result<Buffer, Error> {
        self.cpu.alloc(arena, element, len)
    }
    fn release(&mut self, arena: Arena) {
        self.cpu.release(arena);
    }
    fn write(&mut self, to: Buffer, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.fuse.burn()?;
        self.cpu.write(to, offset, bytes)
    }
    fn read(&mut self, from: Buffer, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.fuse.burn()?;
        self.cpu.read(from, offset, bytes)
    }
    fn write_f32(&mut self, to: Buffer, offset: usize, values: &[f32]) -> Result<(), Error> {
        self.cpu.write_f32(to, offset, values)
    }
    fn read_f32(&mut self, from: Buffer, offset: usize, values: &mut [f32]) -> Result<(), Error> {
        self.fuse.burn()?;
        self.cpu.read_f32(from, offset, values)
    }
    fn matrix(&mut self, source: MatrixSource<'_>) -> Result<Matrix, Error> {
        self.cpu.matrix(source)
    }
    fn rope(&mut self, frequencies: &[f32]) -> Result<Rope, Error> {
        self.cpu.rope(frequencies)
    }
    fn begin(&mut self, step: &Step) -> Result<(), Error> {
        self.fuse.burn()?;
        if self.fuse.1.swap(false, Ordering::Relaxed) {
            return Err(Error::Memory { device: "faulty", what: "one step".into(), wanted: 1 });
        }
        self.cpu.begin(step)
    }
    fn finish(&mut self) -> Result<(), Error> {
        self.cpu.finish()
    }
    burning! {
        embed: Embed, hc_pre: HcPre, hc_post: HcPost, hc_head: HcHead, rms_norm: RmsNorm,
        project: Project<'_>, project_grouped: ProjectGrouped, query_heads: QueryHeads,
        kv_rows: KvRows,
        compress: Compress<'_>, index_select: IndexSelect<'_>, attend: Attend<'_>,
        store_window: StoreWindow<'_>, route: Route, experts: Experts, add_to_streams: AddToStreams,
        steer: Steer, gather_rows: GatherRows<'_>,
    }
}

fn faulty() -> (Engine, Fuse) {
    of_kind("faulty")
}

fn of_kind(kind: &'static str) -> (Engine, Fuse) {
    let fuse = Fuse(Arc::new(AtomicU64::new(u64::MAX)), Arc::default());
    let cpu = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let backend = Box::new(Faulty { cpu, fuse: fuse.clone(), kind });
    let (tiny, options) = (tiny(96), EngineOptions { checkpoint_spacing: 100, ..options() });
    let (model, drafter) = (tiny.gguf(), tiny.drafter());
    let engine = Engine::on_backend(backend, &model, Some(&drafter), options, &mut |_| {});
    (engine.unwrap(), fuse)
}

#[test]
fn a_failed_prompt_can_be_repeated() {
    let tokens = Dice::new(1).tokens(330, 96);
    let mut healthy = engine();
    let mut session = healthy.session(400).unwrap();
    sync(&mut session, &mut healthy, &tokens);
    let (wanted, state) = (logits(&session), session.snapshot(&mut healthy).unwrap());

    let (mut engine, fuse) = faulty();
    let mut dice = Dice::new(2);
    let (mut failures, flag) = (0, CancelFlag::default());
    for _ in 0..60 {
        engine.forget_checkpoints();
        let mut session = engine.session(400).unwrap();
        let half = dice.below(330);
        sync(&mut session, &mut engine, &tokens[..half]);
        for _ in 0..3 {
            fuse.set(1 + dice.below(160) as u64);
            if let Err(error) = session.sync(&mut engine, &tokens, &mut |_| {}, &flag) {
                assert_eq!(error.blame(), Blame::Environment);
                failures += 1;
            }
            fuse.mend();
        }
        sync(&mut session, &mut engine, &tokens);
        assert_eq!(logits(&session), wanted);
        assert!(session.snapshot(&mut engine).unwrap().state() == state.state());
    }
    assert!(failures > 50, "{failures} failures");
}

#[test]
fn a_failed_answer_can_be_continued() {
    let prompt = Dice::new(3).tokens(90, 96);
    let what = Generate { seed: 4, tokens_max: Some(40), ..Generate::default() };
    let (mut engine, fuse) = faulty();
    let mut session = engine.session(200).unwrap();
    sync(&mut session, &mut engine, &prompt);
    crate::common::generate(&mut session, &mut engine, &what);
    let wanted = session.tokens().to_vec();

    let (mut dice, flag, mut failures) = (Dice::new(5), CancelFlag::default(), 0);
    for speculation in [ironstar_engine::Speculation::Off, ironstar_engine::Speculation::Mtp] {
        for _ in 0..20 {
            sync(&mut session, &mut engine, &prompt);
            while session.tokens().len() < wanted.len() {
                let tokens_max = Some(wanted.len() - session.tokens().len());
                let what = Generate { tokens_max, speculation, ..what.clone() };
                fuse.set(200 + dice.below(3000) as u64);
                let mut on_token = |_: &ironstar_engine::Token| Control::Continue;
                let done = session.generate(&mut engine, &what, &mut on_token, &flag);
                failures += usize::from(done.is_err());
                fuse.mend();
            }
            assert_eq!(session.tokens(), wanted);
        }
    }
    assert!(failures > 20, "{failures} failures");
}

#[test]
fn a_failed_restore_leaves_a_session() {
    let (mut engine, fuse) = faulty();
    let tokens = Dice::new(6).tokens(150, 96);
    let mut session = engine.session(200).unwrap();
    sync(&mut session, &mut engine, &tokens);
    let (shot, wanted) = (session.snapshot(&mut engine).unwrap(), logits(&session));
    sync(&mut session, &mut engine, &[1, 2, 3]);
    for operations in 1..12 {
        fuse.set(operations);
        assert!(session.restore(&mut engine, &shot).is_err());
        fuse.mend();
        sync(&mut session, &mut engine, &tokens[..150]);
        assert_eq!(logits(&session), wanted);
    }
    fuse.mend();
    session.restore(&mut engine, &shot).unwrap();
    assert_eq!(logits(&session), wanted);
}

/// An engine that has stored this prompt.
fn stored(prompt: &[u32]) -> (Engine, Fuse) {
    let (mut engine, fuse) = faulty();
    let mut session = engine.session(400).unwrap();
    sync(&mut session, &mut engine, prompt);
    (engine, fuse)
}

#[test]
fn a_stored_state_whose_first_step_fails_is_set_aside_and_the_prompt_is_read() {
    let prompt = Dice::new(8).tokens(270, 96);
    let longer = [&prompt[..], &[4, 5, 6]].concat();
    let what = Generate { seed: 9, tokens_max: Some(20), ..Generate::default() };
    let (mut healthy, wanted) = (engine(), logits_of(&longer));
    let mut session = healthy.session(400).unwrap();
    sync(&mut session, &mut healthy, &prompt);
    let (answer, _) = crate::common::generate(&mut session, &mut healthy, &what);

    let (mut engine, fuse) = stored(&prompt);
    let mut session = engine.session(400).unwrap();
    fuse.fail_a_step();
    let report = sync(&mut session, &mut engine, &longer);
    assert_eq!((report.reused, report.evaluated), (0, 273), "read from the beginning");
    assert_eq!(logits(&session), wanted);
    let mut other = engine.session(400).unwrap();
    assert_eq!(sync(&mut other, &mut engine, &longer).reused, 273, "and stored anew");

    // Restored whole, with logits: the first step is that of an answer.
    let (mut engine, fuse) = stored(&prompt);
    let mut session = engine.session(400).unwrap();
    assert_eq!(sync(&mut session, &mut engine, &prompt).reused, 270);
    fuse.fail_a_step();
    assert!(crate::common::generate(&mut session, &mut engine, &what).0 == answer);

    // A failure that no stored state can be blamed for is told.
    engine.forget_checkpoints();
    let mut session = engine.session(400).unwrap();
    fuse.fail_a_step();
    assert!(session.sync(&mut engine, &prompt, &mut |_| {}, &CancelFlag::default()).is_err());
}

fn logits_of(tokens: &[u32]) -> Vec<u32> {
    let mut engine = engine();
    let mut session = engine.session(400).unwrap();
    sync(&mut session, &mut engine, tokens);
    logits(&session)
}

/// A state of one kind of device is not read on another: equal bits are promised on one kind only.
#[test]
fn kinds_of_devices_do_not_share_states() {
    let (disk, prompt) = (SimDisk::new(2), Dice::new(4).tokens(300, 96));
    let mut reused = |kind| {
        let (mut engine, _fuse) = of_kind(kind);
        engine.set_disk(Arc::new(disk.clone()), Writing::AtOnce);
        let mut session = engine.session(400).unwrap();
        sync(&mut session, &mut engine, &prompt).reused
    };
    assert_eq!(["card A", "card B", "cpu"].map(&mut reused), [0; 3]);
    assert_eq!(["card A", "card B", "cpu"].map(&mut reused), [300; 3]);
}

#[test]
fn a_request_survives_the_stored_state_that_fails() {
    let prompt = Dice::new(8).tokens(270, 96);
    for (others, extra) in [(0, 0), (0, 5), (2, 0), (2, 5)] {
        let (engine, fuse) = stored(&prompt);
        let clock = Box::new(FakeClock::default());
        let mut scheduler = Scheduler::new(engine, clock, Limits::default());
        let mut answers = Vec::new();
        let mut ask = |scheduler: &mut Scheduler<Engine>, prompt: &[u32], id: u64| {
            let told: Arc<Mutex<(Vec<u32>, String)>> = Arc::default();
            let what = Generate { seed: 9, tokens_max: Some(12), ..Generate::default() };
            let request = Request { prompt: prompt.to_vec(), what, ..Request::default() };
            let heard = told.clone();
            let sink = move |event: Event| {
                match event {
                    Event::Token(token) => heard.lock().unwrap().0.push(token.id),
                    Event::Done { finish, .. } => heard.lock().unwrap().1 = format!("{finish:?}"),
                    Event::Failed { failure, .. } => heard.lock().unwrap().1 = failure.to_string(),
                    _ => {}
                }
                Control::Continue
            };
            scheduler.submit(RequestId(id), request, Box::new(sink));
            answers.push((prompt.to_vec(), told));
        };
        (0..others).for_each(|id| ask(&mut scheduler, &Dice::new(20 + id).tokens(40, 96), id));
        (0..others).for_each(|_| assert!(scheduler.turn()));
        ask(&mut scheduler, &[&prompt[..], &vec![3; extra]].concat(), 9);
        fuse.fail_a_step();
        while scheduler.turn() {}
        for (prompt, told) in &answers {
            let (tokens, end) = &*told.lock().unwrap();
            assert_eq!(end, "TokensMax", "{others} others, {extra} more tokens");
            let mut healthy = crate::common::engine();
            let mut session = healthy.session(400).unwrap();
            sync(&mut session, &mut healthy, prompt);
            let what = Generate { seed: 9, tokens_max: Some(12), ..Generate::default() };
            let wanted = crate::common::generate(&mut session, &mut healthy, &what).0;
            assert_eq!(*tokens, wanted.iter().map(|t| t.id).collect::<Vec<_>>());
        }
    }
}
