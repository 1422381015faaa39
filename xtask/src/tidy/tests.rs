use super::check;
use super::source::{Function, Source};
use std::path::Path;

/// Everything that the bad example breaks, message by message. To accept a change of the messages:
/// `cargo xtask tidy --root xtask/tests/bad_tree > xtask/tests/bad_tree.expected`.
#[test]
fn messages_about_a_bad_tree() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let (findings, _) = check(&tests.join("bad_tree")).expect("the example can be read");
    let expected = std::fs::read_to_string(tests.join("bad_tree.expected")).expect("the snapshot");
    let found: Vec<String> = findings.iter().map(ToString::to_string).collect();
    let expected: Vec<&str> = expected.lines().collect();
    assert_eq!(found, expected);
}

/// Each rule is shown by the example, so that none is switched off by accident.
#[test]
fn every_rule_has_an_example() {
    let expected = include_str!("../../tests/bad_tree.expected");
    let missing: Vec<&str> = [
        "function-lines",
        "columns",
        "markers",
        "banned-calls",
        "foreign-paths",
        "expect-sentence",
        "unsafe-places",
        "lint-reasons",
        "ignored-tests",
        "crate-docs",
        "unreachable-files",
        "format-tests",
        "arrows",
        "cycles",
        "explained",
        "exceptions",
    ]
    .into_iter()
    .filter(|rule| !expected.contains(&format!(": {rule}: ")))
    .collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn functions_are_measured_from_fn_to_brace() {
    let text = "trait T { fn none(&self); }\nfn one() {}\nimpl S {\n  pub fn two<'a>(x: [u8; 3])\n\
                \x20 where\n    X: Y,\n  {\n    let c = '}'; // }\n    let s = \"}\";\n  }\n}\n";
    let source = Source::new("a.rs", text.to_string(), false);
    let function = |name: &str, first_line, last_line| Function {
        name: name.to_string(),
        first_line,
        last_line,
    };
    assert_eq!(source.functions(), [function("one", 2, 2), function("two", 4, 10)]);
}

#[test]
fn blanking_keeps_length_and_lines() {
    let cases =
        ["", "'", "\"", "r#\"", "/*", "é'é'\"é\"", "b'\\''", "'a", "\"\\", "// é\n/* é */x"];
    for text in cases {
        let source = Source::new("a.rs", text.to_string(), false);
        assert_eq!(source.code.len(), text.len(), "{text}");
        assert_eq!(source.code.lines().count(), text.lines().count(), "{text}");
    }
}
