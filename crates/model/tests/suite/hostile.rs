//! Files, metadata and saved states that are damaged or made for something else: a clear error,
//! never a panic.
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

use crate::common::{Runner, default_mode, exact};
use ironstar_device::{Cpu, CpuConfig, Span, Step};
use ironstar_gguf::{Array, Gguf, TensorKind, Value};
use ironstar_model::deepseek_v4::{TensorSpec, tensor_specs};
use ironstar_model::testing::{Encoded, Tiny, encode, file_bytes, floats};
use ironstar_model::{Blame, Error, LogitsFor, Model, Options, Shape};
use ironstar_quant::Format;
use proptest::prelude::*;

fn load(gguf: &Gguf) -> Result<Model, Error> {
    let mut cpu = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    Model::load(gguf, None, &mut cpu, Options::default(), &mut |_| {})
}

/// The text and blame of a refusal.
#[track_caller]
fn refused<T>(result: Result<T, Error>, parts: &[&str]) {
    let Err(error) = result else { panic!("accepted, but {parts:?} is wrong") };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    assert_eq!(error.blame(), Blame::Input, "{text}");
}

/// Metadata with one entry replaced, or taken out.
fn with(key: &str, value: Option<Value>) -> Gguf {
    let mut metadata = Tiny::small(1).shape.to_metadata();
    let at = metadata.iter().position(|(k, _)| k == key);
    match (at, value) {
        (Some(at), Some(value)) => metadata[at].1 = value,
        (Some(at), None) => drop(metadata.remove(at)),
        (None, Some(value)) => metadata.push((key.to_owned(), value)),
        (None, None) => panic!("{key} is not there"),
    }
    Gguf::from_bytes(file_bytes(&metadata, std::iter::empty())).unwrap()
}

#[track_caller]
fn bad_number(key: &str, value: Value) {
    let full = if key.starts_with("general") { key.to_owned() } else { format!("deepseek4.{key}") };
    refused(Shape::from_metadata(with(&full, Some(value)).metadata()), &[key]);
}

#[test]
fn impossible_metadata_is_refused_by_name() {
    bad_number("general.architecture", Value::String("llama".into()));
    bad_number("general.architecture", Value::U32(4));
    bad_number("block_count", Value::U32(0));
    bad_number("block_count", Value::U32(u32::MAX));
    bad_number("block_count", Value::String("3".into()));
    bad_number("embedding_length", Value::I32(-64));
    bad_number("embedding_length", Value::U64(1 << 40));
    bad_number("attention.head_count_kv", Value::U32(8));
    bad_number("attention.value_length", Value::U32(64));
    bad_number("expert_weights_norm", Value::Bool(false));
    bad_number("expert_gating_func", Value::U32(2));
    bad_number("expert_group_count", Value::U32(8));
    bad_number("attention.layer_norm_rms_epsilon", Value::F32(f32::NAN));
    bad_number("rope.freq_base", Value::F32(0.0));
    bad_number("rope.scaling.factor", Value::F32(f32::INFINITY));
    bad_number("attention.compress_ratios", Value::Array(Array::U32(vec![0, 4])));
    bad_number("attention.compress_ratios", Value::Array(Array::I32(vec![0, 4, -128])));
    bad_number("swiglu_clamp_exp", Value::Array(Array::F32(vec![10.0])));
    bad_number("swiglu_clamp_exp", Value::Array(Array::F32(vec![10.0, -1.0, 10.0])));
    for key in ["vocab_size", "hash_layer_count", "attention.compress_ratios", "expert_count"] {
        let full = format!("deepseek4.{key}");
        refused(Shape::from_metadata(with(&full, None).metadata()), &[&full]);
    }
}

#[test]
fn numbers_that_contradict_each_other_are_refused() {
    let check = |key: &str, value: u32, parts: &[&str]| {
        let gguf = with(&format!("deepseek4.{key}"), Some(Value::U32(value)));
        refused(Shape::from_metadata(gguf.metadata()), parts);
    };
    check("rope.dimension_count", 63, &["rope.dimension_count", "63"]);
    check("rope.dimension_count", 130, &["rope.dimension_count", "heads of 128"]);
    check("rope.dimension_count", 32, &["rope.dimension_count", "multiple of 64"]);
    check("attention.output_group_count", 3, &["3 groups of 2 heads"]);
    check("expert_used_count", 5, &["5 of 4 experts"]);
    check("hash_layer_count", 4, &["4 of 3 layers"]);
    check("attention.indexer.key_length", 64, &["indexer.key_length", "128"]);
    let ratios = Value::Array(Array::U32(vec![0, 8, 128]));
    let gguf = with("deepseek4.attention.compress_ratios", Some(ratios));
    refused(Shape::from_metadata(gguf.metadata()), &["compress_ratios", "8", "0, 4 or 128"]);
}

