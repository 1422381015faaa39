//! `ironstar synth` writes models that the engine runs, `ironstar doctor` says what fits, and
//! `ironstar bench` how fast they are.

use crate::common::{failure, folder, run, text};
use ironstar_engine::{
    BackendChoice, CancelFlag, Control, DrafterChoice, Engine, EngineOptions, Generate, Speculation,
};
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
        let drafter = folder.join("drafter");
        if mix == "q2" {
            more.extend(["--mtp", drafter.to_str().expect("a plain path")]);
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
        if mix == "q2" {
            guesses(&path, &drafter);
        }
    }
}

/// The next-token block runs beside its model, and what it guesses changes nothing.
fn guesses(model: &Path, drafter: &Path) {
    let options = EngineOptions {
        backend: BackendChoice::Cpu,
        drafter: DrafterChoice::File(drafter.to_owned()),
        ..EngineOptions::default()
    };
    let mut engine = Engine::open(model, options, &mut |_| {}).expect("a model and a block");
    let mut answer = |speculation| {
        let mut session = engine.session(64).expect("room");
        let go = CancelFlag::default();
        session.sync(&mut engine, &[3, 300, 301], &mut |_| {}, &go).expect("it fits");
        let what = Generate { seed: 1, tokens_max: Some(6), speculation, ..Generate::default() };
        let made = session.generate(&mut engine, &what, &mut |_| Control::Continue, &go);
        (session.tokens().to_vec(), made.expect("an answer").speculation.drafted)
    };
    let (plain, none) = answer(Speculation::Off);
    let (guessed, some) = answer(Speculation::Mtp);
    assert!(plain == guessed && none == 0 && some > 0, "{plain:?}, {guessed:?}, {some}");
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

/// Two frontiers of the bundled model: what was read, what is said of it, and the yardstick's
/// columns first.
#[test]
fn bench_reads_and_answers_at_every_frontier() {
    let folder = folder("bench-frontiers");
    let csv = folder.join("out.csv");
    let words = "bench --backend cpu --ctx-start 40 --ctx-max 100 --step-incr 50 -n 3 --repeat 2 \
                 --json --csv";
    let mut words: Vec<&str> = words.split_whitespace().collect();
    words.push(csv.to_str().expect("a plain path"));
    let report: Value = serde_json::from_str(&text(&words)).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let column = |name: &str| -> Vec<f64> {
        rows.iter().map(|row| row[name].as_f64().expect("a number")).collect()
    };
    assert_eq!(column("ctx_tokens"), [40.0, 90.0]);
    assert_eq!(column("prefill_tokens"), [40.0, 50.0]);
    assert_eq!(column("gen_tokens"), [3.0, 3.0]);
    assert_eq!(column("gen_steady_tokens"), [2.0, 2.0]);
    for name in ["prefill_tps", "gen_tps", "gen_first_ms", "gen_steady_tps", "kvcache_bytes"] {
        assert!(column(name).iter().all(|n| *n > 0.0), "{name}: {report}");
    }
    let [near, far] = column("gen_bytes_per_token")[..] else { panic!("two rows") };
    assert!(far > near, "a deeper token reads more of the state: {near}, {far}");
    assert!(report["read_bytes_per_second"].as_f64() > Some(1e7));
    assert!(column("gen_bandwidth_fraction").iter().all(|f| *f > 0.0), "{report}");
    let table = std::fs::read_to_string(&csv).expect("it was written");
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with(
        "ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,gen_first_ms,\
         gen_steady_tokens,gen_steady_tps,kvcache_bytes,"
    ));
    assert!(lines.len() == 3 && lines[1].starts_with("40,40,") && lines[2].starts_with("90,50,"));
    assert!(lines.iter().all(|line| line.split(',').count() == lines[0].split(',').count()));
    let (code, message) = failure(&words);
    assert!(code == 2 && message.contains("--force"), "{message}");
}

/// A deep state that nobody read is named as such, and sessions answer in common steps.
#[test]
fn bench_fills_states_with_random_rows_and_says_so() {
    let words = "bench --backend cpu --fill random --fill-tail 5 --sessions 3 --ctx-start 2000 \
                 --ctx-max 2000 -n 2";
    let words: Vec<&str> = words.split_whitespace().collect();
    let shown = text(&words);
    assert!(shown.contains("states are random rows"), "{shown}");
    // Fifteen tokens read and six given, of three sessions.
    let row: Vec<&str> = shown.lines().last().expect("a row").split_whitespace().collect();
    assert_eq!((row[0], row[1], row[3]), ("2000", "15", "6"), "{shown}");
}

/// A random model that is nowhere is measured as a file is.
#[test]
fn bench_makes_the_model_itself() {
    let words = "bench --synth tiny --synth-layers 1 --synth-mix q4 --backend cpu --ctx-max 3 -n 2 \
                 --json";
    let words: Vec<&str> = words.split_whitespace().collect();
    let report: Value = serde_json::from_str(&text(&words)).expect("JSON");
    assert_eq!(report["model"], "random tiny of mix q4, seed 1");
    assert_eq!(report["rows"][0]["gen_tokens"], 2, "{report}");
}

#[test]
fn bench_refuses_what_cannot_be_measured() {
    let folder = folder("bench-refused");
    let ids = folder.join("ids");
    std::fs::write(&ids, "1 2 3 4 5").expect("writable");
    let ids = ids.to_str().expect("a plain path");
    for (words, wanted) in [
        ("--ctx-max 99999999", "context is"),
        ("--ctx-start 30 --ctx-max 20", "must not be beyond"),
        ("--step-mul 0.5", "1 or more"),
        ("--ctx-max 4 -n 2 --ids FILE", "the prompt has 5 tokens"),
        ("--ctx-max 40 --ctx-alloc 41", "must fit"),
        ("--synth tiny --synth-layers 99", "--layers 99: 1 to"),
        ("--synth tiny --ranks 2", "is for one device"),
        ("--synth-layers 2", "--synth"),
    ] {
        let words = words.split(' ').map(|word| if word == "FILE" { ids } else { word });
        let words: Vec<&str> = ["bench", "--backend", "cpu"].into_iter().chain(words).collect();
        let (code, message) = failure(&words);
        assert!(code == 2 && message.contains(wanted), "{words:?}: {message}");
    }
}
