//! Runs a request: the engine's events in, the protocol's events out.
//!
//! Nothing here waits for the engine: signs of life go out by the clock, and whether the client is
//! still there is seen at once. What the engine says goes through a channel of bounded length; a
//! client that reads so slowly that it fills up is given up, since the engine cannot wait.

use super::ask::{Job, blocking, history, request};
use super::choice::{Choice, Echo, State};
use super::out::Out;
use crate::answers::Answer;
use crate::app::App;
use crate::failure::{of_engine, stopping};
use crate::listen::{Phase, reached};
use crate::trace::Trace;
use ironstar_engine::scheduler::{Event, Stats};
use ironstar_engine::{Control, Finish as Ended};
use ironstar_wire::{ApiError, Call, ErrorKind, Protocol};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant as Clock;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep_until};

/// Events of the engine that may wait for the client: minutes of a fast answer.
const EVENTS_MAX: usize = 8192;
/// Events that are sent as one piece when several are there.
const BATCH: usize = 64;

/// Whether an answer is kept for later requests.
pub(super) fn stores(call: &Call) -> bool {
    call.protocol == Protocol::Responses && call.store
}

pub(super) struct Relay {
    app: Arc<App>,
    job: Job,
    out: Out,
    choices: Vec<Choice>,
    echoes: Vec<Echo>,
    events: Receiver<(usize, Event)>,
    /// Gone when all choices are asked for, so that the receiver sees the end.
    sender: Option<Sender<(usize, Event)>>,
    /// Raised when the channel was full.
    overflow: Arc<AtomicBool>,
    started: bool,
    begun: Clock,
    trace: Option<Trace>,
    /// How it ended, for the log.
    outcome: String,
}

impl Relay {
    pub fn new(app: Arc<App>, job: Job, out: Out) -> Relay {
        let (sender, events) = channel(EVENTS_MAX);
        let seed = job.call.sampling.seed.or(app.options.seed);
        let base = seed.unwrap_or_else(|| app.fresh_seed());
        let mut choices = Vec::new();
        for asked in &job.prompts {
            for answer in 0..job.call.n.max(1) {
                // The first answer is that of a request for one.
                let seed = base.wrapping_add(u64::try_from(answer).unwrap_or(0));
                choices.push(Choice::new(&app, asked, request(&app, &job.call, asked, seed)));
            }
        }
        let echoes = choices.iter().map(|_| Echo::new()).collect();
        let trace = Trace::begin(&app, &job, base);
        Relay {
            app,
            job,
            out,
            choices,
            echoes,
            events,
            sender: Some(sender),
            overflow: Arc::default(),
            started: false,
            begun: Clock::now(),
            trace,
            outcome: "the client left".to_owned(),
        }
    }

    /// The whole body, if one was wanted, or why there is none.
    pub async fn run(mut self) -> Result<String, ApiError> {
        let result = self.work().await;
        if let Err(error) = &result {
            self.out.fail(error);
            self.outcome = format!("{}: {}", error.code, error.message);
        }
        result
    }

    async fn work(&mut self) -> Result<String, ApiError> {
        for prompt in 0..self.job.prompts.len() {
            self.ask(prompt * self.answers());
        }
        let mut phase = self.app.phase();
        let keepalive = self.app.options.keepalive;
        let mut silent_until = Instant::now() + keepalive;
        loop {
            let event = tokio::select! {
                biased;
                () = self.out.closed() => return Err(self.gone()),
                event = self.events.recv() => event,
                () = sleep_until(silent_until), if self.out.is_stream() => {
                    self.start();
                    self.out.keepalive();
                    if !self.out.flush().await {
                        return Err(self.gone());
                    }
                    silent_until = Instant::now() + keepalive;
                    continue;
                }
                () = reached(&mut phase, Phase::Ending) => return Err(stopping()),
            };
            let Some((choice, event)) = event else { return Err(self.cut_off()) };
            let mut next = Some((choice, event));
            let mut batch = 0;
            while let Some((choice, event)) = next.take() {
                self.take(choice, event)?;
                batch += 1;
                if batch < BATCH {
                    next = self.events.try_recv().ok();
                }
            }
            if self.choices.iter().all(|choice| matches!(choice.state, State::Done)) {
                return self.done().await;
            }
            if !self.out.flush().await {
                return Err(self.gone());
            }
            silent_until = Instant::now() + keepalive;
        }
    }

    fn answers(&self) -> usize {
        self.job.call.n.max(1)
    }

    /// Gives a choice to the engine.
    fn ask(&mut self, index: usize) {
        let (Some(sender), Some(choice)) = (self.sender.clone(), self.choices.get_mut(index))
        else {
            return;
        };
        let State::Waiting(request) = std::mem::replace(&mut choice.state, State::Asked) else {
            return;
        };
        let overflow = self.overflow.clone();
        let sink = move |event| match sender.try_send((index, event)) {
            Ok(()) => Control::Continue,
            Err(TrySendError::Full(_)) => {
                overflow.store(true, Ordering::Release);
                Control::Stop
            }
            Err(TrySendError::Closed(_)) => Control::Stop,
        };
        self.app.client.submit_to(*request, Box::new(sink));
        if self.choices.iter().all(|choice| !matches!(choice.state, State::Waiting(_))) {
            self.sender = None;
        }
    }

    /// Everything that precedes the first token goes out.
    fn start(&mut self) {
        if !std::mem::replace(&mut self.started, true) {
            let usage = self.choices.first().map(|choice| choice.usage).unwrap_or_default();
            self.out.start(&usage);
        }
    }

