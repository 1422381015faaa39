//! `ironstar synth` writes models that the engine runs, and `ironstar doctor` says what fits.

mod common;

use common::{failure, folder, run, text};
use ironstar_engine::{BackendChoice, CancelFlag, Engine, EngineOptions};
use serde_json::Value;
use std::path::Path;

const SMALL: [&str; 4] = ["--layers", "4", "--experts", "8"];

fn synth(path: &Path, more: &[&str]) {
    let mut words = vec!["synth", path.to_str().expect("a plain path")];
    words.extend(SMALL);
    words.extend(more);
    run(&words);
}

#[test]
fn equal_flags_give_equal_files_and_another_seed_does_not() {
    let folder = folder("synth-equal");
    let [a, b, c] = ["a", "b", "c"].map(|name| folder.join(name));
    synth(&a, &[]);
    synth(&b, &["--seed", "1"]);
    synth(&c, &["--seed", "2"]);
    let [a, b, c] = [a, b, c].map(|path| std::fs::read(path).expect("it was written"));
    assert!(a == b && a != c && a.len() == c.len());
}

/// Every mix, with data of its own and with shared data: finite logits that depend on the token,
/// and more experts read than one token uses.
#[test]
fn what_is_written_runs_and_uses_many_experts() {
    let folder = folder("synth-runs");
    let prompt = folder.join("prompt");
    for (mix, alias) in [("q2", false), ("q4", true), ("mxfp4", true)] {
        let path = folder.join(mix);
        let mut more = vec!["--mix", mix, "--prompt-tokens", "40"];
        more.extend(["--prompt", prompt.to_str().expect("a plain path")]);
        if alias {
            more.extend(["--alias", "1"]);
        }
        synth(&path, &more);
        let options = EngineOptions { backend: BackendChoice::Cpu, ..EngineOptions::default() };
        let mut engine = Engine::open(&path, options, &mut |_| {}).expect("a model");
        let text = std::fs::read_to_string(&prompt).expect("the prompt was written");
        let tokens = engine.tokenizer().expect("a vocabulary").encode(&text);
        let distinct: std::collections::HashSet<_> = tokens.iter().collect();
        assert!(tokens.len() >= 40 && distinct.len() > 30, "{mix}: {tokens:?}");
        let mut session = engine.session(64).expect("room");
        session
            .sync(&mut engine, &tokens, &mut |_| {}, &CancelFlag::default())
            .expect("the prompt fits");
        let logits = session.logits().expect("the prompt was evaluated").to_vec();
        assert!(logits.iter().all(|l| l.is_finite()), "{mix}");
        let prompt = engine.counters().expert_bytes;
        let next = session.push(&mut engine, 300).expect("one more token");
        assert_ne!(next, logits, "{mix}");
        let token = engine.counters().expert_bytes - prompt;
        assert!(prompt > token, "{mix}: {prompt} bytes for the prompt, {token} for a token");
    }
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_overwritten() {
    let folder = folder("synth-refused");
    let path = folder.join("model");
    let name = path.to_str().expect("a plain path");
    let (code, message) = failure(&["synth", name, "--layers", "44", "--shape", "flash"]);
    assert!(code == 2 && message.contains("1 to 43"), "{message}");
    let (code, message) = failure(&["synth", name, "--experts", "5"]);
    assert!(code == 2 && message.contains("6 to 32"), "{message}");
    assert!(!path.exists());
    std::fs::write(&path, "mine").expect("writable");
    let (code, message) = failure(&["synth", name]);
    assert!(code == 2 && message.contains("--force"), "{message}");
    assert_eq!(std::fs::read(&path).expect("still there"), b"mine");
}

#[test]
fn doctor_answers_with_or_without_a_card() {
    let report: Value = serde_json::from_str(&text(&["doctor", "--json"])).expect("JSON");
    assert!(report["processor"]["cores"].as_u64() >= Some(1));
    assert!(report["processor"]["read_bytes_per_second"].as_f64() > Some(1e8));
    assert!(report["cuda"].is_array() != report["cuda_error"].is_string(), "{report}");
    assert_eq!(report["models"].as_array().map(Vec::len), Some(6));
    let shown = text(&["doctor"]);
    for word in ["read bandwidth", "DeepSeek V4 Flash q2", "80.76 GiB"] {
        assert!(shown.contains(word), "{shown}");
    }
}
