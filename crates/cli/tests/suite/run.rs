//! `ironstar run` and its neighbours, as a person or a script uses them.

use crate::common::{failure, folder, ironstar, project, run, text};
use serde_json::Value;
use std::io::Write;
use std::process::Stdio;

const STORY: [&str; 5] = ["run", "-p", "Tell me a short story.", "--seed", "7"];

fn story(more: &[&str]) -> String {
    let words: Vec<&str> = STORY.iter().chain(more).copied().collect();
    text(&words)
}

#[test]
fn one_answer_whatever_the_machinery() {
    let plain = story(&["--speculate", "off", "--threads", "1"]);
    assert!(plain.split_whitespace().count() > 10, "a story: {plain}");
    for more in [
        &["--threads", "2"][..],
        &["--prefill-chunk", "1"],
        &["--prefill-chunk", "7", "--threads", "2"],
        &["--speculate", "mtp"],
        &["--speculate", "lookup"],
        &["--isa", "scalar"],
        &["--ctx", "300"],
    ] {
        assert_eq!(story(more), plain, "{more:?}");
    }
    assert_ne!(text(&["run", "-p", "Tell me a short story.", "--seed", "8"]), plain);
}

#[test]
fn json_says_what_text_says() {
    let words = ["run", "-p", "What is the capital of France?", "--temp", "0"];
    let plain = text(&words);
    let with_json: Vec<&str> =
        words.iter().chain(&["--json", "--logprobs", "2"]).copied().collect();
    let answer: Value = serde_json::from_str(&text(&with_json)).expect("JSON");
    assert_eq!(answer["content"].as_str().map(|content| format!("{content}\n")), Some(plain));
    assert_eq!(answer["finish"], "stop");
    let tokens = answer["tokens"].as_array().expect("tokens");
    assert_eq!(answer["completion_tokens"], tokens.len());
    for token in tokens {
        let top = token["top"].as_array().expect("alternatives");
        assert_eq!(top.len(), 2);
        // Greedy: the drawn token is the likeliest one.
        assert_eq!((&token["id"], &token["logprob"]), (&top[0]["id"], &top[0]["logprob"]));
        assert!(token["logprob"].as_f64().is_some_and(|logprob| logprob <= 0.0));
    }
}

#[test]
fn the_next_run_need_not_read_again() {
    let folder = folder("states");
    let state_dir = folder.join("new").join("states");
    let state_dir = state_dir.to_str().expect("a path in UTF-8");
    // Ends of prompts are stored when they are further than 64 tokens from a stored one.
    let prompt = "The cat sat on the mat and looked at the bird. ".repeat(12);
    let asked = ["run", "-p", &prompt, "--seed", "7", "-n", "20"];
    let words: Vec<&str> = asked.iter().copied().chain(["--state-dir", state_dir]).collect();
    let (first, second) = (run(&words), run(&words));
    assert_eq!(first.stdout, second.stdout);
    assert_eq!(String::from_utf8_lossy(&first.stdout), text(&asked));
    let told = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told(&first).contains("(0 reused)"), "{}", told(&first));
    assert!(!told(&second).contains("(0 reused)"), "{}", told(&second));
    // A folder that cannot be used costs a line, not the answer.
    std::fs::write(folder.join("file"), b"mine").expect("a file");
    let file = folder.join("file");
    let file = file.to_str().expect("a path in UTF-8");
    let words: Vec<&str> = asked.iter().copied().chain(["--state-dir", file]).collect();
    let output = run(&words);
    assert_eq!(output.stdout, second.stdout);
    assert!(told(&output).contains("state folder"), "{}", told(&output));
}