#[test]
fn metadata_and_config_say_the_same() {
    for tiny in [Tiny::flash(), Tiny::pro(), Tiny::small(2)] {
        let back = Shape::from_metadata(tiny.gguf().metadata()).unwrap();
        assert_eq!(back, tiny.shape);
    }
    let config = r#"{"model_type": "deepseek_v4", "scoring_func": "sqrtsoftplus", "vocab_size": 512,
        "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8, "head_dim": 128,
        "num_key_value_heads": 1, "qk_rope_head_dim": 64, "q_lora_rank": 128, "o_lora_rank": 128,
        "o_groups": 2, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3,
        "moe_intermediate_size": 256, "num_hash_layers": 2, "index_n_heads": 16,
        "index_head_dim": 128, "index_topk": 48, "sliding_window": 32, "hc_mult": 4,
        "compress_ratios": [0, 0, 4, 128, 4, 128, 0], "routed_scaling_factor": 1.5,
        "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "swiglu_limit": 10.0,
        "rope_theta": 10000.0, "compress_rope_theta": 160000.0, "max_position_embeddings": 4096,
        "norm_topk_prob": true, "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32,
        "beta_slow": 1, "original_max_position_embeddings": 65536}}"#;
    assert_eq!(Shape::from_config(config).unwrap(), Tiny::flash().shape);
    let broken = |from: &str, to: &str, parts: &[&str]| {
        let text = config.replace(from, to);
        assert_ne!(text, config);
        refused(Shape::from_config(&text), parts);
    };
    broken("\"vocab_size\": 512", "\"vocab_size\": \"512\"", &["vocab_size", "a whole number"]);
    broken("\"vocab_size\": 512", "\"vocab_size\": null", &["vocab_size", "nothing"]);
    broken("4, 128, 0]", "4, 128, 4]", &["compress_ratios", "draft"]);
    broken("4, 128, 0]", "4]", &["compress_ratios", "5 entries"]);
    broken("sqrtsoftplus", "sigmoid", &["scoring_func", "sigmoid"]);
    broken("deepseek_v4", "deepseek_v41", &["model_type", "deepseek_v41"]);
    broken("\"n_shared_experts\": 1", "\"n_shared_experts\": 2", &["n_shared_experts", "2"]);
    broken("\"yarn\"", "\"linear\"", &["rope_scaling.type"]);
    broken("{\"model", "[{\"model", &["config.json"]);
}

/// The small model with one tensor changed.
fn changed(
    name: &str,
    change: impl Fn(&TensorSpec, Encoded) -> Option<(TensorSpec, Encoded)>,
) -> Gguf {
    let tiny = Tiny::small(1);
    let original = tiny.gguf();
    let specs = tensor_specs(&tiny.shape);
    let tensors: Vec<(TensorSpec, Encoded)> = specs
        .iter()
        .filter_map(|spec| {
            let info = original.tensor(&spec.name).unwrap();
            let encoded = (info.kind, original.bytes(info).unwrap().to_vec());
            if spec.name == name { change(spec, encoded) } else { Some((spec.clone(), encoded)) }
        })
        .collect();
    let tensors = tensors.iter().map(|(spec, encoded)| (spec, encoded.clone()));
    Gguf::from_bytes(file_bytes(&tiny.shape.to_metadata(), tensors)).unwrap()
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let name = "blk.1.attn_q_b.weight";
    refused(load(&changed(name, |_, _| None)), &[name, "missing", "[32, 256]"]);
    let turned = changed(name, |spec, encoded| {
        Some((TensorSpec { dims: vec![256, 32], ..spec.clone() }, encoded))
    });
    refused(load(&turned), &[name, "[256, 32]", "[32, 256]"]);
    let ids = changed(name, |spec, (_, bytes)| Some((spec.clone(), (TensorKind::I32, bytes))));
    refused(load(&ids), &[name, "I32"]);
    let name = "blk.0.attn_norm.weight";
    let quantised = changed(name, |spec, _| Some((spec.clone(), encode(Format::Q8_0, &[1.0; 64]))));
    refused(load(&quantised), &[name, "Q8_0", "F32, F16 or BF16"]);
    let name = "blk.0.ffn_gate_tid2eid.weight";
    for id in [4i32, -1, i32::MAX] {
        let table = changed(name, |spec, (kind, mut bytes)| {
            bytes[100..104].copy_from_slice(&id.to_le_bytes());
            Some((spec.clone(), (kind, bytes)))
        });
        refused(load(&table), &[name, &format!("expert {id} for token 12"), "0 to 3"]);
    }
    let floats = changed(name, |spec, _| Some((spec.clone(), encode(Format::F32, &[0.0; 192]))));
    refused(load(&floats), &[name, "F32", "I32"]);
}

