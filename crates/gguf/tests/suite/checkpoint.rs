//! Safetensors files and folders of them: names, shards, and bytes that are no checkpoint.

use crate::helpers::{folder, refused};
use ironstar_gguf::safetensors::{CONFIG, Checkpoint, Dtype, INDEX, SINGLE};
use ironstar_gguf::{Blame, Error};
use std::path::Path;

/// A file with this header and so many bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend((0..data).map(|i| i.to_le_bytes()[0]));
    bytes
}

fn entry(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{start},{end}]}}"#)
}

fn opened(header: &str, data: usize) -> Result<Checkpoint, Error> {
    Checkpoint::from_bytes("x.safetensors", file(header, data))
}

#[track_caller]
fn refused_header(header: &str, data: usize, words: &[&str]) {
    refused(opened(header, data), Blame::Input, &[&["x.safetensors: "], words].concat());
}

#[test]
fn a_small_file() {
    let header = format!(
        r#"{{"__metadata__":{{"format":"pt","any":[1,{{}}]}},{},{}}}"#,
        entry("a", "F32", "2,1", 0, 8),
        entry("b", "BF16", "", 8, 10)
    );
    let checkpoint = opened(&header, 10).expect("a good file");
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b"]);
    let a = checkpoint.tensor("a").expect("a tensor");
    assert_eq!((a.dtype, &a.shape[..]), (Dtype::F32, &[2, 1][..]));
    assert_eq!(*checkpoint.bytes("b").expect("its data"), [8, 9]);
    assert_eq!(checkpoint.to_f32("b").expect("a scalar").len(), 1);
    assert!(checkpoint.value_shape("b").expect("a scalar").is_empty());
    refused(checkpoint.to_f32("c"), Blame::Input, &["x.safetensors: c: the tensor is missing"]);
}

/// Any rows of a tensor are those rows of the whole, whatever it is stored as and wherever blocks
/// of scales end.
#[test]
fn rows_are_those_of_the_whole() {
    let stored = [
        ("f8.weight", "F8_E4M3", "300,140", 300 * 140),
        ("f8.scale", "F8_E8M0", "3,2", 6),
        ("f4.weight", "I8", "7,32", 7 * 32),
        ("f4.scale", "F8_E8M0", "7,2", 14),
        ("b", "BF16", "9,3", 54),
        ("cube", "F32", "4,2,3", 96),
        ("vector", "F16", "5", 10),
    ];
    let (mut entries, mut at) = (Vec::new(), 0);
    for (name, dtype, shape, bytes) in stored {
        entries.push(entry(name, dtype, shape, at, at + bytes));
        at += bytes;
    }
    let checkpoint = opened(&format!("{{{}}}", entries.join(",")), 42_404).expect("good");
    for (name, rows) in [("f8.weight", 300), ("f4.weight", 7), ("b", 9), ("cube", 4), ("vector", 1)]
    {
        let whole = checkpoint.to_f32(name).expect("values");
        let row = whole.len() / rows;
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        for start in [0, 1, 2, 127, 128, 130, 299, 300] {
            for end in [0, 1, 3, 128, 129, 256, 300, usize::MAX] {
                let found = checkpoint.rows_to_f32(name, start..end).expect("values");
                let wanted = start.min(rows)..end.min(rows).max(start.min(rows));
                let wanted = &whole[wanted.start * row..wanted.end * row];
                assert_eq!(bits(&found), bits(wanted), "{name} {start}..{end}");
            }
        }
    }
}

#[test]
fn truncation_at_every_offset() {
    let header = format!("{{{},{}}}", entry("a", "F32", "2", 0, 8), entry("b", "U8", "3", 8, 11));
    let whole = file(&header, 11);
    for len in 0..whole.len() {
        let cut = Checkpoint::from_bytes("x", whole[..len].to_vec());
        refused(cut, Blame::Input, &["x: ", "cut short"]);
    }
    Checkpoint::from_bytes("x", whole).expect("the whole is good");
}

