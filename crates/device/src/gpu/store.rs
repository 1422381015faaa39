//! Buffers and arenas on the device.

use super::driver::{Address, Driver};
use crate::{Arena, Buffer, Element, Error};
use std::collections::HashMap;

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    /// `None`: free.
    held: Option<(Element, usize, Address)>,
}

/// All buffers of a backend.
#[derive(Debug, Default)]
pub(super) struct Store {
    slots: Vec<Slot>,
    free: Vec<u32>,
    arenas: HashMap<u32, Vec<u32>>,
    next_arena: u32,
}

/// Who asks for a buffer: names for messages.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    /// The operation.
    pub operation: &'static str,
    /// The operand.
    pub operand: &'static str,
}

impl Ask {
    /// A shape error about this operand.
    pub fn error(self, found: impl std::fmt::Display, wanted: impl std::fmt::Display) -> Error {
        Error::Shape {
            operation: self.operation,
            found: format!("{} {found}", self.operand),
            wanted: wanted.to_string(),
        }
    }
}

impl Store {
    /// A new empty arena.
    pub fn arena(&mut self) -> Arena {
        let id = self.next_arena;
        self.next_arena = id.checked_add(1).expect("four thousand million arenas are never made");
        self.arenas.insert(id, Vec::new());
        Arena(id)
    }

    /// A zeroed buffer.
    pub fn alloc(
        &mut self,
        driver: &mut dyn Driver,
        arena: Arena,
        element: Element,
        len: usize,
    ) -> Result<Buffer, Error> {
        let operation = "alloc";
        let members =
            self.arenas.get_mut(&arena.0).ok_or(Error::Handle { operation, id: arena.0 })?;
        let wanted = (len as u64).saturating_mul(element.bytes() as u64);
        let memory = || Error::Memory {
            device: driver.name(),
            what: format!("a buffer of {len} {element:?}"),
            wanted,
        };
        let new = u32::try_from(self.slots.len()).map_err(|_| memory())?;
        let address = match wanted {
            0 => Address::NULL,
            u64::MAX => return Err(memory()),
            _ => driver.alloc(wanted)?,
        };
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, held: None });
            new
        });
        members.push(id);
        let slot = &mut self.slots[id as usize];
        slot.held = Some((element, len, address));
        Ok(Buffer { id, generation: slot.generation, first: 0, element, len })
    }

    /// Frees every buffer of the arena.
    pub fn release(&mut self, driver: &mut dyn Driver, arena: Arena) {
        for id in self.arenas.remove(&arena.0).unwrap_or_default() {
            let slot = &mut self.slots[id as usize];
            if let Some((_, _, address)) = slot.held.take().filter(|held| held.2 != Address::NULL) {
                driver.free(address);
            }
            // A slot whose generations are used up is retired, so that no old handle fits again.
            if let Some(generation) = slot.generation.checked_add(1) {
                slot.generation = generation;
                self.free.push(id);
            }
        }
    }

    /// Where a buffer is, checked to be of one of the elements and to hold `len` of them.
    pub fn address(
        &self,
        ask: Ask,
        buffer: Buffer,
        elements: &[Element],
        len: usize,
    ) -> Result<Address, Error> {
        let slot = self.slots.get(buffer.id as usize);
        let held = slot.filter(|slot| slot.generation == buffer.generation).and_then(|s| s.held);
        let (element, held_len, address) =
            held.ok_or(Error::Handle { operation: ask.operation, id: buffer.id })?;
        if !elements.contains(&element) {
            let found = format!("holds {element:?}");
            return Err(ask.error(found, format!("one of {elements:?} is needed")));
        }
        let held_len = held_len.saturating_sub(buffer.first);
        if held_len < len {
            let found = format!("has {held_len} elements");
            return Err(ask.error(found, format!("at least {len} are needed")));
        }
        Ok(address.offset((buffer.first * element.bytes()) as u64))
    }

    /// Byte range of raw elements in a buffer: its address.
    pub fn raw(
        &self,
        operation: &'static str,
        buffer: Buffer,
        offset: usize,
        bytes: usize,
    ) -> Result<Address, Error> {
        let ask = Ask { operation, operand: "the buffer" };
        let size = buffer.element.bytes();
        let end = offset.checked_add(bytes / size).filter(|_| bytes.is_multiple_of(size));
        let end = end.ok_or_else(|| {
            let found = format!("at {offset} with {bytes} bytes");
            ask.error(found, format!("whole elements of {size}"))
        })?;
        let address = self.address(ask, buffer, &[buffer.element], end)?;
        Ok(address.offset((offset * size) as u64))
    }
}
