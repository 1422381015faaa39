//! Many sessions in common steps: the answers of lone sessions, and weights that are read once.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{Dice, engine, engine_of, generate, options, sync, tiny};
use ironstar_engine::sampler::{Sampler, Settings};
use ironstar_engine::scheduler::{
    Clock, Constraint, Event, Facts, FakeClock, Limits, Request, RequestId, Scheduler, Sink,
    Source, Work,
};
use ironstar_engine::{
    CancelFlag, Control, DrafterChoice, Engine, EngineOptions, Error, Finish, Generate, Score,
    Scored, Session, Speculation, Token,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An engine whose steps take random times by a fake clock, so that slices have random lengths.
struct Timed {
    engine: Engine,
    clock: FakeClock,
    dice: Dice,
    /// Pieces of stored states that were put back.
    pieces: usize,
}

impl Source for Timed {
    type Session = Session;
    fn facts(&self) -> Facts {
        self.engine.facts()
    }
    fn session_bytes(&self, context: usize) -> u64 {
        self.engine.session_bytes(context)
    }
    fn open(&mut self, context: usize, tokens: &[u32], fresh: bool) -> Result<Session, Error> {
        Source::open(&mut self.engine, context, tokens, fresh)
    }
    fn arrive(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        short: bool,
    ) -> Result<bool, Error> {
        self.pieces += 1;
        self.clock.wait(Duration::from_millis(20 + self.dice.below(40) as u64));
        Source::arrive(&mut self.engine, session, tokens, short)
    }
    fn position(&self, session: &Session) -> usize {
        session.position()
    }
    fn logits<'s>(&self, session: &'s Session) -> Option<&'s [f32]> {
        session.logits()
    }
    fn guess(
        &mut self,
        session: &mut Session,
        next: u32,
        how: Speculation,
        most: usize,
    ) -> Result<Vec<u32>, Error> {
        self.engine.guess(session, next, how, most)
    }
    fn step(&mut self, work: &mut [Work<'_, Session>]) -> Result<Vec<f32>, Error> {
        let rows: usize = work.iter().map(|item| item.tokens.len()).sum();
        let factor = 1 + u32::try_from(self.dice.below(4)).unwrap();
        self.clock.wait(Duration::from_millis(40 + rows as u64) * factor);
        Source::step(&mut self.engine, work)
    }
    fn keep(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        logits: Option<&[f32]>,
    ) -> Result<(), Error> {
        Source::keep(&mut self.engine, session, tokens, logits)
    }
    fn mark(&mut self, session: &mut Session) -> Result<(), Error> {
        self.engine.mark(session)
    }
    fn close(&mut self, session: Session) {
        self.engine.close(session);
    }
}

fn timed(engine: Engine, clock: &FakeClock, seed: u64) -> Timed {
    Timed { engine, clock: clock.clone(), dice: Dice::new(seed), pieces: 0 }
}

/// Tokens of an answer, how it ended, and tokens of the prompt.
type Told = Arc<Mutex<(Vec<Token>, String, Vec<Token>)>>;

fn sink(told: &Told) -> Sink {
    let told = told.clone();
    Box::new(move |event| {
        let mut told = told.lock().unwrap();
        match event {
            Event::Token(token) => told.0.push(token),
            Event::Prompt(tokens) => told.2.extend(tokens),
            Event::Done { finish, .. } => told.1 = format!("{finish:?}"),
            Event::Failed { failure, .. } => told.1 = format!("failed: {failure}"),
            Event::Queued { .. } | Event::Progress { .. } => {}
        }
        Control::Continue
    })
}

