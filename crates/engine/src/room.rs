//! Memory for copies of a state, which a thread lays out while a device works: the system clears
//! pages when they are first touched, and the device would wait for that.

use std::thread::JoinHandle;

/// Places that are there or on their way.
#[derive(Debug, Default)]
pub(crate) struct Room {
    coming: Option<JoinHandle<Vec<Vec<u8>>>>,
    there: Vec<Vec<u8>>,
}

impl Room {
    /// Begins to lay out what is lacking for places of these sizes.
    pub fn lay_out(&mut self, sizes: impl Iterator<Item = usize>) {
        self.settle();
        let mut free: Vec<usize> = self.there.iter().map(Vec::len).collect();
        let mut is_lacking = |bytes: &usize| match free.iter().position(|len| fits(*len, *bytes)) {
            Some(at) => {
                free.swap_remove(at);
                false
            }
            None => true,
        };
        let lacking: Vec<usize> = sizes.filter(&mut is_lacking).collect();
        if lacking.is_empty() {
            return;
        }
        // Bytes that are not 0 cannot be had without touching the page.
        let touched = move || lacking.into_iter().map(|bytes| vec![0xff; bytes]).collect();
        // Without a thread places come when they are asked for.
        self.coming = std::thread::Builder::new().name("room".into()).spawn(touched).ok();
    }

    /// A place of so many bytes, with whatever in it.
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        self.settle();
        match self.there.iter().position(|place| fits(place.len(), bytes)) {
            Some(at) => {
                let mut place = self.there.swap_remove(at);
                place.truncate(bytes);
                place
            }
            None => vec![0; bytes],
        }
    }

    fn settle(&mut self) {
        let coming = self.coming.take().and_then(|thread| thread.join().ok());
        self.there.extend(coming.into_iter().flatten());
    }
}

/// One that is somewhat too large serves as well.
fn fits(len: usize, bytes: usize) -> bool {
    (bytes..=bytes.saturating_mul(2)).contains(&len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_laid_out_or_new_ones() {
        let mut room = Room::default();
        assert_eq!(room.take(5), [0; 5], "nothing was laid out");
        room.lay_out([100, 7, 100].into_iter());
        assert_eq!(room.take(6), [0xff; 6], "with room for one more behind it");
        assert_eq!(room.take(6), [0; 6], "the others are too large");
        room.lay_out([100, 90, 30].into_iter());
        assert_eq!(room.there.len(), 2, "only the third was lacking");
        assert_eq!(room.take(90), [0xff; 90]);
        assert_eq!(room.take(100), [0xff; 100]);
        assert_eq!(room.take(100), [0; 100]);
        assert_eq!(room.take(30), [0xff; 30]);
        assert_eq!(room.take(0), [0; 0]);
    }
}
