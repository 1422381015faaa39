//! Cards as the ranks: those of this machine driven by this process, or a process for each card.

use super::{Group, alone, gather, note, threads};
use crate::failure::Failure;
use crate::flags::{self, Carrier};
use crate::loading::{self, Opened};
use ironstar_device::{Backend, Error as DeviceError, Exchange, GateRoute, cuda_count};
use ironstar_engine::{Cards, EngineOptions, Error, OpenFiles, ProcessCard, SumsBy};
use std::sync::Arc;

/// The card of a node of a pipeline on this machine: nodes take all cards in turn.
pub fn of_node(node: usize) -> usize {
    node % cuda_count().ok().and_then(|count| usize::try_from(count).ok()).map_or(1, |n| n.max(1))
}

/// Rank 0. Cards of this machine are driven by this process, unless a transport between processes
/// was named or others start the ranks.
pub fn lead(
    flags: &flags::Model,
    group: &Group,
    opened: &Opened,
    options: &EngineOptions,
) -> Result<Box<dyn Backend>, Failure> {
    let ranks = &flags.ranks;
    let named = ranks.devices.len();
    if named != 0 && named != group.ranks && group.listen.is_none() {
        let text = format!("--devices names {named} cards for {} ranks", group.ranks);
        return Err(Failure::caller(text));
    }
    let one_process =
        group.listen.is_none() && !matches!(ranks.transport, Some(Carrier::Transport(_)));
    match ranks.transport {
        Some(Carrier::Peer | Carrier::Nccl) if group.listen.is_some() => {
            let text = "--transport peer or nccl is for cards that one process drives: leave out \
                        --listen, or name the transport of the processes";
            Err(Failure::caller(text))
        }
        _ if ranks.fake_gates || !one_process => lead_process(flags, group, opened, options),
        _ => lead_here(flags, group, opened, options),
    }
}

/// Rank 0 of a process for each card.
fn lead_process(
    flags: &flags::Model,
    group: &Group,
    opened: &Opened,
    options: &EngineOptions,
) -> Result<Box<dyn Backend>, Failure> {
    let ranks = &flags.ranks;
    // What a killed process leaves behind in the others' cards was not seen yet.
    let most = ranks.gates.unwrap_or(GateRoute::Shared);
    let (exchange, most): (Box<dyn Exchange>, _) = match ranks.fake_gates {
        true => (Box::new(alone(ranks, group.ranks)), None),
        false => (Box::new(gather(flags, group, opened, threads(group, options))?), Some(most)),
    };
    let card = ProcessCard { device: ranks.devices.first().copied(), most };
    let (backend, line) =
        card.open(&opened.gguf, exchange, options).map_err(loading::from_engine)?;
    note(&line);
    Ok(backend)
}

/// Rank 0 of cards that this process drives; sums go from card to card, or through the host where
/// that was asked for.
fn lead_here(
    flags: &flags::Model,
    group: &Group,
    opened: &Opened,
    options: &EngineOptions,
) -> Result<Box<dyn Backend>, Failure> {
    let devices = match flags.ranks.devices.is_empty() {
        true => (0..).take(group.ranks).collect(),
        false => flags.ranks.devices.clone(),
    };
    let by = match (flags.ranks.transport, flags.ranks.gates) {
        (Some(Carrier::Nccl), None) => SumsBy::Nccl,
        (Some(Carrier::Nccl), Some(_)) => {
            let text = "--gates is about ways without NVIDIA's library: leave out --transport nccl";
            return Err(Failure::caller(text));
        }
        (_, None | Some(GateRoute::Peer | GateRoute::Shared)) => SumsBy::Peer,
        (_, Some(GateRoute::Host)) => SumsBy::Host,
        (_, Some(GateRoute::Carried)) => {
            let text = "--gates carried is for a process for each card: add --transport shm, tcp \
                        or verbs";
            return Err(Failure::caller(text));
        }
    };
    let cards = Cards::cuda(&devices, options, by).map_err(loading::from_engine)?;
    let plan = cards.plan_lines(&opened.gguf, opened.drafter.as_ref());
    for line in plan.map_err(loading::from_engine)? {
        note(&line);
    }
    let (model, drafter) = (flags.model.clone(), flags.mtp_model.clone());
    let open: Arc<OpenFiles> = Arc::new(move || {
        let opened = loading::open(model.as_deref(), drafter.as_deref());
        opened.map(|opened| (opened.gguf, opened.drafter)).map_err(|failure| {
            let (found, wanted) = (failure.message, "the files of rank 0".to_owned());
            Error::from(DeviceError::Unsupported { found, wanted })
        })
    });
    cards.lead(&open, options, &mut |text| note(text)).map_err(loading::from_engine)
}
