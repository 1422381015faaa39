//! Damaged and foreign tokenizer files: a clear error, never a panic, and never a tokenizer in
//! which text could spell a control token.

use ironstar_text::{Error, Parts, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

fn nano_value() -> Value {
    serde_json::from_slice(&crate::support::nano_json()).expect("the nano tokenizer is JSON")
}

/// Loads the nano tokenizer after a change and returns what the refusal says.
fn refusal(change: impl FnOnce(&mut Value)) -> String {
    let mut file = nano_value();
    change(&mut file);
    let json = serde_json::to_vec(&file).expect("JSON");
    Tokenizer::from_json(&json).expect_err("the change makes it unusable").to_string()
}

fn parts_refusal(change: impl FnOnce(&mut Parts)) -> String {
    let mut parts = crate::support::nano().parts();
    change(&mut parts);
    Tokenizer::from_parts(parts).expect_err("the change makes it unusable").to_string()
}

fn check(message: &str, wanted: &[&str]) {
    for part in wanted {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

#[test]
fn files_cut_at_any_length() {
    let json = crate::support::nano_json();
    let ends =
        (0..400).chain((400..json.len()).step_by(997)).chain(json.len() - 40..json.len() - 1);
    for end in ends {
        assert!(matches!(Tokenizer::from_json(&json[..end]), Err(Error::Json(_))), "{end}");
    }
}

#[test]
fn files_that_are_something_else() {
    for json in ["", "null", "[]", "{}", "{\"model\":{}}", "\u{feff}{}", "GGUF\0\0\0"] {
        let error = Tokenizer::from_json(json.as_bytes()).expect_err("not a tokenizer");
        check(&error.to_string(), &["tokenizer.json", "wanted"]);
    }
    let deep = format!("{{\"pre_tokenizer\":{}", "[".repeat(1_000_000));
    assert!(Tokenizer::from_json(deep.as_bytes()).is_err());
}

#[test]
fn what_this_crate_does_not_do_is_named() {
    let split = |file: &mut Value, key: &str, value: Value| {
        file["pre_tokenizer"]["pretokenizers"][2][key] = value;
    };
    let cases: [(&str, String); 10] = [
        ("model.type", refusal(|file| file["model"]["type"] = json!("Unigram"))),
        ("model.byte_fallback", refusal(|file| file["model"]["byte_fallback"] = json!(true))),
        ("model.ignore_merges", refusal(|file| file["model"]["ignore_merges"] = json!(true))),
        ("model.dropout", refusal(|file| file["model"]["dropout"] = json!(0.1))),
        ("model.unk_token", refusal(|file| file["model"]["unk_token"] = json!("<unk>"))),
        ("normalizer", refusal(|file| file["normalizer"] = json!({"type": "NFC"}))),
        ("pre_tokenizer", refusal(|file| file["pre_tokenizer"] = Value::Null)),
        ("Split", refusal(|file| split(file, "pattern", json!({"Regex": "\\p{N}{1,4}"})))),
        ("Split", refusal(|file| split(file, "behavior", json!("Removed")))),
        ("lstrip", refusal(|file| file["added_tokens"][9]["lstrip"] = json!(true))),
    ];
    for (wanted, message) in cases {
        check(&message, &[wanted, "supported"]);
    }
}

#[test]
fn contradictions_are_named() {
    let merge = |file: &mut Value, merge: Value| {
        file["model"]["merges"].as_array_mut().expect("a list").push(merge);
    };
    check(&refusal(|file| merge(file, json!(["q", "Ġzz"]))), &["merge 3792", "Ġzz"]);
    check(&refusal(|file| merge(file, json!("one two three"))), &["merge 3792", "one space"]);
    check(&refusal(|file| merge(file, json!(["a"]))), &["a merge"]);
    check(&refusal(|file| merge(file, json!("Ġ t"))), &["merges 0 and 3792", "once"]);
    check(&refusal(|file| file["model"]["vocab"]["!"] = json!(4)), &["both have the id 4"]);
    check(&refusal(|file| file["model"]["vocab"]["!"] = json!(1_000_000)), &["1000000"]);
    check(&refusal(|file| file["added_tokens"][0]["id"] = json!(7)), &["has the ids 0 and 7"]);
    check(&refusal(|file| file["added_tokens"][3]["content"] = json!("")), &["empty"]);
    let no_newline = |file: &mut Value| {
        let vocab = file["model"]["vocab"].as_object_mut().expect("an object");
        let id = vocab.remove("Ċ").expect("the newline");
        vocab.insert("no newline".to_owned(), id);
    };
    check(&refusal(no_newline), &["0x0a", "256"]);
}

/// A merge that makes a control token would let text spell it.
#[test]
fn h01_a_vocabulary_in_which_text_spells_a_control_token_is_refused() {
    let message = refusal(|file| {
        let id = file["model"]["vocab"]["Ġt"].clone();
        let token = json!({"id": id, "content": "Ġt", "special": true});
        file["added_tokens"].as_array_mut().expect("a list").push(token);
    });
    check(&message, &["control token", "merge"]);
}

#[test]
fn parts_of_damaged_model_files() {
    check(&parts_refusal(|parts| parts.pre = "gpt-2".into()), &["gpt-2", "joyai-llm"]);
    check(&parts_refusal(|parts| parts.tokens.clear()), &["types for 0 tokens"]);
    check(
        &parts_refusal(|parts| *parts = Parts { pre: parts.pre.clone(), ..Parts::default() }),
        &["0x00"],
    );
    check(&parts_refusal(|parts| parts.bos = Some(4096)), &["bos", "4096"]);
    check(&parts_refusal(|parts| parts.kinds[700] = 6), &["token 700", "type 6"]);
    check(&parts_refusal(|parts| parts.tokens[5] = parts.tokens[6].clone()), &["5 and 6"]);
    check(&parts_refusal(|parts| parts.tokens[300] = vec![0xff, 0xfe]), &["merge"]);
}

fn changed_bytes() -> impl Strategy<Value = Vec<(usize, u8)>> {
    prop::collection::vec((any::<usize>(), any::<u8>()), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever loads after damage still keeps text and control tokens apart.
    #[test]
    fn damage_is_refused_or_harmless(changes in changed_bytes()) {
        let mut json = crate::support::nano_json();
        for (at, byte) in changes {
            let at = at % json.len();
            json[at] = byte;
        }
        if let Ok(tokenizer) = Tokenizer::from_json(&json) {
            let text = crate::support::MARKERS.concat();
            let ids = tokenizer.encode(&text);
            prop_assert!(!ids.iter().any(|&id| tokenizer.is_control(id)));
            prop_assert_eq!(tokenizer.decode(&ids), text.as_bytes());
        }
    }
}
