//! What gates cost, a group that measures itself, and predictions from what it found.

use crate::common::{failure, ironstar, text};
use serde_json::Value;
use std::path::PathBuf;

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&text(words)).expect("one object")
}

/// A file of this test run.
fn file(name: &str, content: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).expect("the folder is there");
    path
}

const RUN: [&str; 11] =
    ["run", "-p", "Once", "-n", "8", "--seed", "1", "--speculate", "off", "--threads", "2"];

#[test]
fn gates_are_told_by_kind_and_one_by_one() {
    let words: Vec<&str> =
        RUN.iter().copied().chain(["--ranks", "2", "--profile-gates=trace"]).collect();
    let output = ironstar(&words).output().expect("the binary was built for this test");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    for word in ["p50 us", "attention", "ffn", "vocabulary", "computed"] {
        assert!(errors.contains(word), "{word}: {errors}");
    }
    let words: Vec<&str> = words.into_iter().chain(["--json"]).collect();
    let answer = json(&words);
    let (gates, tokens) = (&answer["gates"], answer["completion_tokens"].as_u64());
    let count = |kind: &str| {
        let kinds = gates["kinds"].as_array().expect("a list");
        let found = kinds.iter().find(|k| k["kind"] == kind).expect("every pass has it");
        found["count"].as_u64().expect("a number")
    };
    assert_eq!(count("attention"), count("ffn"));
    // One step reads the prompt, and each token but the last is one.
    assert_eq!(Some(count("vocabulary")), tokens);
    let trace = gates["trace"].as_array().expect("a list");
    let layers = count("attention") / count("vocabulary");
    assert_eq!(trace.len() as u64, 2 * layers + 1, "one token's gates");
    assert_eq!(trace.last().expect("it has some")["kind"], "vocabulary");
    assert_eq!(gates["exchange_nothing"], false);
}

#[test]
fn a_rank_alone_says_that_its_tokens_are_wrong() {
    let words: Vec<&str> = RUN
        .iter()
        .copied()
        .chain(["--ranks", "2", "--fake-gates", "--profile-gates", "--json"])
        .collect();
    let output = ironstar(&words).output().expect("the binary was built for this test");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.contains("every token is wrong"), "{errors}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(answer["gates"]["exchange_nothing"], true);
    assert!(answer["gates"].get("trace").is_none(), "nobody asked for it");
    let (code, errors) = failure(&["run", "-p", "x", "--profile-gates"]);
    assert!(code == 2 && errors.contains("add --ranks"), "{code} {errors}");
}

#[test]
fn a_group_measures_itself_and_a_plan_is_made_of_it() {
    let words = ["doctor", "--cluster", "--ranks", "2", "--transport", "tcp", "--threads", "2"];
    let found = json(&[&words[..], &["--json"]].concat());
    let sizes: Vec<u64> = found["gates"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|gate| gate["bytes"].as_u64().expect("a number"))
        .collect();
    assert!(sizes.contains(&64) && sizes.contains(&(16 << 20)) && sizes.is_sorted(), "{sizes:?}");
    assert_eq!(found["hops"].as_array().map(Vec::len), Some(2), "a token's, and a step's");
    for way in ["single", "tensor", "pipeline"] {
        let rate = found["predicted"][way]["decode_tps"].as_f64().expect("a rate");
        assert!(rate > 0.0 && rate.is_finite(), "{way}: {rate}");
    }
    assert!(["single", "tensor", "pipeline"].map(Value::from).contains(&found["use"]["answers"]));

    let costs = file("clusterops-costs.json", &found.to_string());
    let costs = costs.to_str().expect("UTF-8");
    let plan = json(&["sim", "--costs", costs, "--ranks", "1,2,8", "--json"]);
    let lines = plan["predictions"].as_array().expect("a list");
    let tensor = lines.iter().find(|line| line["ranks"] == 2 && line["tensor"] == 2);
    assert_eq!(
        tensor.expect("nano can be shared by two")["decode_tps"],
        found["predicted"]["tensor"]["decode_tps"],
        "two commands, one arithmetic"
    );
    assert!(text(&["sim", "--costs", costs]).contains("pipeline"));

    // A run at exactly the predicted rate agrees, one at twice of it does not.
    let rate = tensor.and_then(|line| line["decode_tps"].as_f64()).expect("a rate");
    let bench = |name: &str, rate: f64| {
        let row = serde_json::json!({"gen_tps": rate, "prefill_tps": 9.0});
        file(name, &serde_json::json!({"ranks": 2, "rows": [row]}).to_string())
    };
    let (same, other) =
        (bench("clusterops-same.json", rate), bench("clusterops-2.json", rate * 2.0));
    let path = |path: &PathBuf| path.to_str().expect("UTF-8").to_owned();
    let near = text(&["sim", "--costs", costs, "--against", &path(&same)]);
    assert!(near.contains("+0.0 %"), "{near}");
    let (code, errors) = failure(&["sim", "--costs", costs, "--against", &path(&other)]);
    assert!(code == 1 && errors.contains("-50.0 %"), "{code} {errors}");
}

#[test]
fn groups_and_files_that_make_no_sense_are_refused() {
    let empty = file("clusterops-empty.json", "{}");
    let empty = empty.to_str().expect("UTF-8");
    for (words, reason) in [
        (vec!["doctor", "--cluster"], "--ranks N"),
        (vec!["doctor", "--cluster", "--ranks", "3"], "1, 2, 4 or 8"),
        (vec!["doctor", "--cluster", "--ranks", "2", "--transport", "pigeon"], "one of"),
        (vec!["doctor", "--join", "127.0.0.1:9"], "--cluster"),
        (vec!["sim", "--costs", empty], "missing field `model`"),
        (vec!["sim", "--costs", empty, "--ranks", "0"], "0"),
    ] {
        let (code, errors) = failure(&words);
        assert!(code == 2 && errors.contains(reason), "{words:?}: {code} {errors}");
    }
}
