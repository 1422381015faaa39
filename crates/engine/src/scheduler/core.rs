//! The scheduler itself: a machine that takes one turn after the other.

use super::active::{Active, Given, Item};
use super::clock::Clock;
use super::pacer::Pacer;
use super::request::{Event, Failure, Request, RequestId, Sink, Stats};
use super::source::{Facts, Made, Rows, Source, Work};
use crate::sampler::{Counts, Sampler};
use crate::speculation::{CostModel, Cycle, Proposal, Wish, propose};
use crate::{Control, Error, Finish, Speculation};
use ironstar_device::Draw;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Side requests that may pass the same waiting one.
const SIDE_PASSES_MAX: usize = 4;
/// Rows of a slice that are scored: each has logits of the whole vocabulary.
const SCORED_ROWS_MAX: usize = 64;

/// What a scheduler may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most sessions at a time; at least one row of a step is left for prompts, so no more than
    /// the rows of a step less one.
    pub sessions: usize,
    /// Most requests that wait.
    pub queue: usize,
    /// Most memory of all sessions, in bytes.
    pub session_bytes: u64,
    /// Most tokens of a session; planned for a request that names no limit.
    pub context: usize,
    /// Longest step where no answer runs.
    pub step: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            sessions: 8,
            queue: 256,
            session_bytes: 4 << 30,
            context: usize::MAX,
            step: Duration::from_secs(1),
        }
    }
}

/// What a scheduler is doing, and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Requests that wait.
    pub queued: usize,
    /// Requests with a session.
    pub running: usize,
    /// Memory planned for those, in bytes.
    pub session_bytes: u64,
    /// Steps so far.
    pub steps: u64,
    /// Rows of prompts in them.
    pub prompt_rows: u64,
    /// Rows of answers, guesses included.
    pub answer_rows: u64,
}

struct Waiting {
    id: RequestId,
    request: Request,
    sink: Sink,
    received: Duration,
    context: usize,
    bytes: u64,
    passed: usize,
    told: usize,
}

/// Requests on one source. It owns the source, and does nothing but in [`Scheduler::turn`].
pub struct Scheduler<S: Source> {
    source: S,
    facts: Facts,
    clock: Box<dyn Clock>,
    limits: Limits,
    sampler: Sampler,
    pacer: Pacer,
    queue: VecDeque<Waiting>,
    active: Vec<Active<S::Session>>,
    /// After a step of several failed, each of these is tried alone.
    suspects: VecDeque<RequestId>,
    turns: u64,
    status: Arc<Mutex<Status>>,
    done: Status,
    /// What guessing cost and gained in the last answer that was alone.
    costs: CostModel,
    /// When the last step gave tokens of answers, as long as there are any.
    told: Option<Duration>,
}

/// When a step began, and how long after the tokens before, if there were any.
#[derive(Clone, Copy)]
struct Begin {
    at: Duration,
    between: Option<Duration>,
}

impl<S: Source> Scheduler<S> {
    /// A scheduler without requests.
    pub fn new(source: S, clock: Box<dyn Clock>, limits: Limits) -> Self {
        let facts = source.facts();
        let sessions = limits.sessions.min(facts.step_rows.saturating_sub(1)).max(1);
        let context = limits.context.min(facts.context);
        let limits = Limits { sessions, context, ..limits };
        Scheduler {
            source,
            facts,
            clock,
            limits,
            sampler: Sampler::default(),
            pacer: Pacer::new(limits.step),
            queue: VecDeque::new(),
            active: Vec::new(),
            suspects: VecDeque::new(),
            turns: 0,
            status: Arc::default(),
            done: Status::default(),
            costs: CostModel::default(),
            told: None,
        }
    }

    /// What it is doing.
    #[must_use]
    pub fn status(&self) -> Status {
        let session_bytes = self.active.iter().map(|a| a.bytes).sum();
        Status { queued: self.queue.len(), running: self.active.len(), session_bytes, ..self.done }
    }

    pub(super) fn shared_status(&self) -> Arc<Mutex<Status>> {
        self.status.clone()
    }

