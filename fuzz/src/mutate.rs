//! Random numbers and the mutations of one input.

/// A small generator (splitmix64): the same seed gives the same session everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that begins at `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..count`; 0 where `count` is 0.
    pub fn below(&mut self, count: usize) -> usize {
        let count = count.max(1) as u64;
        usize::try_from(self.bits() % count).expect("a remainder of a usize fits one")
    }

    /// One of `choices`, which are not empty.
    pub fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

/// Numbers at which code tends to turn: limits of types, and lengths off by one.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    3,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Changes `input` in one to eight places; `other` is a second input to splice with.
pub fn mutate(
    random: &mut Random,
    input: &mut Vec<u8>,
    other: &[u8],
    words: &[&[u8]],
    len_max: usize,
) {
    for _ in 0..=random.below(8) {
        match random.below(12) {
            0 => flip_bit(random, input),
            1 => set_byte(random, input),
            2 | 3 => edge_number(random, input),
            4 => near_number(random, input),
            5 => input.truncate(random.below(input.len() + 1)),
            6 => remove_run(random, input),
            7 => repeat_run(random, input),
            8 => splice(random, input, other),
            9 => edit_digit(random, input),
            _ => insert_word(random, input, words),
        }
        input.truncate(len_max);
    }
}

fn flip_bit(random: &mut Random, input: &mut [u8]) {
    let at = random.below(input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
}

fn set_byte(random: &mut Random, input: &mut [u8]) {
    let (at, value) = (random.below(input.len()), random.bits().to_le_bytes()[0]);
    if let Some(byte) = input.get_mut(at) {
        *byte = value;
    }
}

/// Writes a number from [`EDGES`] or the input's own length, in one of the four widths.
fn edge_number(random: &mut Random, input: &mut [u8]) {
    let number = match random.below(4) {
        0 => input.len() as u64,
        _ => EDGES[random.below(EDGES.len())],
    };
    let (at, width) = place(random, input.len());
    let end = input.len().min(at + width);
    input[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
}

/// Adds a small number to the little-endian number that stands somewhere: a length off by a few.
fn near_number(random: &mut Random, input: &mut [u8]) {
    let (at, width) = place(random, input.len());
    if at + width > input.len() {
        return;
    }
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(&input[at..at + width]);
    let step = (random.below(33) as u64).wrapping_sub(16);
    let number = u64::from_le_bytes(bytes).wrapping_add(step);
    input[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
}

/// An offset, and a width of 1, 2, 4 or 8; aligned three times out of four where that is possible.
fn place(random: &mut Random, len: usize) -> (usize, usize) {
    let width = 1 << random.below(4);
    let at = random.below(len);
    let aligned = if random.below(4) == 0 { at } else { at / width * width };
    (aligned.min(len), width)
}

fn run(random: &mut Random, len: usize) -> std::ops::Range<usize> {
    let start = random.below(len + 1);
    let longest = 1 << random.below(12);
    start..len.min(start + random.below(longest) + 1)
}

fn remove_run(random: &mut Random, input: &mut Vec<u8>) {
    let range = run(random, input.len());
    input.drain(range);
}

fn repeat_run(random: &mut Random, input: &mut Vec<u8>) {
    let piece = input[run(random, input.len())].to_vec();
    let at = random.below(input.len() + 1);
    let times = 1 + random.below(4) * random.below(16);
    let copies = piece.repeat(times);
    input.splice(at..at, copies);
}

fn splice(random: &mut Random, input: &mut Vec<u8>, other: &[u8]) {
    let piece = &other[run(random, other.len())];
    let replaced = run(random, input.len());
    input.splice(replaced, piece.iter().copied());
}

/// Changes a decimal digit, for inputs that are text.
fn edit_digit(random: &mut Random, input: &mut [u8]) {
    let start = random.below(input.len());
    let digit = b'0' + random.bits().to_le_bytes()[0] % 10;
    if let Some(byte) = input.iter_mut().skip(start).find(|b| b.is_ascii_digit()) {
        *byte = digit;
    }
}

fn insert_word(random: &mut Random, input: &mut Vec<u8>, words: &[&[u8]]) {
    if words.is_empty() {
        return set_byte(random, input);
    }
    let word = random.pick(words);
    let at = random.below(input.len() + 1);
    let end = if random.below(2) == 0 { at } else { input.len().min(at + word.len()) };
    input.splice(at..end, word.iter().copied());
}