#[test]
fn what_may_be_absent_and_what_is_unknown() {
    let bias = "blk.1.exp_probs_b.bias";
    load(&changed(bias, |_, _| None)).unwrap();
    let renamed = changed(bias, |spec, encoded| {
        Some((TensorSpec { name: "blk.1.surplus".into(), ..spec.clone() }, encoded))
    });
    assert_eq!(load(&renamed).unwrap().ignored(), ["blk.1.surplus"]);
    let tiny = Tiny::small(1);
    let mut cpu = Cpu::new(CpuConfig::default()).unwrap();
    let (gguf, wrong) = (tiny.gguf(), tiny.gguf());
    let drafter = Some(&wrong);
    let loaded = Model::load(&gguf, drafter, &mut cpu, Options::default(), &mut |_| {});
    refused(loaded, &["mtp.0.", "missing"]);
}

#[test]
fn steps_that_do_not_fit_are_refused_and_harmless() {
    let tiny = Tiny::small(1);
    let mut runner = Runner::new(&tiny.gguf(), None, exact(), 20);
    let mut other = Runner::new(&tiny.gguf(), None, exact(), 20);
    runner.step(&[1, 2, 3]);
    let before = runner.saved();
    let mut attempt = |step: Step, states: usize| {
        let (model, cpu) = (&mut runner.model, &mut runner.cpu);
        let mut list: Vec<_> = [&mut runner.state].into_iter().take(states).collect();
        let result = model.forward(cpu, &step, &mut list, LogitsFor::All);
        let error = result.err().unwrap();
        (error.to_string(), error.blame())
    };
    let single = |tokens: &[u32], position| Step::single(tokens, position);
    let gap = |a, b| Step {
        tokens: vec![1, 2],
        spans: vec![Span { rows: a, position: 3 }, Span { rows: b, position: 3 }],
    };
    assert!(attempt(single(&[], 3), 1).0.contains("0 rows"));
    assert!(attempt(single(&[1; 513], 3), 1).0.contains("513 rows"));
    assert!(attempt(single(&[1], 2), 1).0.contains("at position 2"));
    assert!(attempt(single(&[1], 3), 0).0.contains("1 spans and 0 states"));
    assert!(attempt(gap(0..1, 1..2), 1).0.contains("2 spans and 1 states"));
    assert_eq!(attempt(single(&[96], 3), 1).1, Blame::Input);
    assert!(attempt(single(&[96], 3), 1).0.contains("token 96"));
    assert!(attempt(single(&[1; 18], 3), 1).0.contains("position 21"));
    let step = single(&[1], 0);
    let foreign = &mut [&mut other.state];
    let result = runner.model.forward(&mut runner.cpu, &step, foreign, LogitsFor::All);
    assert!(result.err().unwrap().to_string().contains("another model"));
    let result = runner.model.draft(&mut runner.cpu, &runner.state, 1);
    assert!(result.err().unwrap().to_string().contains("no draft block"));
    assert!(runner.model.commit(&mut runner.state, 1).is_err(), "nothing was evaluated");
    assert!(runner.saved() == before);
    assert!(runner.model.new_state(&mut runner.cpu, 0).is_err());
    assert!(runner.model.new_state(&mut runner.cpu, 5000).is_err());
}

#[test]
fn rewinding_stops_where_the_rings_end() {
    let tiny = Tiny::small(1);
    let mut runner = Runner::new(&tiny.gguf(), None, exact(), 300);
    runner.step(&tiny.tokens(200));
    assert_eq!(runner.state.rewind_floor(), 136);
    refused(runner.state.truncate(135), &["135", "136 to 200"]);
    refused(runner.state.truncate(201), &["201"]);
    runner.state.truncate(136).unwrap();
    assert!(runner.state.truncate(137).is_err(), "rows that were dropped are gone");
    runner.step(&tiny.tokens(10));
    assert_eq!(runner.state.rewind_floor(), 136, "the highest position counts");
    runner.state.truncate(0).unwrap();
    assert_eq!((runner.state.position(), runner.state.rewind_floor()), (0, 0));
    // A long step that is not kept has overwritten what its start needs.
    let wanted = ironstar_model::Wanted { logits: LogitsFor::None, drafts: LogitsFor::None };
    runner.step(&tiny.tokens(20));
    runner.tried(&tiny.tokens(100), &wanted, None);
    refused(runner.model.commit(&mut runner.state, 10), &["30", "56 to 120"]);
    let step = Step::single(&[1], 20);
    let states = &mut [&mut runner.state];
    let refusal = runner.model.forward(&mut runner.cpu, &step, states, LogitsFor::None);
    refused(refusal.map(drop), &["20", "56"]);
}