    /// Where tokens come from.
    #[must_use]
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Ends all requests, and gives the source back.
    pub fn stop(mut self) -> S {
        for mut waiting in self.queue.drain(..) {
            let (prompt, queued) = (waiting.request.prompt.len(), self.clock.now());
            let queued = queued.saturating_sub(waiting.received);
            let stats = Stats { prompt, queued, ..Stats::default() };
            (waiting.sink)(Event::Failed { failure: Failure::Stopped, stats });
        }
        for mut active in self.active.drain(..) {
            let stats = active.stats;
            (active.sink)(Event::Failed { failure: Failure::Stopped, stats });
            self.source.close(active.session);
        }
        self.source
    }

    /// Takes a request into the queue, or refuses it; either is told to the sink.
    pub fn submit(&mut self, id: RequestId, mut request: Request, mut sink: Sink) {
        let checked = self.check(&request).map(|plan| self.by_text(&mut request).unwrap_or(plan));
        match checked {
            Err(failure) => {
                let stats = Stats { prompt: request.prompt.len(), ..Stats::default() };
                sink(Event::Failed { failure, stats });
            }
            Ok((context, bytes)) => {
                let (received, ahead) = (self.clock.now(), self.queue.len());
                if sink(Event::Queued { ahead }) == Control::Stop {
                    request.cancel.raise();
                }
                let (passed, told) = (0, ahead);
                self.queue.push_back(Waiting {
                    id,
                    request,
                    sink,
                    received,
                    context,
                    bytes,
                    passed,
                    told,
                });
            }
        }
        self.publish();
    }

    /// Gives a request other tokens of the same text where that saves work, and what it needs then.
    fn by_text(&mut self, request: &mut Request) -> Option<(usize, u64)> {
        if !request.is_text || request.prompt_logprobs.is_some() {
            return None;
        }
        let known = guarded(|| Ok(self.source.same_text(&request.prompt))).ok()??;
        let given = std::mem::replace(&mut request.prompt, known);
        let plan = self.check(request).ok();
        if plan.is_none() {
            request.prompt = given;
        }
        plan
    }

    /// Ends a request before the next step.
    pub fn cancel(&mut self, id: RequestId) {
        let waiting = self.queue.iter().filter(|w| w.id == id).map(|w| &w.request);
        let active = self.active.iter().filter(|a| a.id == id).map(|a| &a.request);
        waiting.chain(active).for_each(|request| request.cancel.raise());
    }

    /// Most tokens of a session whose memory may be had; 0 if there is none for any.
    pub fn session_tokens_max(&self) -> usize {
        let fits = |tokens| self.source.session_bytes(tokens) <= self.limits.session_bytes;
        let (mut most, mut beyond) = (0, self.limits.context.saturating_add(1));
        // More tokens never take less memory.
        while beyond - most > 1 {
            let middle = most + (beyond - most) / 2;
            *(if fits(middle) { &mut most } else { &mut beyond }) = middle;
        }
        most
    }