#[test]
fn corruption_of_every_header_byte() {
    let header = format!(
        "{{{},{},{}}}",
        entry("w.weight", "F8_E4M3", "4,2", 0, 8),
        entry("w.scale", "F8_E8M0", "1,1", 8, 9),
        entry("c", "I64", "1", 9, 17)
    );
    let whole = file(&header, 17);
    let mut accepted = 0;
    for at in 0..8 + header.len() {
        for byte in (0..8).map(|bit| whole[at] ^ (1 << bit)).chain([b'0', b'9', b'"', 0xff]) {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            let Ok(checkpoint) = Checkpoint::from_bytes("x", bytes) else { continue };
            accepted += 1;
            for name in checkpoint.names() {
                let floats = checkpoint.to_f32(name).map_or(0, |floats| floats.len());
                let whole_numbers = checkpoint.to_i64(name).map_or(0, |numbers| numbers.len());
                assert!(floats.max(whole_numbers) <= 17, "{name}");
                checkpoint.value_shape(name).expect("a name of this file");
                assert!(checkpoint.fp4_parts(name).is_err(), "nothing here is FP4");
            }
        }
    }
    assert!(accepted > 100, "{accepted}");
}

#[test]
fn headers_that_are_none() {
    for len in [1 << 27, 1 << 40, u64::MAX] {
        let bytes = [len.to_le_bytes().as_slice(), b"{}"].concat();
        refused(Checkpoint::from_bytes("x", bytes), Blame::Input, &["header", "bytes"]);
    }
    refused_header("", 0, &["header", "EOF"]);
    refused_header("[]", 0, &["header", "an object with a value for each tensor"]);
    refused_header("{\"a\":1}", 0, &["header", "tensor 'a'", "integer `1`"]);
    refused_header("\u{feff}{}", 0, &["header"]);
    refused_header("{} x", 0, &["header", "trailing"]);
    refused_header(&"[".repeat(1 << 20), 0, &["header"]);
    refused_header(&format!("{{\"__metadata__\":{}", "[".repeat(1 << 20)), 0, &["header"]);
    assert_eq!(opened("{}", 0).expect("an empty checkpoint").names().count(), 0);
}

#[test]
fn entries_that_cannot_be() {
    let refuse = |entry: String, words: &[&str]| refused_header(&format!("{{{entry}}}"), 16, words);
    refuse(entry("a", "F33", "1", 0, 4), &["tensor 'a'", "F33", "expected one of"]);
    refuse(entry("a", "F32", "1", 0, 3), &["a: offsets 0..3 for [1] of F32"]);
    refuse(entry("a", "F32", "1", 0, 8), &["a: offsets 0..8"]);
    refuse(entry("a", "F32", "1", 4, 0), &["a: offsets 4..0"]);
    refuse(entry("a", "F32", "-1", 0, 4), &["tensor 'a'", "integer `-1`"]);
    refuse(entry("a", "F32", "1.5", 0, 4), &["tensor 'a'"]);
    refuse(entry("a", "F32", "9223372036854775808,4", 0, 0), &["a: offsets"]);
    refuse(entry("a", "U8", "18446744073709551615,0", 0, 0), &["a: offsets"]);
    refuse(entry("a", "U8", "18446744073709551616", 0, 0), &["tensor 'a'"]);
    refuse(entry("a", "U8", "1,1,1,1,1,1,1,1,1", 0, 1), &["a: offsets", "up to 8 dims"]);
    refuse(entry("a", "U8", "17", 0, 17), &["a: 17 bytes are announced, but only 16 are left"]);
    refuse(entry("a", "U8", "1", 1 << 40, (1 << 40) + 1), &["a: ", "only 0 are left"]);
    refuse(entry("a", "U8", "1", u64::MAX - 1, u64::MAX), &["a: ", "only 0 are left"]);
    refuse(r#""a":{"dtype":"U8","shape":[1]}"#.into(), &["tensor 'a'", "data_offsets"]);
    refuse(r#""a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}"#.into(), &["tensor 'a'"]);
}

#[test]
fn tensors_that_overlap_or_repeat() {
    let pair = |a: String, b: String| format!("{{{a},{b}}}");
    let overlap = pair(entry("a", "U8", "3", 0, 3), entry("b", "U8", "3", 2, 5));
    refused_header(&overlap, 5, &["data_offsets", "overlap"]);
    let inside = pair(entry("a", "U8", "5", 0, 5), entry("b", "U8", "1", 2, 3));
    refused_header(&inside, 5, &["data_offsets", "overlap"]);
    let twice = pair(entry("a", "U8", "1", 0, 1), entry("a", "U8", "1", 1, 2));
    refused_header(&twice, 5, &["a: the tensor occurs twice"]);
    let forms = pair(
        entry("layers.0.attn.wkv", "U8", "1", 0, 1),
        entry("model.layers.0.self_attn.wkv", "U8", "1", 1, 2),
    );
    refused_header(&forms, 5, &["self_attn.wkv: the tensor occurs twice"]);
    let gap = pair(entry("a", "U8", "1", 0, 1), entry("b", "U8", "1", 3, 4));
    opened(&gap, 4).expect("a gap does no harm");
}

#[test]
fn every_form_of_a_name_is_understood() {
    let published = [
        ("model.layers.0.self_attn.wkv.weight", "layers.0.attn.wkv.weight"),
        ("layers.0.self_attn.wkv.weight_scale_inv", "layers.0.attn.wkv.scale"),
        ("model.layers.0.mlp.gate.e_score_correction_bias", "layers.0.ffn.gate.bias"),
        ("model.model.norm.weight", "norm.weight"),
        ("mlp_norm.model", "mlp_norm.model"),
    ];
    for (stored, kept) in published {
        let header = format!("{{{}}}", entry(stored, "U8", "1", 0, 1));
        let checkpoint = opened(&header, 1).expect("a good file");
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), [kept]);
        for form in [stored, kept, &format!("model.{kept}")] {
            assert!(checkpoint.tensor(form).is_some(), "{form} of {stored}");
        }
    }
}

