//! DSpark: a block of guesses does not depend on how the tokens before it came in, files that do
//! not fit are refused, and every spelling of a file is read.
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

use crate::common::{Runner, default_mode, exact, joined, same_bits};
use crate::one_answer::quantised;
use ironstar_device::CpuConfig;
use ironstar_gguf::{Array, Gguf, Value};
use ironstar_model::deepseek_v4::{SparkShape, TensorSpec, spark_specs};
use ironstar_model::testing::{Encoded, Tiny, file_bytes, floats};
use ironstar_model::{Drafted, Error, LogitsFor, Model, Options, ROLLBACK_ROWS, Wanted};

const CONTEXT: usize = 400;

struct Case {
    name: &'static str,
    gguf: Gguf,
    spark: Gguf,
    mode: (CpuConfig, Options),
    tokens: Vec<u32>,
}

impl Case {
    fn runner(&self) -> Runner {
        Runner::new(&self.gguf, Some(&self.spark), self.mode.clone(), CONTEXT)
    }
}

fn cases() -> [Case; 2] {
    let case = |name, seed, mode, quantise: bool| {
        let tiny = Tiny::small(seed);
        let encode: &dyn Fn(&TensorSpec, &[f32]) -> Encoded =
            if quantise { &quantised } else { &floats };
        let (gguf, spark) = (tiny.gguf_as(encode), tiny.dspark_as(encode));
        Case { name, gguf, spark, mode, tokens: tiny.tokens(300) }
    };
    [case("exact", 3, exact(), false), case("default", 4, default_mode(1, None), true)]
}

fn step(runner: &mut Runner, tokens: &[u32]) {
    let wanted = Wanted { logits: LogitsFor::Last, drafts: LogitsFor::None };
    runner.watched(tokens, &wanted, None);
}

fn draft(runner: &mut Runner, anchor: u32) -> Drafted {
    let drafted = runner.model.draft_tokens(&mut runner.cpu, &runner.state, anchor, 16).unwrap();
    assert_eq!((drafted.tokens.len(), drafted.logits.len(), drafted.confidence.len()), (5, 5, 5));
    assert!(drafted.logits.values().iter().chain(&drafted.confidence).all(|v| v.is_finite()));
    drafted
}

#[track_caller]
fn same(a: &Drafted, b: &Drafted, what: &str) {
    assert_eq!(a.tokens, b.tokens, "{what}");
    same_bits(a.logits.values(), b.logits.values(), what);
    same_bits(&a.confidence, &b.confidence, what);
}

/// Cuts, wrong guesses that are taken back, drafts on the way, restoring, and taking back by steps.
#[test]
fn a_draft_depends_on_the_tokens_alone() {
    for case in cases() {
        for at in [1, 2, 5, 16, 17, 90, 128, 129, 250] {
            let (what, anchor) = (format!("{} at {at}", case.name), case.tokens[at]);
            let mut whole = case.runner();
            step(&mut whole, &case.tokens[..at]);
            let wanted = draft(&mut whole, anchor);
            let saved = whole.saved();
            same(&draft(&mut whole, anchor), &wanted, &what);
            assert!(whole.saved() == saved, "{what}: a draft changes nothing that lives");
            let other = draft(&mut whole, (anchor + 1) % 96);
            assert_ne!(other.logits.values(), wanted.logits.values(), "{what}");

            let mut cut = case.runner();
            for (index, part) in case.tokens[..at].chunks(7).enumerate() {
                if index % 3 == 1 {
                    let none = Wanted { logits: LogitsFor::None, drafts: LogitsFor::None };
                    cut.tried(&[3; 9], &none, None);
                    cut.model.commit(&mut cut.state, 0).unwrap();
                    draft(&mut cut, 7);
                }
                step(&mut cut, part);
            }
            same(&draft(&mut cut, anchor), &wanted, &what);
            assert!(cut.saved() == saved, "{what}: saved states differ");

            let mut restored = case.runner();
            step(&mut restored, &case.tokens[100..230]);
            restored.state.restore(&mut restored.cpu, &saved).unwrap();
            same(&draft(&mut restored, anchor), &wanted, &what);

            let mut rewound = case.runner();
            step(&mut rewound, &case.tokens[..at]);
            for _ in 0..ROLLBACK_ROWS {
                step(&mut rewound, &[7]);
            }
            draft(&mut rewound, 7);
            rewound.state.truncate(at).unwrap();
            same(&draft(&mut rewound, anchor), &wanted, &what);
        }
    }
}

