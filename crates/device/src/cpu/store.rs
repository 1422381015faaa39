//! Buffers and arenas. Each buffer is borrowed for the length of one operation; a second borrow
//! that would alias a written buffer is an error of the caller.

use super::zeroed::Zeroed;
use crate::{Arena, Buffer, Element, Error};
use ironstar_quant::fp4::INDEXER_BYTES;
use std::cell::{Ref, RefCell, RefMut};
use std::collections::HashMap;

/// Bytes of one indexer row.
pub(crate) type Fp4Row = [u8; INDEXER_BYTES];

/// What a buffer holds.
#[derive(Debug)]
pub(crate) enum Data {
    F32(Zeroed<f32>),
    Bf16(Zeroed<u16>),
    U32(Zeroed<u32>),
    Fp4(Zeroed<Fp4Row>),
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    data: RefCell<Data>,
}

/// All buffers of a backend.
#[derive(Debug, Default)]
pub(crate) struct Store {
    slots: Vec<Slot>,
    free: Vec<u32>,
    arenas: HashMap<u32, Vec<u32>>,
    next_arena: u32,
}

impl Data {
    fn zeroed(element: Element, len: usize) -> Option<Self> {
        Some(match element {
            Element::F32 => Data::F32(Zeroed::new(len)?),
            Element::Bf16 => Data::Bf16(Zeroed::new(len)?),
            Element::U32 => Data::U32(Zeroed::new(len)?),
            Element::Fp4Row => Data::Fp4(Zeroed::new(len)?),
        })
    }

    fn element(&self) -> Element {
        match self {
            Data::F32(_) => Element::F32,
            Data::Bf16(_) => Element::Bf16,
            Data::U32(_) => Element::U32,
            Data::Fp4(_) => Element::Fp4Row,
        }
    }

    fn len(&self) -> usize {
        match self {
            Data::F32(v) => v.len(),
            Data::Bf16(v) => v.len(),
            Data::U32(v) => v.len(),
            Data::Fp4(v) => v.len(),
        }
    }
}

/// Who asks for a buffer: names for messages.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
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

    fn aliased(self) -> Error {
        self.error("is also another operand", "operands that are written need their own buffer")
    }
}

impl Store {
    pub fn arena(&mut self) -> Arena {
        let id = self.next_arena;
        self.next_arena = id.checked_add(1).expect("four thousand million arenas are never made");
        self.arenas.insert(id, Vec::new());
        Arena(id)
    }

