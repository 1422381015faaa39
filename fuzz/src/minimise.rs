//! Makes a failing input smaller while it keeps failing.

/// Tries at making one input smaller.
const TRIES_MAX: usize = 4000;

/// The smallest input found for which `fails` still holds: runs are removed, halving their length
/// from the whole input down to single bytes; then bytes become zero. Bounded in tries.
pub fn minimise(input: &[u8], mut fails: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let mut best = input.to_vec();
    let mut tries = 0;
    let mut length = best.len();
    while length > 0 && tries < TRIES_MAX {
        let (mut at, mut shrunk) = (0, false);
        while at < best.len() && tries < TRIES_MAX {
            let mut candidate = best.clone();
            candidate.drain(at..best.len().min(at + length));
            tries += 1;
            if fails(&candidate) {
                (best, shrunk) = (candidate, true);
            } else {
                at += length;
            }
        }
        if !shrunk || length > best.len() {
            length /= 2;
        }
    }
    for at in 0..best.len() {
        if best[at] == 0 || tries >= TRIES_MAX {
            continue;
        }
        let old = std::mem::replace(&mut best[at], 0);
        tries += 1;
        if !fails(&best) {
            best[at] = old;
        }
    }
    best
}