#[test]
fn neighbours_and_threads_do_not_matter() {
    for case in cases() {
        let mut alone = case.runner();
        step(&mut alone, &case.tokens[..60]);
        let wanted = draft(&mut alone, case.tokens[60]);
        let mut runner = case.runner_on(2);
        let mut other = runner.model.new_state(&mut runner.cpu, CONTEXT).unwrap();
        let none = Wanted { logits: LogitsFor::None, drafts: LogitsFor::None };
        for (from, to) in [(0, 11), (11, 12), (12, 60)] {
            let parts =
                [(&case.tokens[2 * from..2 * to], 2 * from), (&case.tokens[from..to], from)];
            let step = joined(&parts);
            let states = &mut [&mut other, &mut runner.state];
            let (model, cpu) = (&mut runner.model, &mut runner.cpu);
            model.forward_observed(cpu, &step, states, &none, None).unwrap();
            runner.model.commit(&mut other, 2 * (to - from)).unwrap();
            runner.model.commit(&mut runner.state, to - from).unwrap();
        }
        same(&draft(&mut runner, case.tokens[60]), &wanted, case.name);
    }
}

impl Case {
    fn runner_on(&self, threads: usize) -> Runner {
        let (cpu, options) = self.mode.clone();
        let cpu = CpuConfig { threads, ..cpu };
        Runner::new(&self.gguf, Some(&self.spark), (cpu, options), CONTEXT)
    }
}

/// DSpark reads the model and does not touch it.
#[test]
fn the_model_is_the_same_with_and_without() {
    for case in cases() {
        let mut plain = Runner::new(&case.gguf, None, case.mode.clone(), CONTEXT);
        let mut with = case.runner();
        let wanted = Wanted { logits: LogitsFor::All, drafts: LogitsFor::None };
        for part in case.tokens.chunks(60) {
            let a = plain.watched(part, &wanted, None);
            let b = with.watched(part, &wanted, None);
            draft(&mut with, part[0]);
            same_bits(a.logits.values(), b.logits.values(), case.name);
        }
        assert!(with.state.restore(&mut with.cpu, &plain.saved()).is_err(), "another drafter");
    }
}

/// Fewer guesses are the first of more, and a small scratch holds a block.
#[test]
fn fewer_guesses_are_the_first_of_more() {
    for case in cases() {
        let (cpu, options) = case.mode.clone();
        let mode = (cpu, Options { step_rows_max: 2, ..options });
        let mut small = Runner::new(&case.gguf, Some(&case.spark), mode, CONTEXT);
        let mut runner = case.runner();
        for part in case.tokens[..20].chunks(2) {
            step(&mut small, part);
            step(&mut runner, part);
        }
        let all = draft(&mut runner, 9);
        same(&draft(&mut small, 9), &all, case.name);
        for most in 0..5 {
            let few = runner.model.draft_tokens(&mut runner.cpu, &runner.state, 9, most).unwrap();
            assert_eq!(few.tokens, all.tokens[..most]);
            same_bits(few.logits.values(), &all.logits.values()[..most * 96], case.name);
        }
    }
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let case = &cases()[0];
    let mut runner = case.runner();
    assert!(!runner.model.has_mtp() && runner.model.has_drafter());
    let early = runner.model.draft_tokens(&mut runner.cpu, &runner.state, 1, 5);
    assert!(matches!(early, Err(Error::Draft(_))));
    step(&mut runner, &[1, 2]);
    let none = runner.model.draft(&mut runner.cpu, &runner.state, 1);
    assert!(matches!(none, Err(Error::Draft(_))));
    let unknown = runner.model.draft_tokens(&mut runner.cpu, &runner.state, 96, 5);
    assert!(matches!(unknown, Err(Error::Token { token: 96, .. })));
}

/// The file with other metadata, and its tensors renamed.
fn spark_file(
    tiny: &Tiny,
    metadata: &[(String, Value)],
    rename: &dyn Fn(&str) -> Option<String>,
) -> Gguf {
    let mut specs = spark_specs(&tiny.shape, &tiny.spark());
    let values: Vec<Vec<f32>> = specs.iter().map(|spec| tiny.values(spec)).collect();
    let mut kept = Vec::new();
    for (spec, values) in specs.iter_mut().zip(&values) {
        if let Some(name) = rename(&spec.name) {
            spec.name = name;
            let encoded = floats(spec, values);
            kept.push((&*spec, encoded));
        }
    }
    Gguf::from_bytes(file_bytes(metadata, kept.into_iter())).unwrap()
}

