//! The two ways to look up a character, and characters whose class is known.

use super::{ASCII_LETTER, ASCII_SIGN, CJK, NEWLINE, NUMBER, RUNS, SIGN, SPACE, WORD, class};
use super::{class_flags, flags};

#[test]
fn runs_cover_everything_in_order() {
    assert_eq!(RUNS[0].0, 0);
    assert!(RUNS.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 != pair[1].1));
}

#[test]
fn the_table_says_what_the_runs_say() {
    let classes = WORD | SIGN | NUMBER | SPACE;
    for point in 0..0x11_0000 {
        assert_eq!(flags(point) & classes, class_flags(class(point)), "U+{point:04X}");
    }
}

#[test]
fn ascii_agrees_with_the_standard_library() {
    for byte in 0..=0x7F_u8 {
        let found = flags(u32::from(byte));
        assert_eq!(found & ASCII_LETTER != 0, byte.is_ascii_alphabetic());
        assert_eq!(found & WORD != 0, byte.is_ascii_alphabetic());
        assert_eq!(found & ASCII_SIGN != 0, byte.is_ascii_punctuation());
        assert_eq!(found & SIGN != 0, byte.is_ascii_punctuation());
        assert_eq!(found & NUMBER != 0, byte.is_ascii_digit());
        assert_eq!(found & NEWLINE != 0, matches!(byte, b'\r' | b'\n'));
        assert_eq!(found & SPACE != 0, char::from(byte).is_whitespace());
    }
}

/// White space and numbers are classes that the standard library has too; its Unicode version may
/// be newer than the oracle's, so only what is old is compared.
#[test]
fn old_characters_agree_with_the_standard_library() {
    for symbol in '\0'..='\u{ffff}' {
        let found = flags(u32::from(symbol));
        assert_eq!(found & SPACE != 0, symbol.is_whitespace(), "{symbol:?}");
        if found & NUMBER != 0 {
            assert!(symbol.is_numeric(), "{symbol:?}");
        }
    }
}

#[test]
fn ranges_of_the_second_split() {
    for (point, inside) in [
        (0x303F, false),
        (0x3040, true),
        (0x30FF, true),
        (0x3100, false),
        (0x4DFF, false),
        (0x4E00, true),
        (0x9FA5, true),
        (0x9FA6, false),
        (0x2_0000, false),
    ] {
        assert_eq!(flags(point) & CJK != 0, inside, "U+{point:04X}");
    }
}
