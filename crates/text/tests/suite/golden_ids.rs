//! Ids of 33 MB of mixed text against the `tokenizers` package (`tests/golden/make/text_ids.py`).

use crate::support::mixed_text::{CHUNKS, chunk, stress};
use ironstar_text::Tokenizer;

/// What the oracle said about one text.
struct Golden {
    bytes: usize,
    text_hash: u64,
    tokens: usize,
    ids_hash: u64,
}

struct Goldens(Vec<(String, Golden)>);

impl Goldens {
    fn read(path: &str) -> Self {
        let lines = String::from_utf8(crate::support::read(path)).expect("goldens are text");
        let hex = |field: &str| u64::from_str_radix(field, 16).expect("a hash");
        let golden = |line: &str| {
            let fields: Vec<&str> = line.splitn(5, ' ').collect();
            let golden = Golden {
                bytes: fields[0].parse().expect("a number of bytes"),
                text_hash: hex(fields[1]),
                tokens: fields[2].parse().expect("a number of ids"),
                ids_hash: hex(fields[3]),
            };
            (fields[4].to_owned(), golden)
        };
        Self(lines.lines().map(golden).collect())
    }

    fn check(&self, tokenizer: &Tokenizer, name: &str, text: &str) {
        let found = self.0.iter().find(|(golden, _)| golden == name);
        let (_, golden) = found.unwrap_or_else(|| panic!("no golden for {name:?}"));
        let text_hash = crate::support::hash(text.bytes());
        assert_eq!((text.len(), text_hash), (golden.bytes, golden.text_hash), "text of {name:?}");
        let ids = tokenizer.encode(text);
        let ids_hash = crate::support::hash(ids.iter().flat_map(|id| id.to_le_bytes()));
        assert_eq!((ids.len(), ids_hash), (golden.tokens, golden.ids_hash), "ids of {name:?}");
        assert!(tokenizer.decode(&ids) == text.as_bytes(), "decoding {name:?}");
        assert!(!ids.iter().any(|&id| tokenizer.is_control(id)), "control token in {name:?}");
    }
}

fn check_mixed(tokenizer: &Tokenizer, goldens: &str) {
    let goldens = Goldens::read(goldens);
    for index in 0..CHUNKS {
        goldens.check(tokenizer, &format!("mixed {index}"), &chunk(index));
    }
}

/// In a thread with a small stack: what any recursion over the text would overflow.
fn check_stress(tokenizer: Tokenizer, goldens: &'static str) {
    let small = std::thread::Builder::new().stack_size(256 << 10);
    let checks = move || {
        let goldens = Goldens::read(goldens);
        for (name, text) in stress() {
            goldens.check(&tokenizer, &format!("stress {name}"), &text);
        }
    };
    small.spawn(checks).expect("a thread").join().expect("all texts pass");
}

const V4: &str = "tests/golden/text/ids_v4.txt";
const NANO: &str = "tests/golden/text/ids_nano.txt";

#[test]
fn v4_ids_of_mixed_text() {
    check_mixed(&crate::support::v4(), V4);
}

#[test]
fn nano_ids_of_mixed_text() {
    check_mixed(&crate::support::nano(), NANO);
}

/// H03: a long run of one kind of character overflowed the stack of a pre-tokenizer.
#[test]
fn h03_a_megabyte_without_a_break_v4() {
    check_stress(crate::support::v4(), V4);
}

/// H03 with the nano tokenizer, which merges other pairs.
#[test]
fn h03_a_megabyte_without_a_break_nano() {
    check_stress(crate::support::nano(), NANO);
}
