//! Bytes that are no model, or not quite: each is refused in words that name the field.

use crate::helpers::{
    Raw, exercise, golden, refused, refused_bytes, small_entries, small_tensors, written,
};
use ironstar_gguf::{Blame, ENTRIES_MAX, Gguf, TENSORS_MAX, TensorKind};

const F32: u32 = 0;
const Q8_0: u32 = 8;

#[test]
fn truncation_at_every_offset() {
    let whole = golden("small.gguf");
    // The last tensor's two doubles begin at a multiple of 64 and are padded to the next.
    let data_end = whole.len() - 64 + 16;
    for len in 0..data_end {
        refused(Gguf::from_bytes(whole[..len].to_vec()), Blame::Input, &["the model in memory: "]);
    }
    for len in data_end..=whole.len() {
        Gguf::from_bytes(whole[..len].to_vec()).expect("only padding is missing");
    }
}

#[test]
fn corruption_of_every_header_byte() {
    let whole = written(&small_entries(), &small_tensors());
    let header = whole.len() - 6 * 64;
    let (mut accepted, mut refused) = (0, 0);
    for at in 0..header {
        let flips = (0..8).map(|bit| whole[at] ^ (1 << bit));
        for byte in flips.chain([0, 1, 0x7f, 0xff]) {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            match Gguf::from_bytes(bytes) {
                Ok(model) => {
                    accepted += 1;
                    exercise(&model);
                }
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.blame(), Blame::Input, "{error}");
                    assert!(error.to_string().len() < 600, "{error}");
                }
            }
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

#[test]
fn what_is_not_gguf_3() {
    refused_bytes(Vec::new(), &["magic", "4 bytes are announced", "0 are left"]);
    refused_bytes(b"GGML\x03\0\0\0".to_vec(), &["magic", "'GGML'", "begins with 'GGUF'"]);
    refused_bytes(b"\x1b[2J....".to_vec(), &["'\\x1b[2J'"]);
    for version in [0, 1, 2, 4, 1 << 31] {
        let bytes = Raw(b"GGUF".to_vec()).u32(version).data(32);
        refused_bytes(bytes, &[&format!("version {version}"), "version 3 is wanted"]);
    }
    for version in 1..=3_u32 {
        let bytes = Raw(b"GGUF".to_vec()).bytes(&version.to_be_bytes()).data(32);
        refused_bytes(bytes, &["big-endian", "little-endian"]);
    }
}

#[test]
fn counts_that_the_file_cannot_hold() {
    for count in [3, 1 << 20, 1 << 32, 1 << 60, u64::MAX] {
        refused_bytes(Raw::new(count, 0).0, &["tensor count", "8 are left", "cut short"]);
        refused_bytes(Raw::new(0, count).0, &["metadata count", "0 are left"]);
        let long = count.max(1 << 20);
        refused_bytes(Raw::new(0, 1).u64(long).data(32), &["metadata key 0", "32 are left"]);
        refused_bytes(Raw::new(1, 0).u64(long).data(32), &["name of tensor 0", "32 are left"]);
        let key = Raw::new(0, 1).text("k");
        refused_bytes(key.clone().u32(8).u64(count).0, &["k: ", "0 are left"]);
        for element in 0..=12 {
            let bytes = key.clone().u32(9).u32(element).u64(count).0;
            refused_bytes(bytes, &["k: ", "bytes are announced", "0 are left"]);
        }
    }
}

#[test]
fn counts_past_the_limits() {
    let zeros = vec![0; (TENSORS_MAX + 1) * 32];
    let tensors = Raw::new(TENSORS_MAX as u64 + 1, 0).bytes(&zeros).0;
    refused_bytes(tensors, &["tensor count", "262145", "at most 262144"]);
    let entries = Raw::new(0, ENTRIES_MAX as u64 + 1).bytes(&zeros).0;
    refused_bytes(entries, &["metadata count", "65537", "at most 65536"]);
}

#[test]
fn keys_and_values() {
    let twice = Raw::new(0, 2).text("k").u32(0).bytes(&[1]).text("k").u32(0).bytes(&[1]);
    refused_bytes(twice.0, &["k: ", "the metadata key occurs twice"]);
    refused_bytes(Raw::new(0, 1).text(b"\xff").data(32), &["metadata key 0", "UTF-8"]);
    let entry = |kind: u32| Raw::new(0, 1).text("a.key").u32(kind);
    refused_bytes(entry(8).text(b"x\xc0").0, &["a.key", "UTF-8 text is wanted"]);
    refused_bytes(entry(13).data(32), &["a.key", "value type 13", "0 to 12"]);
    refused_bytes(entry(7).bytes(&[2]).0, &["a.key", "bool 2"]);
    refused_bytes(entry(9).u32(13).u64(1).data(32), &["a.key", "element type 13"]);
    refused_bytes(entry(9).u32(7).u64(2).bytes(&[1, 9]).0, &["a.key", "bool 9"]);
}

#[test]
fn arrays_nest_to_a_limit() {
    let nested = |depth: usize| {
        let start = Raw::new(0, 1).text("deep").u32(9);
        (1..depth).fold(start, |raw, _| raw.u32(9).u64(1)).u32(0).u64(1).bytes(&[5]).0
    };
    for depth in 1..=4 {
        Gguf::from_bytes(nested(depth)).expect("within the limit");
    }
    for depth in [5, 6, 100_000] {
        refused_bytes(nested(depth), &["deep", "nested more than 4 deep"]);
    }
}

#[test]
fn names_do_not_reach_the_terminal_as_they_are() {
    let name = format!("\x1b[31mred\n{}", "x".repeat(5000));
    let error = Gguf::from_bytes(Raw::new(0, 1).text(&name).u32(99).data(32)).err();
    let text = error.expect("no type 99").to_string();
    assert!(text.contains("\\u{1b}[31mred\\nxxx") && text.contains("xxx...: "), "{text}");
    assert!(text.len() < 300 && !text.contains(char::is_control), "{text}");
}

#[test]
fn alignments() {
    let file = |alignment: u32| {
        let start = Raw::new(1, 1).text("general.alignment").u32(4).u32(alignment);
        let offset = u64::from(alignment);
        let mut bytes = start.tensor("t", &[4], F32, offset).0;
        bytes.resize(bytes.len().next_multiple_of(alignment.max(1) as usize), 0);
        bytes.resize(bytes.len() + alignment as usize + 16, 7);
        bytes
    };
    for alignment in [1, 2, 8, 32, 16_384, 1 << 20] {
        let model = Gguf::from_bytes(file(alignment)).expect("a power of two");
        let bytes = model.bytes(&model.tensors()[0]).expect("its data");
        assert_eq!(*bytes, [7; 16], "alignment {alignment}");
    }
    for alignment in [0, 3, 48, (1 << 20) + 1, 1 << 21] {
        let words = ["general.alignment", &alignment.to_string(), "a power of two up to 1048576"];
        refused_bytes(file(alignment), &words);
    }
    let wrong_type = Raw::new(0, 1).text("general.alignment").u32(8).text("32").0;
    refused_bytes(wrong_type, &["general.alignment", "the text '32'", "a whole number"]);
}

#[test]
fn tensors_that_cannot_be() {
    let one = |dims: &[u64], kind, offset| {
        refused_or_not(Raw::new(1, 0).tensor("t", dims, kind, offset).data(64))
    };
    assert_eq!(one(&[8, 2], F32, 0), None);
    let cases: [(&[u64], u32, u64, &str); 12] = [
        (&[], F32, 0, "0 dims"),
        (&[1; 5], F32, 0, "5 dims"),
        (&[0], F32, 0, "dims above zero"),
        (&[4, 0], F32, 0, "dims above zero"),
        (&[33], Q8_0, 0, "rows of whole blocks"),
        (&[u64::MAX, 2], F32, 0, "dims [18446744073709551615, 2]"),
        (&[1 << 32, 1 << 32], F32, 0, "dims [4294967296, 4294967296]"),
        (&[1 << 62], F32, 0, "dims [4611686018427387904]"),
        (&[1 << 40, 1 << 40], 1000, 0, "type 1000"),
        (&[17], F32, 0, "68 bytes are announced, but only 64 are left"),
        (&[16], F32, 32, "64 bytes are announced, but only 32 are left"),
        (&[1], F32, 4, "offset 4"),
    ];
    for (dims, kind, offset, words) in cases {
        let text = one(dims, kind, offset).unwrap_or_else(|| panic!("accepted: {words}"));
        assert!(text.contains(words) && text.contains("t'") | text.contains("t: "), "{text}");
    }
    for offset in [64, 1 << 40, u64::MAX - 31] {
        let text = one(&[1], F32, offset).expect("outside");
        assert!(text.contains("but only 0 are left"), "{text}");
    }
}

fn refused_or_not(bytes: Vec<u8>) -> Option<String> {
    Gguf::from_bytes(bytes).err().map(|error| error.to_string())
}

#[test]
fn many_dims_are_not_read() {
    let start = Raw::new(1, 0).text("t").u32(u32::MAX);
    refused_bytes(start.data(100), &["t: ", "4294967295 dims", "1 to 4"]);
}

#[test]
fn tensor_names_differ_and_are_text() {
    let twice = Raw::new(2, 0).tensor("t", &[1], F32, 0).tensor("t", &[1], F32, 0);
    refused_bytes(twice.data(32), &["tensor 't'", "occurs twice"]);
    let name = Raw::new(1, 0).text(b"\xfe").u32(1).u64(1).u32(F32).u64(0);
    refused_bytes(name.data(32), &["name of tensor 0", "UTF-8"]);
}

#[test]
fn tensors_may_overlap() {
    let two = Raw::new(2, 0).tensor("a", &[16], F32, 0).tensor("b", &[8], F32, 32).data(64);
    let model = Gguf::from_bytes(two).expect("both are inside");
    let data = |name| model.bytes(model.tensor(name).expect("a tensor")).expect("its data");
    assert_eq!(data("a")[32..], *data("b"));
}

#[test]
fn unknown_types_are_listed_and_not_read() {
    // 15 is a block type that we do not have; its data would be outside.
    let bytes = Raw::new(2, 0).tensor("odd", &[256, 9], 15, 1 << 40).tensor("t", &[8], F32, 0);
    let model = Gguf::from_bytes(bytes.data(32)).expect("the other tensor can be used");
    let odd = model.tensor("odd").expect("it is listed");
    assert_eq!((odd.kind, odd.byte_count()), (TensorKind::Other(15), None));
    assert_eq!(odd.element_count(), 256 * 9);
    refused(model.bytes(odd), Blame::Input, &["tensor 'odd'", "stored as type 15", "newer"]);
    exercise(&model);
}

#[test]
fn tensors_of_another_model_are_refused() {
    let model = |name| {
        let bytes = Raw::new(1, 0).tensor(name, &[8], F32, 0).data(32);
        Gguf::from_bytes(bytes).expect("a small model")
    };
    let (a, b) = (model("a"), model("b"));
    refused(a.bytes(&b.tensors()[0]), Blame::Input, &["tensor 'b'", "of another model"]);
}