    fn take(&mut self, index: usize, event: Event) -> Result<(), ApiError> {
        if self.overflow.load(Ordering::Acquire) {
            return Err(self.cut_off());
        }
        if let Some(trace) = &mut self.trace {
            trace.event(index, &event);
        }
        match event {
            Event::Queued { .. } => {}
            Event::Progress { done, total } => {
                let choice = &mut self.choices[index];
                if choice.stats.prompt == 0 {
                    // The first report is made before anything is evaluated.
                    choice.stats.prompt = total;
                    choice.usage.cached = done;
                    self.start();
                    self.echo_text(index);
                }
            }
            Event::Prompt(tokens) => {
                let outputs = self.echoes[index].tokens(&self.app, &tokens);
                outputs.iter().for_each(|output| self.out.output(index, output));
            }
            Event::Token(token) => {
                self.start();
                self.ask_others(index);
                let choice = &mut self.choices[index];
                if matches!(choice.state, State::Done) {
                    return Ok(());
                }
                let outputs = choice.token(&self.app, &token);
                outputs.iter().for_each(|output| self.out.output(index, output));
                if choice.stopped().is_some() {
                    choice.cancel.raise();
                    self.finish(index, None);
                }
            }
            Event::Done { finish, stats } => {
                self.ask_others(index);
                self.ended(index, stats);
                if matches!(self.choices[index].state, State::Asked) {
                    self.start();
                    self.finish(index, Some(finish));
                }
            }
            Event::Failed { failure, stats } => {
                self.ended(index, stats);
                if matches!(self.choices[index].state, State::Asked) {
                    self.app.metrics.failed.fetch_add(1, Ordering::Relaxed);
                    return Err(of_engine(&self.app, &failure));
                }
            }
        }
        Ok(())
    }

    fn ended(&mut self, index: usize, stats: Stats) {
        self.choices[index].stats = stats;
    }

    /// The other answers to a prompt that is read now.
    fn ask_others(&mut self, index: usize) {
        let answers = self.answers();
        if answers > 1 && index.is_multiple_of(answers) {
            (index + 1..index + answers).for_each(|other| self.ask(other));
        }
    }

    /// The prompt as text, where an answer begins with it and no probabilities are wanted.
    fn echo_text(&mut self, index: usize) {
        let call = &self.job.call;
        if call.echo && call.logprobs.is_none() {
            let tokens = &self.job.prompts[index / self.answers()].tokens;
            let outputs = Echo::new().text(&self.app, tokens);
            outputs.iter().for_each(|output| self.out.output(index, output));
        }
    }

    fn finish(&mut self, index: usize, ended: Option<Ended>) {
        let choice = &mut self.choices[index];
        let (outputs, finish) = choice.end(&self.app, ended);
        self.outcome = format!("{finish:?}");
        let usage = choice.usage;
        outputs.iter().for_each(|output| self.out.output(index, output));
        self.out.finish(index, finish, &usage);
    }

    /// The answer is kept, where it should be, before its closing event says that it is there.
    async fn done(&mut self) -> Result<String, ApiError> {
        let Some(body) = self.out.body() else { return Ok(String::new()) };
        if stores(&self.job.call) {
            let mut messages = history(&self.job.call);
            messages.push(ironstar_text::chat::Message::Assistant(self.choices[0].message.clone()));
            let id = format!("resp_{}", self.job.identity.id);
            let (app, answer) = (self.app.clone(), Answer { messages, body: body.clone() });
            let told = blocking(move || Ok(app.answers.keep(id, answer))).await?;
            told.iter().for_each(|line| self.app.log(line));
        }
        Ok(body)
    }

    fn gone(&mut self) -> ApiError {
        self.app.metrics.cancelled.fetch_add(1, Ordering::Relaxed);
        ApiError::new(ErrorKind::Invalid, "client_left", "the client left")
    }

    /// The engine's events ended before the answer did.
    fn cut_off(&mut self) -> ApiError {
        if self.overflow.load(Ordering::Acquire) {
            self.app.metrics.slow_readers.fetch_add(1, Ordering::Relaxed);
            let text = format!(
                "the answer was given up: {EVENTS_MAX} tokens waited to be read; read faster"
            );
            return ApiError::new(ErrorKind::Timeout, "slow_reader", text);
        }
        ApiError::new(ErrorKind::Internal, "answer_lost", "the engine gave up this answer")
    }
}

impl Drop for Relay {
    /// However it ends, nothing goes on for it.
    fn drop(&mut self) {
        self.choices.iter().for_each(|choice| choice.cancel.raise());
        let mut sum = Stats::default();
        for choice in &self.choices {
            let stats = Stats {
                reused: choice.usage.cached,
                tokens: choice.usage.completion,
                ..choice.stats
            };
            self.app.metrics.answered(&stats);
            sum.prompt += stats.prompt;
            sum.reused += stats.reused;
            sum.tokens += stats.tokens;
            sum.queued = sum.queued.max(stats.queued);
            sum.reading = sum.reading.max(stats.reading);
        }
        let seconds = self.begun.elapsed().as_secs_f64();
        self.app.log(&format!(
            "{} {:?} prompt {} cached {} answer {} queued {:.1} s read {:.1} s all {seconds:.1} s: \
             {}",
            self.job.request_id,
            self.job.call.protocol,
            sum.prompt,
            sum.reused,
            sum.tokens,
            sum.queued.as_secs_f64(),
            sum.reading.as_secs_f64(),
            self.outcome,
        ));
        if let Some(trace) = self.trace.take() {
            let ids = self.choices.iter().map(|choice| choice.ids.clone()).collect();
            trace.end(&self.app, ids, &self.outcome);
        }
    }
}
