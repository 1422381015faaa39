//! Text out of a model, a token at a time.

use ironstar_text::{Channel, ThinkSplitter, Tokenizer, Utf8Stream};
use proptest::prelude::*;

/// The definition: all well-formed characters of the whole, in order.
fn characters(bytes: &[u8]) -> String {
    bytes.utf8_chunks().map(|chunk| chunk.valid().to_owned()).collect()
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> (Vec<String>, Vec<u8>) {
    let mut stream = tokenizer.stream();
    let texts = ids.iter().map(|&id| stream.push(id)).collect();
    (texts, stream.finish())
}

/// H02: an answer that ends inside a character gave bytes that are no text.
#[test]
fn h02_an_answer_may_end_inside_a_character() {
    let nano = crate::support::nano();
    let wave = "👋".as_bytes();
    let ids = nano.encode_bytes(&wave[..3]);
    let (texts, tail) = streamed(&nano, &ids);
    assert_eq!((texts.concat(), tail), (String::new(), wave[..3].to_vec()));
    let (texts, tail) = streamed(&nano, &nano.encode("a👋b"));
    assert_eq!((texts.concat(), tail), ("a👋b".to_owned(), Vec::new()));
}

#[test]
fn bytes_of_no_character_give_no_text() {
    let mut stream = Utf8Stream::default();
    assert_eq!(stream.push(b"a\xff\xf0\x9f"), "a");
    assert_eq!(stream.push(b"b\xed\xa0\x80c\xe4"), "bc");
    assert_eq!(stream.push(b""), "");
    assert_eq!(stream.push(b"\xbd\xa0\xef\xbf\xbd"), "你\u{fffd}");
    assert_eq!(stream.finish(), b"");
}

#[test]
fn unknown_ids_give_nothing() {
    let nano = crate::support::nano();
    assert_eq!(streamed(&nano, &[u32::MAX, 4096]), (vec![String::new(); 2], Vec::new()));
}

#[test]
fn the_end_of_thinking_is_a_token_and_not_its_letters() {
    let nano = crate::support::nano();
    let end = nano.special("</think>").expect("nano thinks");
    let mut ids = nano.encode("so </think> is text");
    ids.push(end);
    ids.extend(nano.encode("yes </think>"));
    let mut splitter = ThinkSplitter::new(&nano, true);
    let (mut reasoning, mut content) = (String::new(), String::new());
    for &id in &ids {
        match splitter.push(id) {
            (Channel::Reasoning, text) => reasoning.push_str(&text),
            (Channel::Content, text) => content.push_str(&text),
        }
    }
    assert_eq!((&*reasoning, &*content), ("so </think> is text", "yes </think>"));
    assert_eq!((splitter.channel(), splitter.finish()), (Channel::Content, Vec::new()));
}

#[test]
fn no_character_spans_two_channels() {
    let nano = crate::support::nano();
    let end = nano.special("</think>").expect("nano thinks");
    let mut splitter = ThinkSplitter::new(&nano, true);
    for id in nano.encode_bytes(b"\xf0\x9f") {
        assert_eq!(splitter.push(id), (Channel::Reasoning, String::new()));
    }
    assert_eq!(splitter.push(end), (Channel::Content, String::new()));
    for id in nano.encode_bytes(b"\x91\x8b") {
        assert_eq!(splitter.push(id), (Channel::Content, String::new()));
    }
    assert_eq!(ThinkSplitter::new(&nano, false).channel(), Channel::Content);
}

fn nano() -> &'static Tokenizer {
    static NANO: std::sync::OnceLock<Tokenizer> = std::sync::OnceLock::new();
    NANO.get_or_init(crate::support::nano)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// However bytes are cut, the text is the same.
    #[test]
    fn cuts_change_nothing(
        pieces in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..5),
            "[a你👋é\u{fffd}]{0,3}".prop_map(String::into_bytes),
        ], 0..12),
        cuts in prop::collection::vec(0_usize..5, 1..20),
    ) {
        let bytes = pieces.concat();
        let (mut stream, mut text, mut rest) = (Utf8Stream::default(), String::new(), &*bytes);
        let mut cuts = cuts.into_iter().cycle();
        let mut empty = 0;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
            empty = if part.is_empty() { empty + 1 } else { 0 };
            text.push_str(&stream.push(part));
            rest = after;
            if empty > 20 {
                break;
            }
        }
        text.push_str(&stream.push(rest));
        prop_assert_eq!(&text, &characters(&bytes));
        prop_assert!(bytes.ends_with(&stream.finish()));
    }

    /// Any ids, in any order, give the characters of the bytes that they decode to.
    #[test]
    fn any_ids_give_whole_characters(ids in prop::collection::vec(0_u32..4100, 0..60)) {
        let (texts, tail) = streamed(nano(), &ids);
        let bytes = nano().decode(&ids);
        prop_assert_eq!(texts.concat(), characters(&bytes));
        prop_assert!(bytes.ends_with(&tail));
    }

    /// Text that is encoded comes out of the stream as it was, replacement characters included.
    #[test]
    fn text_comes_back(text in any::<String>()) {
        let (texts, tail) = streamed(nano(), &nano().encode(&text));
        prop_assert_eq!(texts.concat(), text);
        prop_assert!(tail.is_empty());
    }
}