#[test]
fn every_spelling_is_the_same_drafter() {
    let tiny = Tiny::small(3);
    let plain = tiny.spark().to_metadata(&tiny.shape);
    let spelled = |from: &str, to: &str| -> Vec<(String, Value)> {
        let own = plain.iter().filter(|(key, _)| key.contains("dspark"));
        own.map(|(key, value)| (key.replace(from, to), value.clone())).collect()
    };
    let short = |name: &str| {
        let short = match name.split_once('.')?.1 {
            "0.main_proj.weight" => "fc.weight",
            "0.main_norm.weight" => "enc.output_norm.weight",
            "2.markov_head.markov_w1.weight" => "markov_w1.weight",
            "2.markov_head.markov_w2.weight" => "markov_w2.weight",
            "2.confidence_head.proj.weight" => "conf_proj.weight",
            _ => return Some(name.to_owned()),
        };
        Some(short.to_owned())
    };
    let mut dflash = spelled("deepseek4.dspark.", "dflash.");
    for (key, value) in &mut dflash {
        if let (true, Value::Array(Array::U32(list))) = (key.ends_with("layer_ids"), value) {
            list.iter_mut().for_each(|layer| *layer += 1);
        }
    }
    let mut masked = spelled("?", "?");
    for (key, _) in &mut masked {
        *key = key.replace("deepseek4.dspark.noise_token_id", "tokenizer.ggml.mask_token_id");
    }
    let own = |name: &str| Some(name.to_owned());
    let newer = |name: &str| Some(name.replace("mtp.", "dspark."));
    let files = [
        tiny.dspark(),
        spark_file(&tiny, &spelled("dspark.", "dspark_"), &own),
        spark_file(&tiny, &spelled("deepseek4.", ""), &newer),
        spark_file(&tiny, &masked, &newer),
        spark_file(&tiny, &dflash, &short),
    ];
    let mut first = None;
    for (index, file) in files.iter().enumerate() {
        let spark = SparkShape::from_gguf(file, &tiny.shape).unwrap();
        assert_eq!(spark, Some(tiny.spark()), "file {index}");
        let mut runner = Runner::new(&tiny.gguf(), Some(file), exact(), CONTEXT);
        step(&mut runner, &[1, 2, 3]);
        let drafted = draft(&mut runner, 4);
        same(&drafted, first.get_or_insert_with(|| drafted.clone()), &format!("file {index}"));
    }
}

#[test]
fn files_that_do_not_fit_are_refused() {
    let tiny = Tiny::small(3);
    let load = |gguf: &Gguf| -> String {
        let mut cpu = ironstar_device::Cpu::new(exact().0).unwrap();
        let loaded = Model::load(&tiny.gguf(), Some(gguf), &mut cpu, exact().1, &mut |_| {});
        loaded.err().map_or("it loads".into(), |error| error.to_string())
    };
    let with = |key: &str, value: Option<Value>| {
        let mut metadata = tiny.spark().to_metadata(&tiny.shape);
        metadata.retain(|(k, _)| !k.ends_with(key));
        metadata.extend(value.map(|value| (format!("deepseek4.dspark.{key}"), value)));
        spark_file(&tiny, &metadata, &|name| Some(name.to_owned()))
    };
    let layers = |list: &[u32]| Some(Value::Array(Array::U32(list.to_vec())));
    for (key, value, wanted) in [
        ("block_size", Some(Value::U32(0)), "from 1 to 16"),
        ("block_size", Some(Value::U32(17)), "from 1 to 16"),
        ("block_size", None, "nothing"),
        ("markov_rank", Some(Value::U32(u32::MAX)), "from 1 to 65536"),
        ("markov_rank", Some(Value::U32(16)), "dims"),
        ("noise_token_id", Some(Value::U32(96)), "a token from 0 to 95"),
        ("noise_token_id", None, "nothing"),
        ("target_layer_ids", layers(&[]), "1 to 8 ascending layers below 3"),
        ("target_layer_ids", layers(&[0, 1, 3]), "ascending layers below 3"),
        ("target_layer_ids", layers(&[2, 1, 0]), "ascending layers below 3"),
        ("target_layer_ids", layers(&[1, 1, 2]), "ascending layers below 3"),
        ("target_layer_ids", layers(&[1, 2]), "dims"),
        ("target_layer_ids", Some(Value::U32(3)), "target_layer_ids"),
    ] {
        let error = load(&with(key, value.clone()));
        assert!(error.contains(wanted), "{key} {value:?}: {error}");
    }
    let metadata = tiny.spark().to_metadata(&tiny.shape);
    for missing in ["mtp.1.attn_kv.weight", "mtp.2.markov_head.markov_w2.weight"] {
        let file = spark_file(&tiny, &metadata, &|n| (n != missing).then(|| n.to_owned()));
        assert!(load(&file).contains(missing), "{}", load(&file));
    }
    // Without its first stage there is none.
    let file = spark_file(&tiny, &metadata, &|n| (!n.starts_with("mtp.0")).then(|| n.to_owned()));
    assert!(load(&file).contains("stages"), "{}", load(&file));
    // Of another model.
    let other = Tiny::flash().dspark();
    assert!(load(&other).contains("below 3"), "{}", load(&other));
    // An MTP block is no DSpark, and says nothing of it.
    let mtp = SparkShape::from_gguf(&tiny.drafter(), &tiny.shape).unwrap();
    assert_eq!(mtp, None);
}