#[test]
fn scales_that_do_not_fit() {
    let pair = |dtype, shape: &str, bytes: u64, scale_dtype, scale: &str, scale_bytes: u64| {
        let weight = entry("w.weight", dtype, shape, 0, bytes);
        let end = bytes + scale_bytes;
        let scale = entry("w.scale", scale_dtype, scale, bytes, end);
        let data = usize::try_from(end).expect("a small file");
        opened(&format!("{{{weight},{scale}}}"), data).expect("a good file")
    };
    let refuse = |checkpoint: &Checkpoint, words: &[&str]| {
        refused(checkpoint.to_f32("w.weight"), Blame::Input, words);
    };
    let grid = pair("F8_E4M3", "4,6", 24, "F8_E8M0", "3,1", 3);
    refuse(&grid, &["w.scale: 3 x 1 scales for 4 x 6 values", "a power of two"]);
    refuse(&pair("F8_E4M3", "4,6", 24, "F8_E8M0", "5,1", 5), &["5 x 1 scales"]);
    refuse(&pair("F8_E4M3", "4,6", 24, "F8_E8M0", "0,1", 0), &["0 x 1 scales"]);
    refuse(&pair("F8_E4M3", "24", 24, "F8_E8M0", "1,1", 1), &["w.weight", "dims are [24]"]);
    refuse(&pair("F8_E4M3", "4,6", 24, "F8_E8M0", "1", 1), &["w.scale", "dims are [1]"]);
    refuse(&pair("F8_E4M3", "4,6", 24, "BOOL", "1,1", 1), &["w.scale: it holds Bool"]);
    refuse(&pair("I8", "2,16", 32, "F8_E8M0", "2,2", 4), &["w.weight: 2 x 16 of I8", "2 x 2"]);
    refuse(&pair("I8", "2,8", 16, "F8_E8M0", "2,1", 2), &["2 x 8 of I8", "per 32 columns"]);
    let torn = pair("I8", "2,24", 48, "F8_E8M0", "2,1", 2);
    refused(torn.fp4_parts("w.weight"), Blame::Input, &["2 x 24 of I8 with scales 2 x 1"]);
    refuse(&pair("I8", "2,16", 32, "F32", "2,1", 8), &["of F32", "F8_E8M0"]);
    let bare = opened(&format!("{{{}}}", entry("w.weight", "I8", "2,16", 0, 32)), 32);
    let bare = bare.expect("a good file");
    refused(bare.fp4_parts("w.weight"), Blame::Input, &["I8 without 'w.scale'"]);
    assert_eq!(bare.to_f32("w.weight").expect("plain numbers").len(), 32);
    let wide = pair("U8", "4611686018427387904,0", 0, "U8", "1,0", 0);
    assert_eq!(wide.value_shape("w.weight").expect("it fits"), [1 << 62, 0]);
    assert!(wide.fp4_parts("w.weight").is_err());
}

#[test]
fn a_chain_of_scales_is_not_followed() {
    let names: Vec<String> = (0..300).map(|depth| format!("w{}", ".scale".repeat(depth))).collect();
    let entries: Vec<String> =
        names.iter().zip(0..).map(|(name, at)| entry(name, "F8_E4M3", "1,1", at, at + 1)).collect();
    let checkpoint = opened(&format!("{{{}}}", entries.join(",")), 300).expect("a good file");
    assert_eq!(checkpoint.to_f32("w").expect("one scale").len(), 1);
}