fn any_request(dice: &mut Dice, prompts: &[Vec<u32>]) -> Request {
    let mut prompt = prompts[dice.below(prompts.len())].clone();
    prompt.truncate(1 + dice.below(prompt.len()));
    let (own, kinds) = (dice.below(40), [Speculation::Off, Speculation::Auto, Speculation::Mtp]);
    prompt.extend(dice.tokens(own, 24));
    let settings = Settings {
        temperature: [0.0, 1.0][dice.below(2)],
        logprobs: [None, Some(2)][dice.below(2)],
        ..Settings::default()
    };
    let what = Generate {
        settings,
        seed: dice.below(1000) as u64,
        tokens_max: Some(dice.below(40)),
        stop: dice.tokens(1, 96),
        speculation: if dice.below(4) == 0 { Speculation::Lookup } else { kinds[dice.below(3)] },
        ..Generate::default()
    };
    let deadline =
        (dice.below(6) == 0).then(|| Duration::from_millis(200 + dice.below(3000) as u64));
    let prompt_logprobs = (dice.below(4) == 0).then(|| dice.below(3));
    let side = dice.below(4) == 0;
    Request { prompt, what, side, deadline, prompt_logprobs, ..Request::default() }
}

/// Log probabilities of a prompt's tokens by another way: a session that scores.
fn prompt_scores(engine: &mut Engine, prompt: &[u32], alternatives: usize) -> Vec<Token> {
    let (mut session, mut sampler) = (engine.session(400).unwrap(), Sampler::default());
    let mut told = vec![Token { id: prompt[0], position: 0, logprob: None, top: Vec::new() }];
    let mut on_row = |row: Scored<'_>| {
        let Some(id) = row.next else { return Control::Continue };
        let settings = Settings { logprobs: Some(alternatives), ..Settings::greedy() };
        let position = row.position + 1;
        let top = sampler.sample(row.logits, &settings, 0, position).unwrap().top;
        let normal = sampler.logprobs(row.logits, position).unwrap();
        let logprob = Some(normal.of(row.logits[id as usize]));
        told.push(Token { id, position, logprob, top });
        Control::Continue
    };
    let cancel = CancelFlag::default();
    session.score(engine, prompt, Score::default(), &mut on_row, &cancel).unwrap();
    told
}

/// Allows tokens by how many there are before: a token that was right may be wrong one later.
#[derive(Clone)]
struct Thirds(u32);

impl Thirds {
    fn may(&self, token: u32, later: u32) -> bool {
        !(token + self.0 + later).is_multiple_of(3)
    }
}

