//! A 256-bit hash that tells models and saved bytes apart. It guards against mistakes and damage,
//! not against forgery.

use std::fmt;

/// Four lanes of multiply-and-rotate over 8-byte words, mixed at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    lanes: [u64; 4],
    length: u64,
}

const ODD: [u64; 4] =
    [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9, 0xD6E8_FEB8_6659_FD93];

impl Default for Fingerprint {
    fn default() -> Self {
        Fingerprint { lanes: ODD.map(|k| k.rotate_left(31)), length: 0 }
    }
}

impl Fingerprint {
    /// Adds a run of bytes; where runs begin and end matters.
    pub fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for (i, word) in words.iter().enumerate() {
            self.word(i, u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(words.len(), u64::from_le_bytes(last));
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.length = self.length.wrapping_add(1);
        self.word(words.len() + 1, length);
    }

    fn word(&mut self, at: usize, word: u64) {
        let lane = &mut self.lanes[at % 4];
        *lane = (*lane ^ word).wrapping_mul(ODD[at % 4]).rotate_left(29);
    }

    /// The finished hash; more may be added to the original.
    #[must_use]
    pub fn bytes(&self) -> [u8; 32] {
        let mut all = [0; 32];
        let sum = self.lanes.iter().fold(self.length, |s, &l| s.rotate_left(17) ^ mix(l));
        for (i, (out, &lane)) in all.as_chunks_mut::<8>().0.iter_mut().zip(&self.lanes).enumerate()
        {
            *out = mix(lane ^ mix(sum.wrapping_add(ODD[i]))).to_le_bytes();
        }
        all
    }
}

/// A bijection in which every bit of the input reaches every bit of the output.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}
