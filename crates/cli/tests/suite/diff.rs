//! `run --dump` and `diff`, as somebody looks for where two runs part.

use crate::common::{failure, folder, ironstar, text};
use serde_json::Value;

fn dump(to: &str, more: &[&str]) {
    let words = ["run", "-p", "Tell me a story.", "-n", "3", "--temp", "0", "--seed", "1"];
    let all: Vec<&str> = words.iter().chain(&["--dump", to]).chain(more).copied().collect();
    text(&all);
}

#[test]
fn two_runs_are_compared() {
    let folder = folder("dumps");
    let path = |name: &str| folder.join(name).to_str().expect("a path in UTF-8").to_owned();
    let (plain, cut, late, float) = (path("plain"), path("cut"), path("late"), path("float"));
    dump(&plain, &[]);
    dump(&cut, &["--prefill-chunk", "3", "--isa", "scalar", "--speculate", "off"]);
    dump(&late, &["--dump-positions", "4-6"]);
    dump(&float, &["--numerics", "float"]);
    let equal = text(&["diff", &plain, &cut]);
    assert!(equal.contains("all bits are equal"), "{equal}");
    assert!(text(&["diff", &late, &plain]).starts_with("3 positions"));

    let (code, message) = failure(&["diff", &plain, &float]);
    // The first product with other arithmetic, not what it leads to.
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("part at layer.0.kv_rows") || message.contains("layer.0.queries"));
    let words = ["diff", &plain, &float, "--json", "--all"];
    let output = ironstar(&words).output().expect("the binary was built for this test");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let tensor = &found["tensors"][2];
    assert_eq!((&found["first"], &tensor["name"]), (&tensor["name"], &"layer.0.queries".into()));
    assert!(tensor["relative"].as_f64().is_some_and(|share| share > 0.0 && share < 0.1));
    assert!(text(&["diff", &plain, &plain, "--tolerance", "0.1"]).contains("equal"));

    for (words, wanted) in [
        (&["diff", &plain, &path("none")][..], "none"),
        (&["run", "-p", "Hi", "--dump", &plain], "empty"),
        (&["run", "-p", "Hi", "--dump", "x", "--dump-positions", "9-3"], "range"),
        (&["run", "-p", "Hi", "--dump-positions", "3-9"], "--dump"),
        (&["diff", &plain, &plain, "--tolerance", "9e9"], "share"),
    ] {
        let (code, message) = failure(words);
        assert!(code != 0 && message.contains(wanted), "{words:?}: {message}");
    }
}
