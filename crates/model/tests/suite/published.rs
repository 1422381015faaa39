//! Published checkpoints to GGUF files: names, shapes, and what is lossless.
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

use ironstar_gguf::TensorKind;
use ironstar_gguf::safetensors::Checkpoint;
use ironstar_model::deepseek_v4::{Kind, TensorSpec, drafter_specs, import, tensor_specs};
use ironstar_model::testing::{Tiny, floats};
use ironstar_quant::Format;
use std::fmt::Write;

/// Safetensors bytes of arrays: name, type, shape, data.
fn safetensors(arrays: &[(String, &str, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let (mut header, mut data) = (String::from("{"), Vec::new());
    for (name, kind, shape, bytes) in arrays {
        let comma = if data.is_empty() { "" } else { "," };
        let range = [data.len(), data.len() + bytes.len()];
        let entry = format!(r#"{{"dtype":"{kind}","shape":{shape:?},"data_offsets":{range:?}}}"#);
        write!(header, r#"{comma}"{name}":{entry}"#).unwrap();
        data.extend_from_slice(bytes);
    }
    header.push('}');
    let size = u64::try_from(header.len()).unwrap().to_le_bytes();
    [&size, header.as_bytes(), &data].concat()
}

fn specs(tiny: &Tiny) -> Vec<TensorSpec> {
    [tensor_specs(&tiny.shape), drafter_specs(&tiny.shape)].concat()
}

/// The small model under its published names, in F32 and I64.
fn published(tiny: &Tiny) -> Vec<(String, &'static str, Vec<usize>, Vec<u8>)> {
    let (gguf, drafter) = (tiny.gguf(), tiny.drafter());
    let mut arrays = Vec::new();
    for spec in specs(tiny) {
        let file = if gguf.tensor(&spec.name).is_some() { &gguf } else { &drafter };
        let bytes = file.bytes(file.tensor(&spec.name).unwrap()).unwrap();
        let shape: Vec<usize> = spec.dims.iter().take(2).rev().copied().collect();
        let names = spec.published_names();
        let part = bytes.len() / names.len();
        for (name, bytes) in names.into_iter().zip(bytes.chunks(part)) {
            let wide = |b: &[u8; 4]| i64::from(i32::from_le_bytes(*b)).to_le_bytes();
            if spec.kind == Kind::Table {
                let bytes = bytes.as_chunks().0.iter().flat_map(wide).collect();
                arrays.push((name, "I64", shape.clone(), bytes));
            } else {
                arrays.push((name, "F32", shape.clone(), bytes.to_vec()));
            }
        }
    }
    arrays
}

/// Every published name is read back into the file it came from, and none is left over.
#[test]
fn a_published_checkpoint_becomes_the_same_file() {
    let tiny = Tiny::small(1);
    let arrays = published(&tiny);
    let checkpoint = Checkpoint::from_bytes("tiny", safetensors(&arrays)).unwrap();
    let mut read = 0;
    for spec in specs(&tiny) {
        let kind = match spec.kind {
            Kind::Table => TensorKind::I32,
            _ => floats(&spec, &[]).0,
        };
        let whole: Vec<u8> = (0..spec.stack())
            .flat_map(|part| import::part_bytes(&checkpoint, &spec, part, kind, None).unwrap())
            .collect();
        let (gguf, drafter) = (tiny.gguf(), tiny.drafter());
        let file = if gguf.tensor(&spec.name).is_some() { &gguf } else { &drafter };
        assert!(
            file.bytes(file.tensor(&spec.name).unwrap()).unwrap()[..] == whole,
            "{}",
            spec.name
        );
        read += spec.stack();
        assert!(import::part_bytes(&checkpoint, &spec, spec.stack(), kind, None).is_err());
    }
    assert_eq!(read, arrays.len());
}

/// The names that ds4 files have (spec 7.2), in one layer of each kind.
#[test]
fn names_are_those_of_the_format() {
    let names: Vec<String> = specs(&Tiny::flash()).into_iter().map(|s| s.name).collect();
    let layer = |n: usize| {
        let prefix = format!("blk.{n}.");
        let mut list: Vec<&str> = names.iter().filter_map(|n| n.strip_prefix(&prefix)).collect();
        list.sort_unstable();
        list
    };
    let mut window = vec![
        "attn_kv.weight",
        "attn_kv_a_norm.weight",
        "attn_norm.weight",
        "attn_output_a.weight",
        "attn_output_b.weight",
        "attn_q_a.weight",
        "attn_q_a_norm.weight",
        "attn_q_b.weight",
        "attn_sinks.weight",
        "ffn_down_exps.weight",
        "ffn_down_shexp.weight",
        "ffn_gate_exps.weight",
        "ffn_gate_inp.weight",
        "ffn_gate_shexp.weight",
        "ffn_gate_tid2eid.weight",
        "ffn_norm.weight",
        "ffn_up_exps.weight",
        "ffn_up_shexp.weight",
        "hc_attn_base.weight",
        "hc_attn_fn.weight",
        "hc_attn_scale.weight",
        "hc_ffn_base.weight",
        "hc_ffn_fn.weight",
        "hc_ffn_scale.weight",
    ];
    assert_eq!(layer(0), window);
    window.retain(|n| *n != "ffn_gate_tid2eid.weight");
    window.extend([
        "attn_compressor_ape.weight",
        "attn_compressor_gate.weight",
        "attn_compressor_kv.weight",
        "attn_compressor_norm.weight",
        "exp_probs_b.bias",
    ]);
    window.sort_unstable();
    assert_eq!(layer(3), window);
    window.extend([
        "indexer.attn_q_b.weight",
        "indexer.proj.weight",
        "indexer_compressor_ape.weight",
        "indexer_compressor_gate.weight",
        "indexer_compressor_kv.weight",
        "indexer_compressor_norm.weight",
    ]);
    window.sort_unstable();
    assert_eq!(layer(4), window);
    let top: Vec<&String> = names.iter().filter(|n| !n.starts_with("blk.")).collect();
    assert_eq!(top.len(), 6 + 32, "around the layers, and the draft block");
    for name in
        ["output_hc_fn.weight", "token_embd.weight", "mtp.0.e_proj.weight", "mtp.0.norm.weight"]
    {
        assert!(names.iter().any(|n| n == name), "{name}");
    }
}

/// FP4 experts become MXFP4 without a change of value, and FP8 matrices keep theirs in F32.
#[test]
fn fp4_experts_are_repacked_without_loss() {
    let tiny = Tiny::small(1);
    let spec = specs(&tiny).into_iter().find(|s| s.kind == Kind::Routed).unwrap();
    let (columns, rows) = (spec.dims[0], spec.dims[1]);
    let mut arrays = Vec::new();
    for (e, name) in spec.published_names().into_iter().enumerate() {
        let byte = |i: usize| u8::try_from((i * 37 + i / 11 + e * 5) % 256).unwrap();
        let codes = (0..rows * columns / 2).map(byte).collect();
        let scales = (0..rows * columns / 32).map(|i| 100 + byte(i) % 50).collect();
        let scale = name.replace(".weight", ".scale");
        arrays.push((name, "I8", vec![rows, columns / 2], codes));
        arrays.push((scale, "F8_E8M0", vec![rows, columns / 32], scales));
    }
    let checkpoint = Checkpoint::from_bytes("fp4", safetensors(&arrays)).unwrap();
    let kind = import::default_kind(&spec);
    assert_eq!(kind, TensorKind::Block(Format::Mxfp4));
    for (part, name) in spec.published_names().iter().enumerate() {
        let bytes = import::part_bytes(&checkpoint, &spec, part, kind, None).unwrap();
        let mut values = vec![0.0; rows * columns];
        (Format::Mxfp4.info().decode)(&bytes, &mut values);
        assert_eq!(values, checkpoint.to_f32(name).unwrap());
        assert!(values.iter().any(|&v| v < 0.0));
    }
}

#[test]
fn checkpoints_that_do_not_fit_are_refused_by_name() {
    let tiny = Tiny::small(1);
    let arrays = published(&tiny);
    let spec = specs(&tiny).into_iter().find(|s| s.name == "blk.1.attn_q_b.weight").unwrap();
    let text = |arrays: &[(String, &str, Vec<usize>, Vec<u8>)], kind| {
        let checkpoint = Checkpoint::from_bytes("tiny", safetensors(arrays)).unwrap();
        import::part_bytes(&checkpoint, &spec, 0, kind, None).err().unwrap().to_string()
    };
    let f32 = TensorKind::Block(Format::F32);
    let name = "layers.1.attn.wq_b.weight";
    let without: Vec<_> = arrays.iter().filter(|a| a.0 != name).cloned().collect();
    assert!(text(&without, f32).contains(name));
    let mut turned = arrays.clone();
    turned.iter_mut().filter(|a| a.0 == name).for_each(|a| a.2.reverse());
    assert!(text(&turned, f32).contains("shape [32, 256]"));
    assert!(text(&arrays, TensorKind::Block(Format::Q4K)).contains("Q4_K"), "32 columns");
    assert!(text(&arrays, TensorKind::F64).contains("F64"));
}
