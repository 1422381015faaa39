//! Spacing, escapes and numbers.

use proptest::prelude::*;
use serde_json::Value;

use super::JsonText;

fn check(json: &str, expected: &str) {
    assert_eq!(JsonText::parse(json).expect("valid").as_str(), expected);
}

#[test]
fn spacing_is_the_trained_one() {
    check(r#"{"b":[1,2],"a":{"c":null}}"#, r#"{"b": [1, 2], "a": {"c": null}}"#);
    check(" [ ] ", "[]");
    check("{\n\t\"a\" : [ 1 ,\r\n 2 ] }", r#"{"a": [1, 2]}"#);
    check(r#"{"a b":" , : "}"#, r#"{"a b": " , : "}"#);
}

#[test]
fn numbers_keep_their_spelling() {
    let numbers = "[1, 1.0, 1e5, 1E+5, -0, 0.10, 123456789012345678901234567890, 1e999]";
    check(&numbers.replace(' ', ""), numbers);
}

#[test]
fn strings_have_one_spelling() {
    check(r#""\u00e9\/\u4f60\ud83d\ude00\n\u0001\"\\""#, r#""é/你😀\n\u0001\"\\""#);
}

#[test]
fn what_is_not_json_is_refused() {
    for json in ["", "{", "[1,]", "01", "1 2", "\"\\x\"", "{\"a\"}", "nul", "\"\\ud800\""] {
        assert!(JsonText::parse(json).is_err(), "{json}");
    }
    let deep = "[".repeat(100_000);
    assert!(JsonText::parse(&deep).is_err());
}

#[test]
fn entries_of_an_object() {
    let json = r#"{"a":1,"b":{"x":[1,{"y":","}]},"c":"d: e, f","a":2,"é":true}"#;
    let entries = JsonText::parse(json).expect("valid").entries().expect("an object");
    let entries: Vec<(&str, &str)> =
        entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let wanted =
        [("a", "2"), ("b", r#"{"x": [1, {"y": ","}]}"#), ("c", r#""d: e, f""#), ("é", "true")];
    assert_eq!(entries, wanted);
    let entries = |json: &str| JsonText::parse(json).expect("valid").entries();
    assert_eq!(entries("{}"), Some(Vec::new()));
    assert_eq!(entries("[1]"), None);
    assert_eq!(entries("\"{}\""), None);
}

/// JSON values of every kind.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        // Eighths: serde_json reads back other fractions only nearly.
        any::<i32>().prop_map(|x| Value::from(f64::from(x) / 8.0)),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn the_value_stays_the_same(value in values()) {
        let text = JsonText::from(&value);
        let again: Value = serde_json::from_str(text.as_str()).expect("still JSON");
        prop_assert_eq!(&again, &value);
        prop_assert_eq!(&JsonText::parse(text.as_str()).expect("still JSON"), &text);
        let pretty = serde_json::to_string_pretty(&value).expect("JSON");
        prop_assert_eq!(&JsonText::parse(&pretty).expect("JSON"), &text);
        if let Value::Object(object) = &value {
            let entries = text.entries().expect("an object");
            let wanted: Vec<(String, JsonText)> =
                object.iter().map(|(key, value)| (key.clone(), value.into())).collect();
            prop_assert_eq!(entries, wanted);
        }
    }
}