    /// Tokens and bytes that a request needs, if it can be answered at all.
    fn check(&self, request: &Request) -> Result<(usize, u64), Failure> {
        let (what, prompt) = (&request.what, &request.prompt);
        what.settings.check()?;
        what.adjust.check(self.facts.vocabulary)?;
        if prompt.is_empty() {
            return Err(Error::Empty("generate").into());
        }
        let needs = matches!(what.speculation, Speculation::Mtp | Speculation::Dspark);
        if needs && !self.facts.drafter {
            return Err(Error::NoDrafter.into());
        }
        let vocabulary = self.facts.vocabulary;
        if let Some(&token) = prompt.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(Error::from(ironstar_model::Error::Token { token, vocabulary }).into());
        }
        let most = self.limits.context;
        if prompt.len() > most {
            let (wanted, context) = (prompt.len(), most);
            return Err(Error::from(ironstar_model::Error::Context { wanted, context }).into());
        }
        let context = what.tokens_max.map_or(most, |t| prompt.len().saturating_add(t).min(most));
        let (needed, budget) = (self.source.session_bytes(context), self.limits.session_bytes);
        if needed > budget {
            return Err(Failure::Memory { context, needed, budget });
        }
        if self.queue.len() >= self.limits.queue {
            let (waiting, most) = (self.queue.len(), self.limits.queue);
            return Err(Failure::QueueFull { waiting, most });
        }
        Ok((context, needed))
    }

    /// Ends what is cancelled or late, admits what fits, and makes one step of all rows. False if
    /// there was nothing to do: nothing waits and nothing runs.
    pub fn turn(&mut self) -> bool {
        self.turns += 1;
        self.sweep();
        self.admit();
        self.arrive();
        self.step();
        if self.active.is_empty() {
            self.told = None;
        }
        self.publish();
        !(self.queue.is_empty() && self.active.is_empty())
    }

    /// Whether answers wait for their next step, so that what is not urgent should wait for it.
    pub(super) fn is_due(&self) -> bool {
        let answers = self.active.iter().filter(|active| active.last_token.is_some()).count();
        let since = self.told.map(|told| self.clock.now().saturating_sub(told));
        since.is_some_and(|since| self.pacer.is_due(answers, since))
    }

    fn publish(&self) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = self.status();
    }

    fn sweep(&mut self) {
        let now = self.clock.now();
        for waiting in std::mem::take(&mut self.queue) {
            match verdict(&waiting.request, waiting.received, now, 0) {
                None => self.queue.push_back(waiting),
                Some(outcome) => {
                    let prompt = waiting.request.prompt.len();
                    let queued = now.saturating_sub(waiting.received);
                    tell(waiting.sink, outcome, Stats { prompt, queued, ..Stats::default() });
                }
            }
        }
        for index in (0..self.active.len()).rev() {
            let active = &self.active[index];
            let tokens = active.stats.tokens;
            if let Some(outcome) = verdict(&active.request, active.received, now, tokens) {
                self.finish(index, outcome);
            }
        }
    }

    /// Ends an active request: tells it, and frees its session.
    fn finish(&mut self, index: usize, outcome: Result<Finish, Failure>) {
        let active = self.active.remove(index);
        let now = self.clock.now();
        let mut stats = active.stats;
        match active.last_token {
            None => stats.reading = now.saturating_sub(active.admitted),
            Some(_) => {
                let since = active.admitted + stats.reading;
                stats.answering = now.saturating_sub(since);
            }
        }
        // After a panic nothing of the session is touched again.
        let healthy = !matches!(outcome, Err(Failure::Panic(_)));
        tell(active.sink, outcome, stats);
        self.suspects.retain(|id| *id != active.id);
        if healthy {
            self.source.close(active.session);
        }
    }

    /// Opens sessions in the order of the queue, as long as there is room.
    fn admit(&mut self) {
        while let Some(at) = self.next_waiting() {
            for waiting in self.queue.iter_mut().take(at) {
                waiting.passed += 1;
            }
            let Some(waiting) = self.queue.remove(at) else { return };
            self.open(waiting);
        }
        for (ahead, waiting) in self.queue.iter_mut().enumerate() {
            if waiting.told != ahead {
                waiting.told = ahead;
                if (waiting.sink)(Event::Queued { ahead }) == Control::Stop {
                    waiting.request.cancel.raise();
                }
            }
        }
    }

    /// The first in the queue if it fits, else the first side request that fits and may pass.
    fn next_waiting(&self) -> Option<usize> {
        let used: u64 = self.active.iter().map(|a| a.bytes).sum();
        let sides = self.active.iter().filter(|a| a.request.side).count();
        let memory = |w: &Waiting| used.saturating_add(w.bytes) <= self.limits.session_bytes;
        let head = self.queue.front()?;
        let room = self.active.len() < self.limits.sessions;
        if room && memory(head) {
            return Some(0);
        }
        // One more than the sessions, so that a title does not wait for a long answer's end.
        let side_room = self.active.len() < (self.limits.sessions + 1).min(self.rows_less_one());
        if sides > 0 || !side_room {
            return None;
        }
        let may_pass = self.queue.iter().take_while(|w| w.passed < SIDE_PASSES_MAX).count();
        let within = self.queue.iter().take(may_pass + 1);
        within.enumerate().find(|(_, w)| w.request.side && memory(w)).map(|(at, _)| at)
    }

    fn rows_less_one(&self) -> usize {
        self.facts.step_rows.saturating_sub(1).max(1)
    }

    fn open(&mut self, waiting: Waiting) {
        let Waiting { id, request, sink, received, context, bytes, .. } = waiting;
        let now = self.clock.now();
        let mut stats = Stats { prompt: request.prompt.len(), ..Stats::default() };
        stats.queued = now.saturating_sub(received);
        // What is there already has no logits of the rows before.
        let fresh = request.prompt_logprobs.is_some();
        let session = match guarded(|| self.source.open(context, &request.prompt, fresh)) {
            Ok(session) => session,
            Err(failure) => return tell(sink, Err(failure), stats),
        };
        let what = &request.what;
        let how = what.speculation;
        let counts = if what.adjust.has_penalties() {
            Counts::of_prompt(&request.prompt)
        } else {
            Counts::default()
        };
        let active = Active {
            id,
            timeline: request.prompt.clone(),
            request,
            sink,
            session,
            arrives: true,
            context,
            bytes,
            how,
            costs: self.costs.heir(),
            proposal: Proposal::default(),
            counts,
            stats,
            received,
            admitted: now,
            last_token: None,
            last_slice: self.turns,
            scored: 0,
        };
        self.active.push(active);
    }

    /// Puts back what is stored for new requests: in short pieces, while answers have the time, or
    /// one piece of each.
    fn arrive(&mut self) {
        let short = self.told.is_some();
        for index in (0..self.active.len()).rev() {
            while self.active[index].arrives {
                let (active, source) = (&mut self.active[index], &mut self.source);
                let (session, tokens) = (&mut active.session, &active.request.prompt);
                match guarded(|| source.arrive(session, tokens, short)) {
                    Ok(true) => self.arrived(index),
                    Ok(false) if !short || self.is_due() => break,
                    Ok(false) => {}
                    Err(failure) => {
                        self.finish(index, Err(failure));
                        break;
                    }
                }
                if index >= self.active.len() {
                    break;
                }
            }
        }
    }

    /// A request's prompt is read from where its session is now; where that is its end, the first
    /// token is drawn.
    fn arrived(&mut self, index: usize) {
        let (active, now) = (&mut self.active[index], self.clock.now());
        active.arrives = false;
        let position = self.source.position(&active.session);
        active.stats.reused = position;
        if active.progress(position) == Control::Stop {
            active.request.cancel.raise();
        }
        let whole = self.source.logits(&active.session).map(<[f32]>::to_vec);
        let whole = whole.filter(|_| position == active.timeline.len());
        let drawn = match whole.filter(|_| !active.request.cancel.is_raised()) {
            Some(logits) => active.draw(&mut self.sampler, Given::Logits(&logits), &[], now).1,
            None => Ok(None),
        };
        match drawn {
            Ok(None) => {}
            Ok(Some(finish)) => self.finish(index, Ok(finish)),
            Err(failure) => self.finish(index, Err(failure)),
        }
    }

    /// One step of all rows that [`Scheduler::compose`] chose.
    fn step(&mut self) {
        let at = self.clock.now();
        let between = self.told.map(|told| at.saturating_sub(told));
        let begin = Begin { at, between };
        let (items, failures) = self.compose(between);
        let mut ends: Vec<(usize, Result<Finish, Failure>)> =
            failures.into_iter().map(|(index, failure)| (index, Err(failure))).collect();
        if !items.is_empty() {
            match self.evaluate(&items) {
                Ok(made) => ends.extend(self.settle(&items, &made, begin)),
                Err(failure) => ends.extend(self.failed(&items, failure)),
            }
        }
        ends.sort_by_key(|(index, _)| std::cmp::Reverse(*index));
        for (index, outcome) in ends {
            self.finish(index, outcome);
        }
    }

    /// The rows of the next step, in the order of the active requests, and who could not guess.
    fn compose(&mut self, between: Option<Duration>) -> (Vec<Item>, Vec<(usize, Failure)>) {
        let alone = self.suspects.front().copied();
        let (mut answers, mut readers) = (Vec::new(), Vec::new());
        for (index, active) in self.active.iter().enumerate() {
            if active.arrives || alone.is_some_and(|id| id != active.id) {
                continue;
            }
            let position = self.source.position(&active.session);
            if active.is_reading(position) {
                readers.push((active.last_slice, active.id, index, position));
            } else {
                answers.push(index);
            }
        }
        readers.sort_unstable();
        let spare = self.facts.step_rows.saturating_sub(answers.len());
        let guesses = if readers.is_empty() { spare } else { 0 };
        let (mut items, failures) = self.answer_rows(&answers, guesses);
        let read = |r: &(_, _, usize, usize)| r.3.saturating_sub(self.active[r.2].stats.reused);
        let least_read = readers.iter().map(read).min();
        let mut left =
            least_read.map_or(0, |read| self.pacer.slice(answers.len(), between, read).min(spare));
        for (_, _, index, position) in readers {
            let active = &mut self.active[index];
            let waiting = &active.timeline[position..];
            let scores = active.scored < active.request.prompt.len()
                && active.request.prompt_logprobs.is_some();
            let most = if scores { left.min(SCORED_ROWS_MAX) } else { left };
            let rows = waiting.len().min(most);
            if rows == 0 {
                break;
            }
            left -= rows;
            let (tokens, draws) = (waiting[..rows].to_vec(), rows == waiting.len());
            active.last_slice = self.turns;
            items.push(Item { index, tokens, guesses: 0, draws, reads: true, scores });
        }
        items.sort_by_key(|item| item.index);
        (items, failures)
    }

    /// One row of each answer, and guesses where there is room for them.
    fn answer_rows(
        &mut self,
        answers: &[usize],
        mut room: usize,
    ) -> (Vec<Item>, Vec<(usize, Failure)>) {
        let lone = self.active.len() == 1;
        let (mut items, mut failures) = (Vec::new(), Vec::new());
        for &index in answers {
            let active = &mut self.active[index];
            let Some(&last) = active.timeline.last() else { continue };
            // Which of several sessions gains by guessing cannot be told from common steps.
            let wants = lone || active.how != Speculation::Auto;
            let most = if wants { active.guesses_max().min(room) } else { 0 };
            let (source, how, clock) = (&mut self.source, active.how, &self.clock);
            let drafter = self.facts.drafter.then(|| source.drafter());
            let wish = Wish { how, drafter, text: &active.timeline, most };
            let (session, costs) = (&mut active.session, &mut active.costs);
            let mut draft = |count| source.guess(session, last, how, count);
            let guessed = guarded(|| propose(costs, &wish, &|| clock.now(), &mut draft));
            let guessed = guessed.map(|mut proposal| {
                let guesses = active.allowed(std::mem::take(&mut proposal.tokens));
                active.proposal = proposal;
                guesses
            });
            match guessed {
                Err(failure) => failures.push((index, failure)),
                Ok(guesses) => {
                    room -= guesses.len();
                    active.stats.speculation.steps += 1;
                    active.stats.speculation.drafted += guesses.len();
                    let tokens = [&[last], &guesses[..]].concat();
                    let guesses = guesses.len();
                    let (draws, reads, scores) = (true, false, false);
                    items.push(Item { index, tokens, guesses, draws, reads, scores });
                }
            }
        }
        (items, failures)
    }

    /// How the source draws all tokens of a step, if it can and they are all that is wanted.
    fn draws(&self, items: &[Item]) -> Option<Vec<Draw>> {
        let (mut draws, tokens) = (Vec::new(), self.facts.vocabulary);
        for item in items.iter().filter(|item| item.draws || item.scores) {
            for guess in 0..item.logit_rows() {
                let draw = self.active[item.index].on_device(tokens, guess);
                draws.push(draw.filter(|_| !item.reads)?);
            }
        }
        (1..=self.source.draw_rows()).contains(&draws.len()).then_some(draws)
    }

    fn evaluate(&mut self, items: &[Item]) -> Result<Made, Failure> {
        let draws = self.draws(items);
        let mut left = items.iter().peekable();
        let mut work = Vec::with_capacity(items.len());
        for (index, active) in self.active.iter_mut().enumerate() {
            let Some(item) = left.next_if(|item| item.index == index) else { continue };
            let logits = match (item.draws, item.reads) {
                _ if item.scores => Rows::All,
                (false, _) => Rows::None,
                (true, true) => Rows::Last,
                (true, false) => Rows::All,
            };
            work.push(Work { session: &mut active.session, tokens: &item.tokens, logits });
        }
        let source = &mut self.source;
        guarded(|| match &draws {
            Some(draws) => source.step_drawn(&mut work, draws),
            None => source.step(&mut work).map(Made::Logits),
        })
    }

    fn settle(
        &mut self,
        items: &[Item],
        made: &Made,
        begin: Begin,
    ) -> Vec<(usize, Result<Finish, Failure>)> {
        let (mut ends, mut answers, mut prompt_rows, mut guesses) = (Vec::new(), 0, 0, 0);
        let lone = self.active.len() == 1;
        let now = self.clock.now();
        let mut first = 0;
        for item in items {
            let rows = Given::of(made, first, item.logit_rows(), self.facts.vocabulary);
            first += item.logit_rows();
            let active = &mut self.active[item.index];
            let before = (active.stats.tokens, active.stats.speculation.accepted);
            let (source, sampler) = (&mut self.source, &mut self.sampler);
            match guarded(|| Ok(active.settle((source, sampler), item, rows, now))) {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(finish))) => ends.push((item.index, Ok(finish))),
                Ok(Err(failure)) | Err(failure) => ends.push((item.index, Err(failure))),
            }
            self.suspects.retain(|id| *id != active.id);
            if item.reads {
                prompt_rows += item.tokens.len();
            } else {
                (answers, guesses) = (answers + 1, guesses + item.guesses);
            }
            if !item.reads {
                let (tokens, speculation) = (active.stats.tokens, &mut active.stats.speculation);
                let right = speculation.accepted - before.1;
                let Proposal { guesser, asked, drafting, .. } = active.proposal;
                let is_cut = tokens - before.0 == right;
                let step = now.saturating_sub(begin.at).saturating_sub(drafting);
                let (guesses, times) = (item.guesses, [drafting, step]);
                let cycle = Cycle { guesser, asked, guesses, right, is_cut, times };
                speculation.count(&cycle);
                if lone {
                    active.costs.observe(&cycle);
                    self.costs = active.costs.clone();
                }
            }
        }
        if guesses == 0 {
            let step = now.saturating_sub(begin.at);
            self.pacer.observe(answers, prompt_rows, step, begin.between);
        }
        self.told = (answers > 0).then_some(now);
        self.done.steps += 1;
        self.done.prompt_rows += prompt_rows as u64;
        self.done.answer_rows += (answers + guesses) as u64;
        ends
    }

    /// A step of several that failed is tried again one by one, so that only who is to blame ends.
    /// After a panic all are lost: nobody knows what it left behind.
    fn failed(
        &mut self,
        items: &[Item],
        failure: Failure,
    ) -> Vec<(usize, Result<Finish, Failure>)> {
        if let Failure::Panic(text) = &failure {
            let lost = |item: &Item| (item.index, Err(Failure::Panic(text.clone())));
            return items.iter().map(lost).collect();
        }
        if let [item] = items {
            let session = &mut self.active[item.index].session;
            if self.source.retries(session) {
                return Vec::new();
            }
            return vec![(item.index, Err(failure))];
        }
        self.suspects = items.iter().map(|item| self.active[item.index].id).collect();
        Vec::new()
    }
}

/// Whether a request must end, and how.
fn verdict(
    request: &Request,
    received: Duration,
    now: Duration,
    tokens: usize,
) -> Option<Result<Finish, Failure>> {
    if request.cancel.is_raised() {
        return Some(Ok(Finish::Cancelled));
    }
    let limit = request.deadline?;
    let over = now.saturating_sub(received) >= limit;
    over.then_some(Err(Failure::Deadline { limit_ms: limit.as_millis(), tokens }))
}

fn tell(mut sink: Sink, outcome: Result<Finish, Failure>, stats: Stats) {
    sink(match outcome {
        Ok(finish) => Event::Done { finish, stats },
        Err(failure) => Event::Failed { failure, stats },
    });
}

/// The one place where panics of the engine end: the request is given up, the process lives.
fn guarded<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Failure> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => Ok(result?),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(Failure::Panic(text.unwrap_or_else(|| "no text".to_owned())))
        }
    }
}
