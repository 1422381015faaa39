//! Memory of short lists, kept from one operation to the next: a step allocates nothing.

/// The memory of a list whose elements borrow what an operation works on. `T` is such an element
/// with any lifetimes; between two operations there is none.
pub(crate) struct Spare<T>(Vec<T>);

// SAFETY: the list is empty whenever a `Spare` can be sent, so no `T` goes with it.
unsafe impl<T> Send for Spare<T> {}

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Spare(Vec::new())
    }
}

impl<T> Spare<T> {
    /// An empty list in that memory. `U` is `T` with the lifetimes of the operation.
    pub fn list<U>(&mut self) -> Vec<U> {
        const { assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>()) };
        recycle(std::mem::take(&mut self.0))
    }

    /// Keeps the memory of a list for the next operation.
    pub fn keep<U>(&mut self, list: Vec<U>) {
        self.0 = recycle(list);
    }
}

/// The first `len` elements, made if need be. They hold anything.
pub(crate) fn grow<T: Copy + Default>(v: &mut Vec<T>, len: usize) -> &mut [T] {
    if v.len() < len {
        v.resize(len, T::default());
    }
    &mut v[..len]
}

/// An empty list in the memory of another one: the standard library collects into the memory of
/// what it consumes where elements are laid out alike. Were that to change, lists would be
/// allocated, and the test below would say so.
fn recycle<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

#[cfg(test)]
mod tests {
    use super::Spare;
    use std::cell::{Ref, RefCell};

    #[test]
    fn memory_stays_while_lifetimes_change() {
        let mut spare: Spare<(Ref<'static, u32>, usize)> = Spare::default();
        let mut memory = None;
        for round in 0..3 {
            let cell = RefCell::new(round);
            let mut list: Vec<(Ref<'_, u32>, usize)> = spare.list();
            if let Some(memory) = memory {
                assert_eq!((list.as_ptr().addr(), list.capacity()), memory);
            }
            list.extend((0..40).map(|i| (cell.borrow(), i)));
            assert!(cell.try_borrow_mut().is_err());
            memory = Some((list.as_ptr().addr(), list.capacity()));
            spare.keep(list);
            assert!(cell.try_borrow_mut().is_ok(), "nothing is held on to");
        }
    }
}