    pub fn alloc(&mut self, arena: Arena, element: Element, len: usize) -> Result<Buffer, Error> {
        let operation = "alloc";
        let members =
            self.arenas.get_mut(&arena.0).ok_or(Error::Handle { operation, id: arena.0 })?;
        let memory = || Error::Memory {
            device: "cpu",
            what: format!("a buffer of {len} {element:?}"),
            wanted: (len as u64).saturating_mul(element.bytes() as u64),
        };
        let data = Data::zeroed(element, len).ok_or_else(memory)?;
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                let id = u32::try_from(self.slots.len()).map_err(|_| memory())?;
                let data = RefCell::new(Data::U32(Zeroed::empty()));
                self.slots.push(Slot { generation: 0, data });
                id
            }
        };
        members.push(id);
        let slot = &mut self.slots[id as usize];
        slot.data = RefCell::new(data);
        Ok(Buffer { id, generation: slot.generation, first: 0, element, len })
    }

    pub fn release(&mut self, arena: Arena) {
        for id in self.arenas.remove(&arena.0).unwrap_or_default() {
            let slot = &mut self.slots[id as usize];
            slot.data = RefCell::new(Data::U32(Zeroed::empty()));
            // A slot whose generations are used up is retired, so that no old handle fits again.
            if let Some(generation) = slot.generation.checked_add(1) {
                slot.generation = generation;
                self.free.push(id);
            } else {
                slot.generation = 0;
            }
        }
    }

    fn slot(&self, ask: Ask, buffer: Buffer) -> Result<&RefCell<Data>, Error> {
        if buffer.first > 0 {
            return Err(ask.error("is the rest of a buffer", "steps are not narrowed here"));
        }
        self.slots
            .get(buffer.id as usize)
            .filter(|slot| slot.generation == buffer.generation)
            .map(|slot| &slot.data)
            .ok_or(Error::Handle { operation: ask.operation, id: buffer.id })
    }

    /// The data for reading, checked to be of `element` and to hold `len` elements.
    pub fn data(
        &self,
        ask: Ask,
        buffer: Buffer,
        elements: &[Element],
        len: usize,
    ) -> Result<Ref<'_, Data>, Error> {
        let data = self.slot(ask, buffer)?.try_borrow().map_err(|_| ask.aliased())?;
        check_data(ask, &data, elements, len)?;
        Ok(data)
    }

    /// [`Store::data`] for writing.
    pub fn data_mut(
        &self,
        ask: Ask,
        buffer: Buffer,
        elements: &[Element],
        len: usize,
    ) -> Result<RefMut<'_, Data>, Error> {
        let data = self.slot(ask, buffer)?.try_borrow_mut().map_err(|_| ask.aliased())?;
        check_data(ask, &data, elements, len)?;
        Ok(data)
    }

    /// The first `len` floats, for reading.
    pub fn f32(&self, ask: Ask, buffer: Buffer, len: usize) -> Result<Ref<'_, [f32]>, Error> {
        let data = self.data(ask, buffer, &[Element::F32], len)?;
        Ok(Ref::map(data, |data| match data {
            Data::F32(v) => &v[..len],
            _ => &[],
        }))
    }

    /// The first `len` floats, for writing.
    pub fn f32_mut(
        &self,
        ask: Ask,
        buffer: Buffer,
        len: usize,
    ) -> Result<RefMut<'_, [f32]>, Error> {
        let data = self.data_mut(ask, buffer, &[Element::F32], len)?;
        Ok(RefMut::map(data, |data| match data {
            Data::F32(v) => &mut v[..len],
            _ => &mut [],
        }))
    }

    /// The first `len` ids, for reading.
    pub fn u32(&self, ask: Ask, buffer: Buffer, len: usize) -> Result<Ref<'_, [u32]>, Error> {
        let data = self.data(ask, buffer, &[Element::U32], len)?;
        Ok(Ref::map(data, |data| match data {
            Data::U32(v) => &v[..len],
            _ => &[],
        }))
    }

    /// The first `len` ids, for writing.
    pub fn u32_mut(
        &self,
        ask: Ask,
        buffer: Buffer,
        len: usize,
    ) -> Result<RefMut<'_, [u32]>, Error> {
        let data = self.data_mut(ask, buffer, &[Element::U32], len)?;
        Ok(RefMut::map(data, |data| match data {
            Data::U32(v) => &mut v[..len],
            _ => &mut [],
        }))
    }

    /// Writes raw little-endian elements.
    pub fn write(&self, to: Buffer, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let ask = Ask { operation: "write", operand: "the buffer" };
        let (elements, len) = whole_elements(ask, to, offset, bytes.len())?;
        let mut data = self.data_mut(ask, to, &[to.element], offset + len)?;
        match &mut *data {
            Data::F32(v) => copy_in(&mut v[elements], bytes, f32::from_le_bytes),
            Data::Bf16(v) => copy_in(&mut v[elements], bytes, u16::from_le_bytes),
            Data::U32(v) => copy_in(&mut v[elements], bytes, u32::from_le_bytes),
            Data::Fp4(v) => copy_in(&mut v[elements], bytes, |row| row),
        }
        Ok(())
    }

    /// Reads raw little-endian elements.
    pub fn read(&self, from: Buffer, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let ask = Ask { operation: "read", operand: "the buffer" };
        let (elements, len) = whole_elements(ask, from, offset, bytes.len())?;
        let data = self.data(ask, from, &[from.element], offset + len)?;
        match &*data {
            Data::F32(v) => copy_out(&v[elements], bytes, f32::to_le_bytes),
            Data::Bf16(v) => copy_out(&v[elements], bytes, u16::to_le_bytes),
            Data::U32(v) => copy_out(&v[elements], bytes, u32::to_le_bytes),
            Data::Fp4(v) => copy_out(&v[elements], bytes, |row| row),
        }
        Ok(())
    }
}

fn whole_elements(
    ask: Ask,
    buffer: Buffer,
    offset: usize,
    bytes: usize,
) -> Result<(std::ops::Range<usize>, usize), Error> {
    let size = buffer.element.bytes();
    let len = bytes / size;
    let end = offset.checked_add(len).filter(|_| bytes.is_multiple_of(size));
    let end = end.ok_or_else(|| {
        ask.error(format!("at {offset} with {bytes} bytes"), format!("whole elements of {size}"))
    })?;
    Ok((offset..end, len))
}

fn copy_in<T, const N: usize>(to: &mut [T], bytes: &[u8], value: impl Fn([u8; N]) -> T) {
    for (to, bytes) in to.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *to = value(*bytes);
    }
}

fn copy_out<T: Copy, const N: usize>(from: &[T], bytes: &mut [u8], value: impl Fn(T) -> [u8; N]) {
    for (from, bytes) in from.iter().zip(bytes.as_chunks_mut::<N>().0) {
        *bytes = value(*from);
    }
}

fn check_data(ask: Ask, data: &Data, elements: &[Element], len: usize) -> Result<(), Error> {
    if !elements.contains(&data.element()) {
        let found = format!("holds {:?}", data.element());
        return Err(ask.error(found, format!("one of {elements:?} is needed")));
    }
    if data.len() < len {
        let found = format!("has {} elements", data.len());
        return Err(ask.error(found, format!("at least {len} are needed")));
    }
    Ok(())
}
