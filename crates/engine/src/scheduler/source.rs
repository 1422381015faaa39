//! What a scheduler takes tokens from: a model, or a script in its place.

use crate::{Drafter, Engine, Error, Session, Speculation, draft};
use ironstar_device::{Draw, Span, Step};
use ironstar_model::{LogitsFor, State};

/// What a scheduler must know of a source; it does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Tokens that there are.
    pub vocabulary: usize,
    /// Most tokens of a session.
    pub context: usize,
    /// Most rows of a step.
    pub step_rows: usize,
    /// Whether [`Source::guess`] knows more than repeats of the text.
    pub drafter: bool,
}

/// Which rows of a piece of work need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// None: a prompt goes on.
    None,
    /// The last.
    Last,
    /// Every one: a token and guesses after it.
    All,
}

/// Consecutive tokens of one session in a step.
#[derive(Debug)]
pub struct Work<'a, S> {
    /// Whose they are.
    pub session: &'a mut S,
    /// Tokens after the session's position, at least one.
    pub tokens: &'a [u32],
    /// Which of them need logits.
    pub logits: Rows,
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Made {
    /// Rows of logits, one behind the other.
    Logits(Vec<f32>),
    /// A token a row.
    Tokens(Vec<u32>),
}

/// Sessions that move in common steps. A trait because a server's tests must run without weights:
/// the engine and [`super::scripted::Script`] implement it.
pub trait Source {
    /// One timeline of evaluated tokens.
    type Session;

    /// What it is.
    fn facts(&self) -> Facts;

    /// Memory of a session with room for so many tokens.
    fn session_bytes(&self, context: usize) -> u64;

    /// Other tokens of the same text, where more of them need no work ([`Engine::known_tokens`]).
    fn same_text(&mut self, tokens: &[u32]) -> Option<Vec<u32>> {
        let _none_is_known = tokens;
        None
    }

    /// A new session, which [`Source::arrive`] brings as far on the way to these tokens as is
    /// possible without evaluating; empty where it must be `fresh`.
    fn open(&mut self, context: usize, tokens: &[u32], fresh: bool)
    -> Result<Self::Session, Error>;

    /// Puts back a piece of what is stored of the tokens that a session was opened with, a small
    /// one if it must be `short`; true when that is all.
    fn arrive(
        &mut self,
        session: &mut Self::Session,
        tokens: &[u32],
        short: bool,
    ) -> Result<bool, Error> {
        let _all_is_there = (session, tokens, short);
        Ok(true)
    }

    /// How many tokens a session has evaluated and kept.
    fn position(&self, session: &Self::Session) -> usize;

