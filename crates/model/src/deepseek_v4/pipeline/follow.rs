//! A node of a pipeline that does what rank 0 says.

use super::{Line, Pipe, is_of_group};
use crate::deepseek_v4::follow::{on_states, unknown, wait_for_epoch};
use crate::deepseek_v4::orders::Order;
use crate::deepseek_v4::results::Given;
use crate::deepseek_v4::{Followed, Model, Stages, State, Wire};
use crate::{Error, LogitsFor, Wanted};
use ironstar_device::{Backend, Error as DeviceError, ExchangeError};
use std::collections::HashMap;

/// States of sessions by their numbers, as far as this node has them.
type Held = HashMap<u32, State>;

impl Model {
    /// [`Model::follow`] on a node of a pipeline.
    pub(in crate::deepseek_v4) fn follow_pipe(
        &mut self,
        backend: &mut dyn Backend,
        on_event: &mut dyn FnMut(Followed) -> bool,
    ) -> Result<(), Error> {
        let kept = self.kept.clone();
        let Some(pipe) = &kept.pipe else { return Ok(()) };
        let mut held = Held::new();
        let heard = pipe.line().heard.take();
        let mut last = heard.map_or(Ok(true), |identity| self.answer_plan(pipe, &identity));
        loop {
            let end = match last {
                Ok(true) => {
                    last = self.obey(pipe, backend, &mut held);
                    continue;
                }
                Ok(false) => None,
                Err(error) => Some(error),
            };
            std::mem::take(&mut held).into_values().for_each(|state| state.release(backend));
            match end {
                None => return Ok(()),
                Some(error) => rejoin(pipe, &error, on_event)?,
            }
            last = Ok(true);
        }
    }

    /// Whether this node has what rank 0 says that all must have.
    fn answer_plan(&self, pipe: &Pipe, identity: &[u8]) -> Result<bool, Error> {
        let meets = self.kept.meets(identity);
        let mut line = pipe.line();
        line.orders = 0;
        line.answers(meets)?;
        Ok(true)
    }

    /// Hears an order and carries it out; false is the last.
    fn obey(
        &mut self,
        pipe: &Pipe,
        backend: &mut dyn Backend,
        held: &mut Held,
    ) -> Result<bool, Error> {
        let mut bytes = Vec::new();
        pipe.line().exchange.broadcast(&mut bytes).map_err(DeviceError::from)?;
        match Order::decode(&bytes)? {
            Order::Stop => return Ok(false),
            Order::Look => {}
            Order::Plan { ends, bits, identity } => {
                let is_same =
                    Stages::new(ends)? == pipe.stages && Wire::of_bits(bits) == Some(pipe.wire);
                if !is_same {
                    let found = "another cut than it has loaded: start it again".to_owned();
                    pipe.line().answers(Err(found))?;
                    return Ok(true);
                }
                return self.answer_plan(pipe, &identity);
            }
            Order::Take { id, context, saved: _ } => {
                let taken = self.take_empty(backend, held, (id, context));
                pipe.line().answers(taken.map_err(|error| error.to_string()))?;
            }
            Order::Release { id } => {
                if let Some(state) = held.remove(&id) {
                    state.release(backend);
                }
            }
            order @ Order::Step { .. } => self.obey_step(pipe, backend, held, order)?,
            Order::Draft { id, position, token, most } => {
                pipe.line().orders += 1;
                if pipe.is_last() {
                    let state = held.get_mut(&id).ok_or_else(|| unknown(id))?;
                    state.go_there(position)?;
                    let given = match most {
                        None => Given::Logits(self.draft(backend, state, token)?),
                        Some(most) => {
                            Given::Drafted(self.draft_tokens(backend, state, token, most)?)
                        }
                    };
                    answer(&mut pipe.line(), &given)?;
                }
            }
            Order::Save { id, position, part } => {
                let state = held.get_mut(&id).ok_or_else(|| unknown(id))?;
                state.go_there(position)?;
                let mine = state.mine(backend, part)?;
                pipe.line().send_all(0, &mine)?;
            }
            Order::Load { id, part } => {
                let state = held.get_mut(&id).ok_or_else(|| unknown(id))?;
                let bytes = pipe.line().receive_all(0, state.mine_bytes(part)?)?;
                state.take_mine(backend, part, &bytes)?;
            }
            Order::Meet { .. } | Order::More { .. } | Order::Steer { .. } => {
                let (found, wanted) = ("an order for ranks".to_owned(), "of a pipeline".to_owned());
                let error = ExchangeError::Wrong { rank: 0, found, wanted };
                return Err(DeviceError::from(error).into());
            }
        }
        Ok(true)
    }

    fn obey_step(
        &mut self,
        pipe: &Pipe,
        backend: &mut dyn Backend,
        held: &mut Held,
        order: Order,
    ) -> Result<(), Error> {
        let Order::Step { ids, step, logits, drafts, .. } = order else { return Ok(()) };
        pipe.line().orders += 1;
        let wanted = Wanted {
            logits: LogitsFor::Rows(&logits),
            drafts: drafts.as_deref().map_or(LogitsFor::None, LogitsFor::Rows),
        };
        let output = on_states(held, (&ids, &step), State::go_there, |all| {
            self.forward_observed(backend, &step, all, &wanted, None)
        })?;
        if pipe.is_last() {
            answer(&mut pipe.line(), &Given::Output(output))?;
        }
        Ok(())
    }

    /// An empty state for a session.
    fn take_empty(
        &self,
        backend: &mut dyn Backend,
        held: &mut Held,
        (id, context): (u32, usize),
    ) -> Result<(), Error> {
        if let Some(mut old) = held.remove(&id) {
            if old.context() == context && old.belongs_to(&self.kept) {
                old.truncate(0)?;
                held.insert(id, old);
                return Ok(());
            }
            old.release(backend);
        }
        held.insert(id, self.new_state(backend, context)?);
        Ok(())
    }

    /// The number of the step that this node is told of, or of none.
    pub(in crate::deepseek_v4) fn followed_step(&self) -> u64 {
        self.kept.pipe.as_ref().map_or(0, |pipe| pipe.line().orders)
    }
}

fn answer(line: &mut Line, given: &Given) -> Result<(), Error> {
    let bytes = given.encode(line.orders);
    line.send(0, bytes)
}

/// After a failure: tells the others, and waits for a new epoch as long as `on_event` goes on.
fn rejoin(
    pipe: &Pipe,
    error: &Error,
    on_event: &mut dyn FnMut(Followed) -> bool,
) -> Result<(), Error> {
    debug_assert!(pipe.stage > 0, "rank 0 does not follow");
    let reason = match error {
        Error::Device(DeviceError::Exchange(reason)) if is_of_group(error) => reason.clone(),
        other => {
            let (rank, reason) = (pipe.stage, other.to_string());
            pipe.line().exchange.abort(&reason);
            ExchangeError::Aborted { rank, reason }
        }
    };
    wait_for_epoch(reason, || pipe.line().exchange.reform(), on_event)
}