impl Constraint for Thirds {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        for (token, logit) in (0..).zip(logits) {
            if !self.may(token, 0) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }
    fn accept(&mut self, token: u32) -> Result<(), String> {
        let may = self.may(token, 0);
        self.0 += 1;
        may.then_some(()).ok_or_else(|| format!("{token} may not follow"))
    }
    fn allowed(&mut self, guesses: &[u32]) -> usize {
        (0..).zip(guesses).take_while(|(later, guess)| self.may(**guess, *later)).count()
    }
    fn duplicate(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_constraint_holds_and_guesses_change_nothing() {
    let mut dice = Dice::new(12);
    let prompt = dice.tokens(30, 24);
    let mut answers = Vec::new();
    for speculation in [Speculation::Off, Speculation::Auto, Speculation::Mtp, Speculation::Lookup]
    {
        let scheduler_engine = engine_of(&tiny(24), options());
        let clock = Box::new(FakeClock::default());
        let mut scheduler = Scheduler::new(scheduler_engine, clock, Limits::default());
        let what = Generate { tokens_max: Some(80), seed: 3, speculation, ..Generate::default() };
        let constraint: Option<Box<dyn Constraint>> = Some(Box::new(Thirds(0)));
        let request = Request { prompt: prompt.clone(), what, constraint, ..Request::default() };
        let told = Told::default();
        scheduler.submit(RequestId(0), request, sink(&told));
        while scheduler.turn() {}
        let told = told.lock().unwrap();
        assert_eq!(told.1, "TokensMax");
        let ids: Vec<u32> = told.0.iter().map(|token| token.id).collect();
        let mut thirds = Thirds(0);
        assert!(ids.iter().all(|&id| thirds.accept(id).is_ok()), "{ids:?}");
        answers.push(ids);
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
}

/// One random run; each answer is that of a lone session, or the start of it where it was cut.
fn simulate(seed: u64) {
    let mut dice = Dice::new(seed);
    let rows = 2 + dice.below(30);
    let opts = EngineOptions { step_rows: rows, checkpoint_spacing: 50, ..options() };
    let clock = FakeClock::default();
    let timed = timed(engine_of(&tiny(24), opts), &clock, seed);
    let bytes = timed.session_bytes(260) * (1 + dice.below(4) as u64);
    let limits = Limits { sessions: 1 + dice.below(6), session_bytes: bytes, ..Limits::default() };
    let mut scheduler = Scheduler::new(timed, Box::new(clock), limits);
    let prompts: Vec<Vec<u32>> = (0..3).map(|_| dice.tokens(180, 24)).collect();
    let mut asked: Vec<(Request, Told)> = Vec::new();
    while asked.len() < 14 || scheduler.turn() {
        if asked.len() < 14 && dice.below(6) == 0 {
            let (request, told) = (any_request(&mut dice, &prompts), Told::default());
            scheduler.submit(RequestId(asked.len() as u64), request.clone(), sink(&told));
            asked.push((request, told));
        } else if asked.len() < 14 {
            scheduler.turn();
        }
        if dice.below(60) == 0 && !asked.is_empty() {
            scheduler.cancel(RequestId(dice.below(asked.len()) as u64));
        }
        assert!(scheduler.status().session_bytes <= bytes);
    }
    let mut alone = engine_of(&tiny(24), options());
    for (index, (request, told)) in asked.iter().enumerate() {
        let (tokens, end, scored) = &*told.lock().unwrap();
        alone.forget_checkpoints();
        let mut session = alone.session(400).unwrap();
        sync(&mut session, &mut alone, &request.prompt);
        let what = Generate { speculation: Speculation::Off, ..request.what.clone() };
        let (expected, report) = generate(&mut session, &mut alone, &what);
        let place = format!("seed {seed}, request {index}: {end}");
        let whole = *end == format!("{:?}", report.finish);
        assert!(
            whole || end == "Cancelled" || end.contains("were allowed"),
            "{place}, alone {:?}",
            report.finish
        );
        let count = if whole { expected.len() } else { tokens.len() };
        assert!(tokens[..] == expected[..count], "{place}: {tokens:?} but {expected:?}");
        let scores = request.prompt_logprobs.is_some();
        if let Some(alternatives) = request.prompt_logprobs.filter(|_| whole) {
            assert_eq!(
                *scored,
                prompt_scores(&mut alone, &request.prompt, alternatives),
                "{place}"
            );
        }
        assert!(scores || scored.is_empty(), "{place}: nobody asked for these");
    }
}

#[test]
fn sessions_in_common_steps_give_the_answers_of_lone_ones() {
    (0..24).for_each(simulate);
}

#[test]
fn a_stored_state_comes_back_in_pieces_while_answers_go_on() {
    let (clock, mut dice) = (FakeClock::default(), Dice::new(8));
    let source = timed(engine_of(&tiny(24), options()), &clock, 8);
    let mut scheduler = Scheduler::new(source, Box::new(clock), Limits::default());
    let ask = |scheduler: &mut Scheduler<Timed>, id: u64, prompt: &[u32], most: usize| {
        let what = Generate { tokens_max: Some(most), ..Generate::default() };
        let request = Request { prompt: prompt.to_vec(), what, ..Request::default() };
        let told = Told::default();
        scheduler.submit(RequestId(id), request, sink(&told));
        told
    };
    let count = |told: &Told| told.lock().unwrap().0.len();
    let prompt = dice.tokens(1280, 24);
    let first = ask(&mut scheduler, 0, &prompt, 3);
    while scheduler.turn() {}
    let stream = ask(&mut scheduler, 1, &dice.tokens(10, 24), 300);
    while count(&stream) < 20 {
        assert!(scheduler.turn());
    }
    let before = (count(&stream), scheduler.source().pieces, scheduler.status().prompt_rows);
    let again = ask(&mut scheduler, 2, &prompt, 3);
    let mut turns = 0;
    while count(&again) == 0 {
        let given = count(&stream);
        assert!(scheduler.turn());
        assert!(count(&stream) > given, "the answer waits for a stored state");
        turns += 1;
    }
    // Ten blocks, two at a time, and the checkpoint.
    assert_eq!(scheduler.source().pieces - before.1, 6);
    assert!(turns > 2 && count(&stream) - before.0 == turns, "{turns} turns");
    assert_eq!(scheduler.status().prompt_rows, before.2, "nothing is read again");
    // One that goes away on its way ends before the next piece.
    let third = ask(&mut scheduler, 3, &prompt, 3);
    scheduler.turn();
    scheduler.cancel(RequestId(3));
    let pieces = scheduler.source().pieces;
    scheduler.turn();
    assert_eq!(scheduler.source().pieces, pieces);
    assert_eq!(third.lock().unwrap().1, "Cancelled");
    while scheduler.turn() {}
    assert_eq!(first.lock().unwrap().0, again.lock().unwrap().0);
}

/// A scheduler on a tiny engine, with answers of this many sessions running, and the bytes of dense
/// and expert matrices that one step of theirs reads.
fn bytes_of_a_step(prompts: &[Vec<u32>]) -> (u64, u64) {
    let clock = FakeClock::default();
    let limits = Limits { sessions: 16, ..Limits::default() };
    let lone = EngineOptions { drafter: DrafterChoice::None, ..options() };
    let mut scheduler = Scheduler::new(engine_of(&tiny(96), lone), Box::new(clock), limits);
    for (id, prompt) in prompts.iter().enumerate() {
        let what = Generate {
            settings: Settings::greedy(),
            tokens_max: Some(60),
            speculation: Speculation::Off,
            ..Generate::default()
        };
        let request = Request { prompt: prompt.clone(), what, ..Request::default() };
        scheduler.submit(RequestId(id as u64), request, sink(&Told::default()));
    }
    while scheduler.status().prompt_rows < prompts.iter().map(|p| p.len() as u64).sum() {
        assert!(scheduler.turn());
    }
    let (before, steps) = (scheduler.source().counters(), scheduler.status());
    assert!(scheduler.turn());
    let after = scheduler.source().counters();
    assert_eq!(after.steps - before.steps, 1, "one pass for all");
    assert_eq!(after.rows - before.rows, prompts.len() as u64);
    assert_eq!(scheduler.status().answer_rows - steps.answer_rows, prompts.len() as u64);
    // Each row looks up its own row of the embedding, of 64 floats; that is not a product.
    let looked_up = prompts.len() as u64 * 64 * 4;
    (after.dense_bytes - before.dense_bytes - looked_up, after.expert_bytes - before.expert_bytes)
}

#[test]
fn a_step_of_many_reads_dense_weights_once_and_each_expert_once() {
    let mut dice = Dice::new(5);
    // Short, so that the first step reads all of them and equal sessions stay side by side.
    let prompts: Vec<Vec<u32>> = (0..8).map(|_| dice.tokens(4, 96)).collect();
    let one = bytes_of_a_step(&prompts[..1]);
    assert!(one.0 > 0 && one.1 > 0);
    for count in [2, 5, 8] {
        let many = bytes_of_a_step(&prompts[..count]);
        assert_eq!(many.0, one.0, "{count} sessions: dense bytes");
        // Two of four experts are chosen a row, so all experts are twice what one row reads; each
        // once is no more than that, however many rows choose it.
        assert!(many.1 >= one.1 && many.1 <= 2 * one.1, "{count}: {} of {}", many.1, one.1);
        // The same rows choose the same experts: nothing is read a second time.
        let same = bytes_of_a_step(&vec![prompts[0].clone(); count]);
        assert_eq!(same, one, "{count} equal sessions");
    }
}

#[test]
fn a_prompt_that_another_one_read_is_not_read_again() {
    let clock = FakeClock::default();
    let mut scheduler = Scheduler::new(engine(), Box::new(clock), Limits::default());
    let prompt = Dice::new(3).tokens(200, 96);
    let mut answers = Vec::new();
    for id in 0..2 {
        let what = Generate { tokens_max: Some(5), ..Generate::default() };
        let request = Request { prompt: prompt.clone(), what, ..Request::default() };
        let told = Told::default();
        scheduler.submit(RequestId(id), request, sink(&told));
        while scheduler.turn() {}
        answers.push(told);
    }
    assert_eq!(scheduler.status().prompt_rows, 200);
    let (first, second) = (answers[0].lock().unwrap(), answers[1].lock().unwrap());
    assert_eq!(first.0, second.0);
    assert_eq!(first.1, format!("{:?}", Finish::TokensMax));
}
