//! Packed files: the same data, and the same file again; those that lie are refused.

use crate::helpers::{Raw, exercise, golden, golden_path, refused, refused_bytes};
use crate::round_trip::{Planned, tensor, value};
use ironstar_gguf::{
    Blame, Gguf, PLANES_ALIGNMENT_KEY, PLANES_KEY, PLANES_TYPE_BASE, TensorKind, Value, Writer,
    pack, unpack,
};
use ironstar_quant::planes::{ALIGNMENT, Layout};
use ironstar_quant::{FORMATS, Format};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::Cursor;

fn out() -> Cursor<Vec<u8>> {
    Cursor::new(Vec::new())
}

fn packed(model: &Gguf) -> Vec<u8> {
    pack(model, out(), &mut |_| {}).expect("known types").into_inner()
}

fn unpacked(model: &Gguf) -> Vec<u8> {
    unpack(model, out(), &mut |_| {}).expect("it is packed").into_inner()
}

fn opened(bytes: Vec<u8>) -> Gguf {
    Gguf::from_bytes(bytes).expect("a good file")
}

/// Every second tensor has the data of the one before if it can.
fn written(
    entries: &[(String, Value)],
    tensors: &BTreeMap<String, Planned>,
    sharing: bool,
) -> Vec<u8> {
    let mut writer = Writer::new(out());
    for (key, value) in entries {
        writer.metadata(key, value.clone()).expect("keys differ");
    }
    let mut own = Vec::new();
    for (index, (name, tensor)) in tensors.iter().enumerate() {
        let before = own.last().filter(|_| sharing && index % 2 == 1).copied();
        let same = |(_, t): &(&String, &Planned)| (t.kind, &t.dims) == (tensor.kind, &tensor.dims);
        match before.filter(same) {
            Some((with, _)) => {
                writer.tensor_sharing(name, tensor.kind, &tensor.dims, with).expect("equal sizes");
            }
            None => {
                writer.tensor(name, tensor.kind, &tensor.dims).expect("possible dims");
                own.push((name, tensor));
            }
        }
    }
    for (name, tensor) in own {
        writer.data(name, &tensor.data).expect("announced data");
    }
    writer.finish().expect("all was written").into_inner()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_model_comes_back(
        entries in btree_map("[a-z._]{1,12}", value(), 0..8),
        alignment in prop_oneof![Just(None), (0..11_u32).prop_map(|shift| Some(1 << shift))],
        tensors in btree_map(".{1,16}", tensor(), 0..6),
        sharing in any::<bool>(),
    ) {
        let mut entries: Vec<(String, Value)> = entries.into_iter().collect();
        entries.extend(alignment.map(|n| ("general.alignment".to_owned(), Value::U32(n))));
        let file = written(&entries, &tensors, sharing);
        let before = opened(file.clone());
        prop_assert!(before.is_plain() && !before.is_packed());
        let after = opened(packed(&before));
        prop_assert!(after.is_plain() && after.is_packed());
        for (before_info, after_info) in before.tensors().iter().zip(after.tensors()) {
            prop_assert_eq!(
                (&before_info.name, before_info.kind, &before_info.dims, before_info.byte_count()),
                (&after_info.name, after_info.kind, &after_info.dims, after_info.byte_count())
            );
            prop_assert_eq!(&*before.bytes(before_info)?, &*after.bytes(after_info)?);
            let Some(layout) = after_info.planes() else { continue };
            let stored = after.stored(after_info)?;
            prop_assert_eq!(stored.len() as u64, layout.bytes);
            let start = after.place(after_info)?.range.start as u64;
            prop_assert!(start.is_multiple_of(ALIGNMENT.into()));
        }
        exercise(&after);
        prop_assert!(unpacked(&after) == file, "another file came back");
    }

    #[test]
    fn damaged_bytes_of_a_packed_file_are_survived(
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut file = packed(&opened(golden("small.gguf")));
        for (at, byte) in damage {
            let at = at.index(file.len());
            file[at] = byte;
        }
        file.truncate(cut.index(file.len()) + 1);
        if let Ok(model) = Gguf::from_bytes(file) {
            exercise(&model);
            let _ = unpack(&model, out(), &mut |_| {});
        }
    }
}

/// What was written by another program, and mapped.
#[test]
fn a_file_of_another_program_comes_back() {
    let model = Gguf::open(&golden_path("small.gguf")).expect("the fixture");
    assert!(model.is_plain());
    let after = opened(packed(&model));
    assert_eq!(after.metadata().u32(PLANES_ALIGNMENT_KEY).expect("it named one"), 64);
    assert_eq!(after.tensors().iter().filter(|tensor| tensor.planes().is_some()).count(), 1);
    assert!(unpacked(&after) == golden("small.gguf"));
}

