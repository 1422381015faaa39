//! Pieces of small texts, worked out by hand from the published patterns, and the rule for bytes
//! that are not UTF-8. The golden ids check the scanner on 33 MB.

use proptest::prelude::*;

use super::Pieces;

fn check(text: &str, expected: &[&str]) {
    let pieces = Pieces::new(text.as_bytes()).map(|piece| std::str::from_utf8(piece).unwrap());
    assert_eq!(pieces.collect::<Vec<_>>(), expected, "{text:?}");
}

#[test]
fn words_take_one_character_before_them() {
    check("Hello world", &["Hello", " world"]);
    check("a\tb", &["a", "\tb"]);
    check("don't", &["don", "'t"]);
    check("don’t", &["don", "’", "t"]);
    check("_x+é", &["_x", "+", "é"]);
    check("e\u{301}x \u{301}", &["e\u{301}x", " \u{301}"]);
    check("\u{1}\u{2}a\u{3}", &["\u{1}", "\u{2}a", "\u{3}"]);
}

#[test]
fn ascii_letters_end_where_ascii_ends() {
    check(".aé", &[".a", "é"]);
    check("..a", &["..", "a"]);
    check(".é", &[".", "é"]);
}

#[test]
fn numbers_come_in_threes() {
    check("12345", &["123", "45"]);
    check("a1b", &["a", "1", "b"]);
    check("½²٣Ⅷ", &["½²٣", "Ⅷ"]);
}

#[test]
fn white_space_keeps_its_last_newline_and_gives_up_its_last_space() {
    check("a   b", &["a", "  ", " b"]);
    check("a   ", &["a", "   "]);
    check("a   1", &["a", "   ", "1"]);
    check("a  你", &["a", "  ", "你"]);
    check(" \n  x", &[" \n", " ", " x"]);
    check("\r\n\r\na", &["\r\n\r\n", "a"]);
    check("  .", &[" ", " ."]);
    check("\u{a0}\u{a0}x", &["\u{a0}", "\u{a0}x"]);
}

#[test]
fn signs_take_a_space_before_and_newlines_after() {
    check(" ->\n\nx", &[" ->\n\n", "x"]);
    check("x !\r\n y", &["x", " !\r\n", " y"]);
}

#[test]
fn ideographs_and_kana_are_a_world_of_their_own() {
    check("a日本、b", &["a", "日本", "、", "b"]);
    check("日本・大", &["日本", "・", "大"]);
    check("あ\u{3099}ー", &["あ\u{3099}ー"]);
    check(" あ", &[" ", "あ"]);
    check("\u{3040}\u{3040}あ", &["\u{3040}", "\u{3040}あ"]);
    check("龥龦", &["龥", "龦"]);
}

/// One private character for each byte that is not UTF-8.
fn stand_in(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| '\u{e000}'));
    }
    text
}

proptest! {
    #[test]
    fn broken_bytes_are_characters_of_no_class(
        text in "[ a-zé你ア・.!0-9\n\u{301}]{0,40}",
        broken in prop::collection::vec((0_usize..60, 0x80_u8..=0xff), 0..6),
    ) {
        let mut bytes = text.into_bytes();
        for (at, byte) in broken {
            bytes.insert(at.min(bytes.len()), byte);
        }
        let text = stand_in(&bytes);
        // A private character has three bytes, the byte it stands for one.
        let lengths = Pieces::new(text.as_bytes()).map(|piece| {
            piece.len() - 2 * piece.windows(3).filter(|w| *w == "\u{e000}".as_bytes()).count()
        });
        let found = Pieces::new(&bytes).map(<[u8]>::len);
        prop_assert_eq!(found.collect::<Vec<_>>(), lengths.collect::<Vec<_>>());
    }

    #[test]
    fn pieces_are_the_text(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let pieces: Vec<&[u8]> = Pieces::new(&bytes).collect();
        prop_assert!(pieces.iter().all(|piece| !piece.is_empty()));
        prop_assert_eq!(pieces.concat(), bytes);
    }
}