    /// Logits of what follows its position, if they are there; always, where it came the whole way
    /// without evaluating.
    fn logits<'s>(&self, session: &'s Self::Session) -> Option<&'s [f32]>;

    /// Guesses of what follows `next`, the token after the position; changes nothing.
    fn guess(
        &mut self,
        session: &mut Self::Session,
        next: u32,
        how: Speculation,
        most: usize,
    ) -> Result<Vec<u32>, Error>;

    /// What guesses of its drafter cost.
    fn drafter(&self) -> Drafter {
        Drafter::Chain
    }

    /// Evaluates all rows at once and gives the logits that are wanted, one row behind the other.
    /// Positions stay; after a failure they may be lower than before.
    fn step(&mut self, work: &mut [Work<'_, Self::Session>]) -> Result<Vec<f32>, Error>;

    /// Most rows of a step that [`Source::step_drawn`] draws tokens of; 0 if it draws none.
    fn draw_rows(&self) -> usize {
        0
    }

    /// [`Source::step`] where only the tokens of the rows that want logits are asked for, drawn so.
    fn step_drawn(
        &mut self,
        work: &mut [Work<'_, Self::Session>],
        draws: &[Draw],
    ) -> Result<Made, Error> {
        let _it_draws_none = draws;
        self.step(work).map(Made::Logits)
    }

    /// Keeps the first tokens of a session's last step; `logits` are those of the last one kept, if
    /// they were asked for.
    fn keep(
        &mut self,
        session: &mut Self::Session,
        tokens: &[u32],
        logits: Option<&[f32]>,
    ) -> Result<(), Error>;

    /// Whether the session's last failure may be the fault of a stored state that it came from:
    /// that is set aside now, and the session, at an earlier position, is worth another try.
    fn retries(&mut self, session: &mut Self::Session) -> bool {
        let _none_is_stored = session;
        false
    }

    /// The end of a prompt: a place that others may start from.
    fn mark(&mut self, session: &mut Self::Session) -> Result<(), Error>;

    /// Ends a session and frees its memory. What can be kept of it for others is.
    fn close(&mut self, session: Self::Session);
}

/// Blocks of a stored state that are put back at once: beside answers, and where nobody waits, so
/// many that reading ahead is worth it.
const PIECE: (usize, usize) = (2, 64);

/// All rows as one step, and which of them want logits.
fn rows_of(work: &[Work<'_, Session>]) -> (Step, Vec<usize>) {
    let (mut tokens, mut spans, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for item in work {
        let rows = tokens.len()..tokens.len() + item.tokens.len();
        match item.logits {
            Rows::None => {}
            Rows::Last => wanted.push(rows.end - 1),
            Rows::All => wanted.extend(rows.clone()),
        }
        tokens.extend_from_slice(item.tokens);
        spans.push(Span { rows, position: item.session.position() });
    }
    (Step { tokens, spans }, wanted)
}

/// Before a step: memory for copies of what it makes of each session.
fn make_room(engine: &mut Engine, work: &mut [Work<'_, Session>]) {
    for Work { session, tokens, .. } in work {
        session.make_room(engine, session.position() + tokens.len());
    }
}

/// After a step that failed: every session is where it can go on from.
fn roll_back(work: &mut [Work<'_, Session>]) {
    for item in work {
        item.session.recover();
        let position = item.session.position();
        item.session.timeline.truncate(position);
    }
}

impl Source for Engine {
    type Session = Session;

    fn facts(&self) -> Facts {
        Facts {
            vocabulary: self.model.shape().vocabulary,
            context: self.model.shape().context,
            step_rows: self.options.step_rows.min(self.model.options().step_rows_max),
            drafter: self.model.has_drafter(),
        }
    }

    fn session_bytes(&self, context: usize) -> u64 {
        let plan = self.model.plan(context);
        // Scratch belongs to the model and is there once.
        plan.iter().filter(|line| line.what != "scratch").map(|line| line.bytes).sum()
    }

    fn same_text(&mut self, tokens: &[u32]) -> Option<Vec<u32>> {
        self.known_tokens(tokens)
    }

    fn open(&mut self, context: usize, tokens: &[u32], fresh: bool) -> Result<Session, Error> {
        let mut session = self.session(context)?;
        session.check_tokens(self, tokens)?;
        if !fresh {
            session.set_out(self, tokens);
        }
        Ok(session)
    }

    fn arrive(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        short: bool,
    ) -> Result<bool, Error> {
        session.arrive(self, tokens, if short { PIECE.0 } else { PIECE.1 })
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
        session.timeline.push(next);
        let guesses = draft::guess(session, self, how, most);
        session.timeline.pop();
        guesses
    }

    fn drafter(&self) -> Drafter {
        draft::drafter(&self.model).unwrap_or(Drafter::Chain)
    }

    fn step(&mut self, work: &mut [Work<'_, Session>]) -> Result<Vec<f32>, Error> {
        make_room(self, work);
        let (step, wanted) = rows_of(work);
        let mut states: Vec<&mut State> =
            work.iter_mut().map(|item| item.session.state_mut()).collect();
        let made = self.step_of(&step, &mut states, LogitsFor::Rows(&wanted), LogitsFor::None);
        let output = made.inspect_err(|_| roll_back(work))?;
        let values = output.logits.values().to_vec();
        self.model.take_back(output.logits);
        Ok(values)
    }

    fn draw_rows(&self) -> usize {
        Engine::draw_rows(self)
    }

    fn step_drawn(
        &mut self,
        work: &mut [Work<'_, Session>],
        draws: &[Draw],
    ) -> Result<Made, Error> {
        make_room(self, work);
        let (step, wanted) = rows_of(work);
        let mut states: Vec<&mut State> =
            work.iter_mut().map(|item| item.session.state_mut()).collect();
        let made = self.step_drawn_of(&step, &mut states, LogitsFor::Rows(&wanted), draws);
        let made = made.and_then(|drawn| match drawn.into_iter().collect() {
            Some(tokens) => Ok(Made::Tokens(tokens)),
            // The sampler says what is wrong with a row.
            None => self.drawn_logits(draws.len()).map(Made::Logits),
        });
        made.inspect_err(|_| roll_back(work))
    }

    fn keep(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        logits: Option<&[f32]>,
    ) -> Result<(), Error> {
        let before = session.position();
        session.keep(self, tokens.len())?;
        session.timeline.extend_from_slice(tokens);
        session.logits.clear();
        session.logits_at = 0;
        if let Some(logits) = logits {
            session.logits.extend_from_slice(logits);
            session.logits_at = session.position();
        }
        session.make_ready(self, before)?;
        let spacing = self.options.checkpoint_spacing;
        if before / spacing != session.position() / spacing {
            session.checkpoint(self)?;
        }
        Ok(())
    }

    fn retries(&mut self, session: &mut Session) -> bool {
        std::mem::take(&mut session.forgiven)
    }

    fn mark(&mut self, session: &mut Session) -> Result<(), Error> {
        session.checkpoint_if_far(self)
    }

    fn close(&mut self, mut session: Session) {
        // A checkpoint that cannot be taken is only a chance lost; nobody waits for it.
        let _lost = session.checkpoint_if_far(self);
        drop(session);
        self.free_dropped();
    }
}
