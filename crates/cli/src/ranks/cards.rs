//! Cards of this machine as the ranks, all driven by this process.

use super::{Group, note};
use crate::failure::Failure;
use crate::flags::{self, Carrier};
use crate::loading::{self, Opened};
use ironstar_cluster::Transport;
use ironstar_device::{Backend, Error as DeviceError};
use ironstar_engine::{Cards, EngineOptions, Error, OpenFiles};
use std::sync::Arc;

/// Rank 0 of cards 0, 1, ...; sums go from card to card, or through the host where shared memory
/// was asked for.
pub fn lead(
    flags: &flags::Model,
    group: &Group,
    opened: &Opened,
    options: &EngineOptions,
) -> Result<Box<dyn Backend>, Failure> {
    let peer = match flags.ranks.transport {
        None | Some(Carrier::Peer) => true,
        Some(Carrier::Transport(Transport::Shm)) => false,
        Some(Carrier::Transport(_)) => {
            let text = "cards share a model inside one machine: --transport is peer, or shm to sum \
                        through the host's memory";
            return Err(Failure::caller(text));
        }
    };
    if group.listen.is_some() {
        let text = "cards share a model inside one process: leave out --listen";
        return Err(Failure::caller(text));
    }
    let devices: Vec<u32> = (0..).take(group.ranks).collect();
    let cards = Cards::cuda(&devices, options, peer).map_err(loading::from_engine)?;
    for line in cards.plan_lines(&opened.gguf).map_err(loading::from_engine)? {
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