#[test]
fn a_prompt_may_come_from_a_pipe_or_a_file() {
    let asked = text(&["run", "-p", "Who are you?", "--temp", "0"]);
    let mut child = ironstar(&["run", "--temp", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary was built for this test");
    child.stdin.take().expect("a pipe").write_all(b"Who are you?").expect("a reader");
    let piped = child.wait_with_output().expect("an end");
    assert_eq!(String::from_utf8_lossy(&piped.stdout), asked);

    let file = folder("prompt-file").join("prompt.txt");
    std::fs::write(&file, "Who are you?").expect("a file");
    assert_eq!(
        text(&["run", "--prompt-file", file.to_str().expect("a name"), "--temp", "0"]),
        asked
    );
}

#[test]
fn limits_are_kept() {
    let answer: Value = serde_json::from_str(&story(&["-n", "5", "--json"])).expect("JSON");
    assert_eq!((&answer["completion_tokens"], &answer["finish"]), (&5.into(), &"length".into()));
    let answer: Value = serde_json::from_str(&story(&["--ctx", "20", "--json"])).expect("JSON");
    assert_eq!(answer["finish"], "length");
    let prompt = answer["prompt_tokens"].as_u64().expect("a count");
    assert_eq!(answer["completion_tokens"].as_u64().map(|tokens| tokens + prompt), Some(20));
}

#[test]
fn thinking_goes_to_standard_error() {
    let output = run(&["run", "-p", "What is 2 + 3?", "--think", "--temp", "0"]);
    let (said, thought) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.starts_with("The answer is"), "{said}");
    assert!(thought.contains("2 + 3"), "{thought}");
}

#[test]
fn who_is_to_blame_shows_in_the_exit_code() {
    for (words, code, wanted) in [
        (&["run", "-p", "x", "--temp", "-1"][..], 2, "temp"),
        (&["run", "-p", "x", "--isa", "mmx"], 2, "avx2"),
        (&["frobnicate"], 2, "frobnicate"),
        (&["run", "-p", ""], 2, "empty"),
        (&["run", "-p", "x", "-m", "/nowhere/model.gguf"], 1, "/nowhere/model.gguf"),
        (&["run", "-p", "far too long for this context", "--ctx", "3"], 2, "context"),
        (&["inspect", project("README.md").to_str().expect("a name")], 2, "GGUF"),
        (&["run", "-p", "x", "--ctx", "99999999999"], 2, "at most 1048576"),
        (&["tokens", "--decode", "99999"], 2, "99999"),
    ] {
        let (found, message) = failure(words);
        assert_eq!(found, code, "{words:?}: {message}");
        assert!(message.contains(wanted), "{words:?}: '{wanted}' is not in: {message}");
        assert!(!message.contains("panicked"), "{words:?}: {message}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_fault() {
    let mut child = ironstar(&STORY)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary was built for this test");
    drop(child.stdout.take());
    assert!(child.wait().expect("an end").success());
}

#[test]
fn tokens_go_both_ways() {
    let ids: Value = serde_json::from_str(&text(&["tokens", "Grüße, <think> 你好\r\n", "--json"]))
        .expect("JSON");
    let list = ids["ids"].to_string();
    assert_eq!(text(&["tokens", "--decode", &list]), "Grüße, <think> 你好\r\n");
    let control = |words: &[&str]| text(words).lines().filter(|l| l.ends_with(" control")).count();
    assert_eq!(control(&["tokens", "a<think>b"]), 0);
    assert_eq!(control(&["tokens", "a<think>b", "--raw"]), 1);
}

/// Damage that no header shows is found and named.
#[test]
fn inspect_reads_every_value() {
    let whole = text(&["inspect", "--check"]);
    assert!(whole.contains("all finite"), "{whole}");
    let mut bytes = std::fs::read(project("models/nano.gguf")).expect("the bundled model");
    let gguf = ironstar_gguf::Gguf::from_bytes(bytes.clone()).expect("the bundled model");
    let is_floats = |t: &&ironstar_gguf::TensorInfo| t.kind.name() == "F32";
    let norm = gguf.tensors().iter().find(is_floats).expect("norms are floats");
    let data = gguf.bytes(norm).expect("a known type");
    let at = bytes.windows(data.len()).position(|part| part == &data[..]).expect("inside");
    bytes[at + 8..at + 12].copy_from_slice(&f32::NAN.to_le_bytes());
    let damaged = folder("damaged").join("nano.gguf");
    std::fs::write(&damaged, bytes).expect("room for 22 MB");
    let (code, message) = failure(&["inspect", "--check", damaged.to_str().expect("a name")]);
    assert_eq!(code, 2, "{message}");
    let found = format!("{}: 1 values, the first at 2", norm.name);
    assert!(message.contains(&found), "{message}");
}

#[test]
fn inspect_and_help_are_complete() {
    let about: Value = serde_json::from_str(&text(&["inspect", "--json"])).expect("JSON");
    assert_eq!(about["shape"]["deepseek4.block_count"], 7);
    assert_eq!(about["tensors"].as_array().map(Vec::len), Some(212));
    let drafter = project("models/nano-mtp.gguf");
    let drafter = drafter.to_str().expect("a name");
    let alone = text(&["inspect", drafter]);
    assert!(alone.contains("deepseek4_mtp_support"), "{alone}");
    let about: Value = serde_json::from_str(&text(&["inspect", drafter, "--json"])).expect("JSON");
    assert!(about["shape"].is_null() && about["memory"].is_null(), "{about}");
    let man = text(&["man"]);
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&["completions", shell]);
        for command in
            ["run", "serve", "inspect", "tokens", "quantize", "perplexity", "eval", "steer"]
        {
            assert!(script.contains(command), "{shell}: {command}");
            assert!(man.contains(command), "manual: {command}");
        }
    }
    for flag in ["--prefill-chunk", "--top-p", "--tensor-type", "--kl-against", "--kind"] {
        assert!(man.replace('\\', "").contains(flag), "manual: {flag}");
    }
}