/// Planes that are filled up and planes that are not.
#[test]
fn planes_with_and_without_padding() {
    for (info, count) in FORMATS.iter().flat_map(|info| [1, 128, 129, 256].map(|n| (info, n))) {
        let kind = TensorKind::Block(info.format);
        let dims = vec![(count * info.block_elements) as u64];
        let data = (0..=250).cycle().take(count * info.block_bytes).collect();
        let ids = Planned { kind: TensorKind::I32, dims: vec![1], data: vec![1; 4] };
        let tensors = [("w", Planned { kind, dims, data }), ("x", ids)];
        let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor)).into();
        let file = written(&[], &tensors, false);
        assert!(unpacked(&opened(packed(&opened(file.clone())))) == file, "{count} {}", info.name);
    }
}

/// One tensor of two blocks in planes, by hand.
fn raw(version: u32, alignment: u32, kind: u32, offset: u64) -> Raw {
    let start = Raw::new(1, 2).text(PLANES_KEY).u32(4).u32(version);
    let start = start.text("general.alignment").u32(4).u32(alignment);
    start.tensor("w", &[64], PLANES_TYPE_BASE + kind, offset)
}

fn with_data(raw: Raw, count: usize) -> Vec<u8> {
    let mut bytes = raw.0;
    bytes.resize(bytes.len().next_multiple_of(256) + count, 0x11);
    bytes
}

#[test]
fn planes_by_hand() {
    let model = opened(with_data(raw(1, 256, 8, 0), 512));
    let tensor = model.tensor("w").expect("it is there");
    assert_eq!(tensor.kind, TensorKind::Block(Format::Q8_0));
    assert_eq!((tensor.byte_count(), tensor.planes()), (Some(68), Layout::new(Format::Q8_0, 2)));
    assert_eq!(*model.bytes(tensor).expect("inside"), [0x11; 68]);
}

#[test]
fn what_lies_is_refused() {
    refused_bytes(with_data(raw(2, 256, 8, 0), 512), &["ironstar.planes", "version 2", "again"]);
    refused_bytes(with_data(raw(1, 32, 8, 0), 512), &["general.alignment: 32", "256"]);
    refused_bytes(with_data(raw(1, 256, 8, 32), 1024), &["offset 32", "256"]);
    refused_bytes(with_data(raw(1, 256, 8, 0), 511), &["tensor 'w'", "512", "511", "cut short"]);
    let text = Raw::new(0, 1).text(PLANES_KEY).u32(8).text("1");
    refused_bytes(text.data(0), &["ironstar.planes", "the text '1'"]);
    let silent = Raw::new(1, 0).tensor("w", &[64], PLANES_TYPE_BASE + 8, 0);
    refused_bytes(silent.data(512), &["tensor 'w'", "planes", "no ironstar.planes"]);
    let odd = Raw::new(1, 0).tensor("w", &[33], PLANES_TYPE_BASE + 8, 0);
    refused_bytes(odd.data(512), &["tensor 'w'", "whole blocks"]);
}

/// Blocks of one piece have no planes, and unknown types none that we know.
#[test]
fn types_without_planes_are_unknown() {
    for kind in [0, 1, 30, 15, 77] {
        let model = opened(with_data(raw(1, 256, kind, 0), 512));
        let tensor = model.tensor("w").expect("it is listed");
        assert_eq!(tensor.kind, TensorKind::Other(PLANES_TYPE_BASE + kind));
        refused(model.bytes(tensor), Blame::Input, &["tensor 'w'", "newer"]);
        refused(unpack(&model, out(), &mut |_| {}), Blame::Input, &["tensor 'w'", "newer"]);
    }
}

#[test]
fn the_other_way_round_is_refused() {
    let plain = opened(golden("small.gguf"));
    refused(unpack(&plain, out(), &mut |_| {}), Blame::Input, &["ironstar.planes", "not packed"]);
    let done = opened(packed(&plain));
    refused(pack(&done, out(), &mut |_| {}), Blame::Input, &["ironstar.planes", "already"]);
}

/// A file that ends in more than padding, or whose padding is none, is no plain one.
#[test]
fn files_that_would_not_come_back_are_known() {
    let file = golden("small.gguf");
    assert!(opened(file.clone()).is_plain());
    let longer = [&file[..], &[0; 64]].concat();
    assert!(!opened(longer).is_plain());
    let model = opened(file.clone());
    let mut ends: Vec<_> =
        model.tensors().iter().map(|t| model.place(t).expect("inside")).collect();
    ends.sort_by_key(|place| place.range.end);
    let mut other = file;
    let gap = ends[0].range.end;
    assert_eq!(other[gap], 0);
    other[gap] = 1;
    assert!(!opened(other).is_plain());
}
