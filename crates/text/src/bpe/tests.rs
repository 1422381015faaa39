//! Both ways of merging against the definition, over random vocabularies.

use std::collections::HashMap;

use proptest::prelude::*;

use super::{Merge, Merges, RESCAN_MAX, Scratch, Seed};

/// Bytes are their own ids; merges make ids from 256 on. Sides are taken modulo what exists.
fn merges(sides: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut distinct = Vec::new();
    for (id, &(left, right)) in (256..).zip(sides) {
        // Mostly small ids: the letters a to d and what is made of them.
        let side = |side: u32| {
            if side.is_multiple_of(3) && id > 256 {
                256 + side % (id - 256)
            } else {
                u32::from(b'a') + side % 4
            }
        };
        let pair = (side(left), side(right));
        if distinct.contains(&pair) {
            // Keeps ids and places in step: a pair that no text has.
            distinct.push((id, id));
        } else {
            distinct.push(pair);
        }
    }
    distinct
}

/// The definition: join the leftmost pair of lowest rank until there is none.
fn by_definition(text: &[u8], merges: &[(u32, u32)]) -> Vec<u32> {
    let ranks: HashMap<(u32, u32), u32> = merges.iter().copied().zip(0..).collect();
    let mut ids: Vec<u32> = text.iter().copied().map(u32::from).collect();
    loop {
        let ranked = ids
            .windows(2)
            .enumerate()
            .filter_map(|(at, pair)| Some((*ranks.get(&(pair[0], pair[1]))?, at)));
        let Some((rank, at)) = ranked.min() else { return ids };
        ids.splice(at..at + 2, [256 + rank]);
    }
}

proptest! {
    #[test]
    fn merging_is_as_defined(
        sides in prop::collection::vec((any::<u32>(), any::<u32>()), 0..40),
        text in prop::collection::vec(b'a'..=b'd', 0..3 * RESCAN_MAX),
    ) {
        let pairs = merges(&sides);
        let byte_ids: [u32; 256] = std::array::from_fn(|byte| u32::try_from(byte).unwrap());
        let mut table = Merges::new(Seed::random());
        for (rank, &(left, right)) in (0..).zip(&pairs) {
            table.insert(left, right, Merge { rank, id: 256 + rank });
        }
        table.finish(&byte_ids);
        let (mut scratch, mut ids) = (Scratch::default(), Vec::new());
        let wanted = by_definition(&text, &pairs);
        table.encode(&text, &byte_ids, &mut scratch, &mut ids);
        prop_assert_eq!(&ids, &wanted);
        // Scratch that was used before gives the same.
        ids.clear();
        table.encode(&text, &byte_ids, &mut scratch, &mut ids);
        prop_assert_eq!(&ids, &wanted);
    }
}
