//! One card of a group whose ranks are processes, on this machine or on several.

use super::{GATE, Room, check_rooms, parts, parts_most};
use crate::backend::{cuda_config, gpu_config};
use crate::{EngineOptions, Error};
use ironstar_device::{
    Backend, Error as DeviceError, Exchange, GateRoute, Gpu, cuda_count, cuda_device,
};
use ironstar_gguf::Gguf;

/// The card of this process's rank.
#[derive(Clone, Copy, Debug)]
pub struct ProcessCard {
    /// Its number; by the rank's number where it is not said, so that ranks of one machine have
    /// cards of their own as far as there are any.
    pub device: Option<u32>,
    /// How its gates may go at most; `None` leaves them out, so that speed is right and every token
    /// is wrong.
    pub most: Option<GateRoute>,
}

impl ProcessCard {
    /// The card as a rank of the group, and what it will hold of the model, for people. Parts that
    /// it cannot hold are refused.
    pub fn open(
        self,
        gguf: &Gguf,
        exchange: Box<dyn Exchange>,
        options: &EngineOptions,
    ) -> Result<(Box<dyn Backend>, String), Error> {
        let (rank, ranks) = (exchange.rank(), exchange.ranks());
        let own = || Ok(u32::try_from(rank).unwrap_or(u32::MAX) % cuda_count()?.max(1));
        let card = cuda_device(self.device.map_or_else(own, Ok::<_, DeviceError>)?)?;
        let parts = parts((gguf, None), ranks)?;
        let part = parts[rank];
        let room = Room::of(&card);
        let (device, line) = (room.number, room.line(rank, part));
        check_rooms(&[room], &[part], &|ranks| parts_most((gguf, None), ranks))?;
        let gpu = Gpu::cuda(&cuda_config(options, device), gpu_config(options))?;
        let gpu = gpu.with_exchange(exchange);
        let gpu = match self.most {
            Some(most) => gpu.with_gates(most, GATE),
            None => gpu.with_gates_left_out(),
        };
        Ok((Box::new(gpu), line))
    }
}
