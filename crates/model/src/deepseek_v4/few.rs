//! Lists of one entry a session: most steps have one, and need no memory for it.

use std::ops::Deref;

/// A list that takes memory of its own from the second entry on.
pub(super) enum Few<T> {
    None,
    One([T; 1]),
    Many(Vec<T>),
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut all = all.into_iter();
        let Some(first) = all.next() else { return Few::None };
        let Some(second) = all.next() else { return Few::One([first]) };
        Few::Many([first, second].into_iter().chain(all).collect())
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Few::None => &[],
            Few::One(one) => one,
            Few::Many(all) => all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Few;

    #[test]
    fn a_list_is_what_was_collected() {
        for count in 0..5 {
            assert!((0..count).collect::<Few<usize>>().iter().copied().eq(0..count));
        }
    }
}