#[test]
fn damaged_saved_states_are_refused_and_harmless() {
    let tiny = Tiny::small(1);
    let mut runner = Runner::new(&tiny.gguf(), None, default_mode(1, None), 64);
    runner.step(&tiny.tokens(21));
    let saved = runner.saved();
    runner.step(&[5]);
    let now = runner.saved();
    let header = 100;
    let mut tries: Vec<Vec<u8>> =
        (0..saved.len()).step_by(97).map(|len| saved[..len].to_vec()).collect();
    tries.extend((0..=header).map(|len| saved[..len].to_vec()));
    for at in (0..header).chain((header..saved.len()).step_by(101)) {
        for bit in [0, 7] {
            let mut bytes = saved.clone();
            bytes[at] ^= 1 << bit;
            tries.push(bytes);
        }
    }
    tries.push([&saved[..], &[0]].concat());
    for bytes in tries {
        refused(runner.state.restore(&mut runner.cpu, &bytes), &["saved state"]);
    }
    assert!(runner.saved() == now, "a refused restore changes nothing");
    runner.state.restore(&mut runner.cpu, &saved).unwrap();

    let other = |gguf: Gguf, drafter: Option<Gguf>, mode, context| {
        let mut runner = Runner::new(&gguf, drafter.as_ref(), mode, context);
        runner.state.restore(&mut runner.cpu, &saved)
    };
    let mode = || default_mode(1, None);
    refused(other(Tiny::small(2).gguf(), None, mode(), 64), &["another model"]);
    refused(other(tiny.gguf(), None, mode(), 20), &["position 21", "larger context"]);
    refused(other(tiny.gguf(), None, exact(), 64), &["bytes of state"]);
    refused(other(tiny.gguf(), Some(tiny.drafter()), mode(), 64), &["bytes of state"]);
    let (cpu, options) = mode();
    let unrounded = (cpu, Options { round_trips: false, ..options });
    assert!(other(tiny.gguf(), None, unrounded, 64).is_err());
    other(tiny.gguf(), None, mode(), 22).unwrap();
}

/// One entry of the metadata becomes something else.
fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u32>().prop_map(Value::U32),
        (0u32..300).prop_map(Value::U32),
        any::<u64>().prop_map(Value::U64),
        any::<i32>().prop_map(Value::I32),
        any::<f32>().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        prop::collection::vec(any::<u32>(), 0..5).prop_map(|v| Value::Array(Array::U32(v))),
        prop::collection::vec(any::<f32>(), 0..5).prop_map(|v| Value::Array(Array::F32(v))),
        Just(Value::String("x".into())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(1),
        ..Default::default()
    })]

    /// Either the numbers are fine, and then the table and the plan of memory can be made, or an
    /// error says what is wrong. No tensor is in the file, so loading always ends in an error.
    #[test]
    fn any_metadata_is_answered(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..4),
    ) {
        let mut metadata = Tiny::small(1).shape.to_metadata();
        for (at, value) in changes {
            let at = at.index(metadata.len());
            metadata[at].1 = value;
        }
        let gguf = Gguf::from_bytes(file_bytes(&metadata, std::iter::empty())).unwrap();
        if let Ok(shape) = Shape::from_metadata(gguf.metadata()) {
            prop_assert!(!tensor_specs(&shape).is_empty());
            let plan = Model::memory_plan(&shape, 1 << 20, &Options::default(), true);
            prop_assert!(plan.iter().map(|line| line.bytes).sum::<u64>() > 0);
        }
        prop_assert_eq!(load(&gguf).err().map(|e| e.blame()), Some(Blame::Input));
    }
}

/// Floats everywhere load as well.
#[test]
fn every_float_type_is_taken() {
    for format in [Format::F32, Format::F16, Format::Bf16] {
        let tiny = Tiny::small(5);
        load(&tiny.gguf_as(&|_, values| encode(format, values))).unwrap();
    }
    load(&Tiny::small(5).gguf_as(&floats)).unwrap();
}