/// Memory is planned as it is taken: all of a session's rings.
#[test]
fn the_plan_counts_every_ring() {
    let case = &cases()[0];
    let runner = case.runner();
    let plain = Runner::new(&case.gguf, None, case.mode.clone(), CONTEXT);
    let windows = |model: &Model| model.plan(CONTEXT).iter().map(|l| l.bytes).next().unwrap();
    let ring = (16 + ROLLBACK_ROWS as u64) * 128 * 4;
    assert_eq!(windows(&runner.model) - windows(&plain.model), 3 * ring);
}

/// The drafter of V4 Flash: 81 tensors, with the published names and dims.
#[test]
fn the_published_drafter_has_81_tensors() {
    let flash = ironstar_model::deepseek_v4::known::flash();
    let spark =
        SparkShape { stages: 3, block: 5, rank: 256, noise: 128_799, targets: vec![40, 41, 42] };
    let specs = spark_specs(&flash, &spark);
    assert_eq!(specs.len(), 81);
    let dims = |name: &str| -> (String, Vec<usize>) {
        let spec = specs.iter().find(|spec| spec.name == name);
        let spec = spec.unwrap_or_else(|| panic!("{name}"));
        (spec.published.clone(), spec.dims.clone())
    };
    for (name, published, wanted) in [
        ("mtp.0.main_proj.weight", "mtp.0.main_proj.weight", vec![12288, 4096]),
        ("mtp.0.main_norm.weight", "mtp.0.main_norm.weight", vec![4096]),
        ("mtp.1.attn_kv.weight", "mtp.1.attn.wkv.weight", vec![4096, 512]),
        ("mtp.2.exp_probs_b.bias", "mtp.2.ffn.gate.bias", vec![256]),
        ("mtp.2.norm.weight", "mtp.2.norm.weight", vec![4096]),
        ("mtp.2.hc_head_fn.weight", "mtp.2.hc_head_fn", vec![16384, 4]),
        (
            "mtp.2.markov_head.markov_w1.weight",
            "mtp.2.markov_head.markov_w1.weight",
            vec![256, 129_280],
        ),
        ("mtp.2.confidence_head.proj.weight", "mtp.2.confidence_head.proj.weight", vec![4352, 1]),
    ] {
        assert_eq!(dims(name), (published.to_owned(), wanted));
    }
}

#[test]
fn a_published_config_says_whether_there_is_a_drafter() {
    let shape = Tiny::flash().shape;
    let stages = |count: usize| {
        move |name: &str| (0..count).any(|s| name == format!("mtp.{s}.attn_norm.weight"))
    };
    let config = |text: &str, count: usize| SparkShape::from_config(text, &stages(count), &shape);
    let whole = r#"{"dspark_block_size": 5, "dspark_noise_token_id": 500, "dspark_markov_rank": 16,
        "dspark_target_layer_ids": [3, 4, 5]}"#;
    let wanted = SparkShape { stages: 3, block: 5, rank: 16, noise: 500, targets: vec![3, 4, 5] };
    assert_eq!(config(whole, 3).unwrap(), Some(wanted));
    assert_eq!(config(r#"{"num_nextn_predict_layers": 1}"#, 1).unwrap(), None);
    for (wrong, count) in [
        (whole.to_owned(), 0),
        (whole.to_owned(), 9),
        (whole.replace("[3, 4, 5]", "[3, 4, 6]"), 3),
        (whole.replace("[3, 4, 5]", "\"all\""), 3),
        (whole.replace("[3, 4, 5]", "[3, -1]"), 3),
        (whole.replace("500", "512"), 3),
        (whole.replace(": 16,", ": 1.5,"), 3),
        (whole.replace("dspark_block_size", "block"), 3),
        ("{".to_owned(), 3),
    ] {
        assert!(matches!(config(&wrong, count), Err(Error::Metadata { .. })), "{wrong} {count}");
    }
}