fn save(path: &Path, bytes: impl AsRef<[u8]>) {
    std::fs::write(path, bytes).expect("a file of the test");
}

fn index(pairs: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(k, v)| format!(r#""{k}":"{v}""#)).collect();
    format!(r#"{{"metadata":{{"total_size":2}},"weight_map":{{{}}}}}"#, pairs.join(","))
}

#[test]
fn a_folder_with_shards() {
    let folder = folder("shards");
    let one = |name| file(&format!("{{{}}}", entry(name, "U8", "1", 0, 1)), 1);
    save(&folder.join("b.safetensors"), one("model.x.weight"));
    save(&folder.join("a.safetensors"), one("y"));
    let good = index(&[("model.x.weight", "b.safetensors"), ("y", "a.safetensors")]);
    save(&folder.join(INDEX), &good);
    let checkpoint = Checkpoint::open(&folder).expect("a good folder");
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["x.weight", "y"]);
    assert_eq!(checkpoint.config().expect("it may be missing"), None);
    save(&folder.join(CONFIG), "{\"a\": 1}");
    assert_eq!(checkpoint.config().expect("a text").as_deref(), Some("{\"a\": 1}"));
    save(&folder.join(CONFIG), b"\xff");
    refused(checkpoint.config(), Blame::Input, &["config.json", "it is not UTF-8"]);
    save(&folder.join(CONFIG), " ".repeat((1 << 20) + 1));
    refused(checkpoint.config(), Blame::Input, &["config.json", "it is longer", "1048576"]);

    let refuse = |text: &str, blame, words: &[&str]| {
        save(&folder.join(INDEX), text);
        refused(Checkpoint::open(&folder), blame, words);
    };
    let missing = index(&[("y", "c.safetensors")]);
    refuse(&missing, Blame::Environment, &["opening", "c.safetensors"]);
    let elsewhere = index(&[("x.weight", "a.safetensors"), ("y", "a.safetensors")]);
    refuse(&elsewhere, Blame::Input, &["x.weight", "not in 'a.safetensors'"]);
    let swapped = index(&[("x.weight", "a.safetensors"), ("y", "b.safetensors")]);
    refuse(&swapped, Blame::Input, &["index.json: x.weight", "not in 'a.safetensors'"]);
    let absent = index(&[("y", "a.safetensors"), ("z", "a.safetensors")]);
    refuse(&absent, Blame::Input, &["z: the tensor is not in"]);
    for path in ["../a.safetensors", "/etc/passwd", "a/../a.safetensors", "..", ".", "", "sub/a"] {
        let words = ["y: its file is", "in the same folder"];
        refuse(&index(&[("y", path)]), Blame::Input, &words);
    }
    refuse("{}", Blame::Input, &["index", "weight_map"]);
    refuse(r#"{"weight_map":{"y":7}}"#, Blame::Input, &["tensor 'y'"]);
    refuse("[", Blame::Input, &["index", "EOF"]);
    std::fs::remove_file(folder.join(INDEX)).expect("the index");
    let words = ["a folder without a checkpoint", INDEX, SINGLE];
    refused(Checkpoint::open(&folder), Blame::Environment, &words);
    save(&folder.join(SINGLE), one("only"));
    assert_eq!(Checkpoint::open(&folder).expect("one file").names().count(), 1);
}

#[test]
fn one_tensor_in_two_shards() {
    let folder = folder("shards_twice");
    let header = |name| format!("{{{}}}", entry(name, "U8", "1", 0, 1));
    save(&folder.join("a"), file(&header("x"), 1));
    let both = format!("{{{},{}}}", entry("y", "U8", "1", 0, 1), entry("model.x", "U8", "1", 1, 2));
    save(&folder.join("b"), file(&both, 2));
    save(&folder.join(INDEX), index(&[("x", "a"), ("y", "b")]));
    refused(Checkpoint::open(&folder), Blame::Input, &["b: model.x: the tensor occurs twice"]);
}

#[test]
fn too_many_shards() {
    let folder = folder("shards_many");
    let names: Vec<String> = (0..1025).map(|i| format!("s{i}")).collect();
    let pairs: Vec<(&str, &str)> = names.iter().map(|name| (&name[..], &name[..])).collect();
    save(&folder.join(INDEX), index(&pairs));
    refused(Checkpoint::open(&folder), Blame::Input, &["weight_map: 1025", "at most 1024"]);
}
