//! The tokenizer: its file, its encoder, its streams.

use super::{Target, signature};
use ironstar_text::{Parts, Segment, Tokenizer, Utf8Stream};
use std::sync::OnceLock;

/// A small tokenizer with all bytes, some merges and all markers (`tests/golden/make/`).
pub(super) const SMALL: &[u8] = include_bytes!("../../seeds/tokenizer.json");

/// Any bytes as a `tokenizer.json`.
pub const TOKENIZER: Target = Target {
    name: "tokenizer-json",
    seeds: || vec![SMALL.to_vec()],
    dictionary: &[
        b"\"id\":",
        b"\"vocab\":{",
        b"\"merges\":[",
        b"\"special\":true",
        b"\"\\u0000\"",
        b"\"\\ud800\"",
        b"18446744073709551615",
        b"-1",
        b"null",
        b"[[[[[[[[",
        b"{\"a\":",
        "\"\u{120}t he\"".as_bytes(),
    ],
    len_max: 16 * 1024,
    base_bytes: 4 << 20,
    bytes_per_byte: 400,
    run: tokenizer,
};

/// Any bytes as text: what is encoded decodes to itself, and holds no control token.
pub const ENCODE: Target = Target {
    name: "text-encode",
    seeds: texts,
    dictionary: WORDS,
    len_max: 4096,
    base_bytes: 1 << 20,
    bytes_per_byte: 200,
    run: encode,
};

/// Any bytes or ids, cut anywhere: a stream gives the same characters.
pub const STREAM: Target = Target {
    name: "text-stream",
    seeds: texts,
    dictionary: WORDS,
    len_max: 2048,
    base_bytes: 1 << 20,
    bytes_per_byte: 200,
    run: stream,
};

const WORDS: &[&[u8]] = &[
    "<\u{ff5c}User\u{ff5c}>".as_bytes(),
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>".as_bytes(),
    b"</think>",
    "\u{ff5c}DSML\u{ff5c}".as_bytes(),
    b"<dsml:",
    b"\r\n",
    b"   ",
    b"'s",
    b"\xf0\x9f\x91\xa9\xe2\x80\x8d",
    b"\xe4\xbd\xa0",
    b"\xcc\x81",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xc0\x80",
    b"\xff",
    b"1234567",
];

pub(super) fn small() -> &'static Tokenizer {
    static BUILT: OnceLock<Tokenizer> = OnceLock::new();
    BUILT.get_or_init(|| Tokenizer::from_json(SMALL).expect("the seed is a tokenizer"))
}

fn texts() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 6] = [
        b"The cat sat on the mat; it's 12345 o'clock.\n\n  fn main() { let x = 1_000; }\r\n\t",
        "Gr\u{fc}\u{df}e, \u{4f60}\u{597d}\u{4e16}\u{754c}, \u{3053}\u{3093}\u{306b}".as_bytes(),
        "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{915}\u{94d}\u{937} e\u{301}".as_bytes(),
        "<\u{ff5c}User\u{ff5c}>hello</think><\u{ff5c}Assistant\u{ff5c}>".as_bytes(),
        b"\xf0\x9f\x91 broken \xe4\xbd \xff\xfe \xed\xa0\x80",
        b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ];
    texts.iter().map(|text| text.to_vec()).collect()
}

fn tokenizer(bytes: &[u8]) -> u64 {
    let tokenizer = match Tokenizer::from_json(bytes) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return signature(&error.to_string()),
    };
    let parts: Parts = tokenizer.parts();
    let again = Tokenizer::from_parts(parts.clone()).expect("its own parts are good");
    assert_eq!(parts, again.parts(), "the parts of the parts differ");
    let mut seen = 0;
    for text in texts() {
        let ids = tokenizer.encode_bytes(&text);
        assert_eq!(tokenizer.decode(&ids), text, "a text did not come back");
        assert_eq!(ids, again.encode_bytes(&text), "a tokenizer and its parts differ");
        seen = seen * 31 + ids.len() as u64;
    }
    seen
}

fn encode(bytes: &[u8]) -> u64 {
    let tokenizer = small();
    let ids = tokenizer.encode_bytes(bytes);
    assert_eq!(tokenizer.decode(&ids), bytes, "a text did not come back");
    assert!(ids.iter().all(|&id| !tokenizer.is_control(id)), "text became a control token");
    if let Ok(text) = std::str::from_utf8(bytes) {
        let cut = text.floor_char_boundary(text.len() / 2);
        let segments = [&text[..cut], &text[cut..]].map(|part| Segment::Text(part.to_string()));
        let joined = tokenizer.encode_segments(&segments).expect("plain text needs no marker");
        assert_eq!(joined, ids, "two neighbouring texts are not one");
        let rendered = tokenizer.encode_rendered(text);
        assert_eq!(tokenizer.decode(&rendered), bytes, "a rendered text did not come back");
    }
    let longest = ids.iter().map(|&id| tokenizer.token_bytes(id).len()).max().unwrap_or(0);
    (bytes.len() * 8 / ids.len().max(1) * 64 + longest) as u64
}

fn stream(bytes: &[u8]) -> u64 {
    let tokenizer = small();
    let count = bytes.first().map_or(1, |&b| usize::from(b % 7) + 1);
    let mut stream = Utf8Stream::default();
    let cut: String = bytes.chunks(count).map(|chunk| stream.push(chunk)).collect();
    let tail = stream.finish();
    let wanted: String = bytes.utf8_chunks().map(|chunk| chunk.valid().to_string()).collect();
    assert_eq!(cut, wanted, "in chunks of {count}");
    assert!(bytes.ends_with(&tail), "the tail is not the end of the input");

    let ids: Vec<u32> =
        bytes.as_chunks::<2>().0.iter().map(|&b| u16::from_le_bytes(b).into()).collect();
    let mut stream = tokenizer.stream();
    let text: String = ids.iter().map(|&id| stream.push(id)).collect();
    let whole = tokenizer.decode(&ids);
    let wanted: String = whole.utf8_chunks().map(|chunk| chunk.valid().to_string()).collect();
    assert_eq!(text, wanted, "ids {ids:?}");
    assert!(whole.ends_with(&stream.finish()), "the tail is not the end of the ids' bytes");
    (tail.len() * 8 + count) as u64
}
