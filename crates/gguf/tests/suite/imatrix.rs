//! Files of importances: both layouts, and what is refused.

use crate::helpers::{folder, golden, golden_path, refused};
use ironstar_gguf::{Blame, Error, Imatrix, TensorKind, Value, Writer};
use ironstar_quant::Format;
use std::io::Cursor;

const QUERY: &str = "blk.0.attn_q_a.weight";
const DOWN: &str = "blk.0.ffn_down_exps.weight";

/// Means of `tests/golden/make/imatrix_files.py`; of another size are `others`.
fn check(imatrix: &Imatrix, others: &[(usize, usize)]) {
    assert_eq!(imatrix.names(), [QUERY, DOWN]);
    assert_eq!(imatrix.datasets(), ["calibration.txt"]);
    assert_eq!(imatrix.chunks(), 5);
    let of = |name, index, matrices| imatrix.of(name, index, 4, matrices).expect("it fits");
    assert_eq!(of(QUERY, 0, 1), Some(vec![0.25, 0.5, 1.0, 2.0]));
    assert_eq!(of(DOWN, 0, 3), Some(vec![0.0, 0.5, 1.0, 1.5]));
    assert_eq!(of(DOWN, 1, 3), None, "no input reached it");
    assert_eq!(of(DOWN, 2, 3), Some(vec![6.0, 6.75, 7.5, 8.25]));
    assert_eq!(of("blk.0.attn_q_b.weight", 0, 1), None);
    assert!(!imatrix.has("blk.0.attn_q_b.weight", 4, 1).expect("there is none"));
    for &(columns, matrices) in others {
        let words = [DOWN, "12 importances", "another model"];
        refused(imatrix.has(DOWN, columns, matrices), Blame::Input, &words);
        refused(imatrix.of(DOWN, 0, columns, matrices), Blame::Input, &words);
    }
}

#[test]
fn both_layouts_say_the_same() {
    let others = [(4, 2), (8, 3), (usize::MAX, 3), (12, 1)];
    // The older layout does not say where a matrix ends.
    for (name, others) in [("imatrix.gguf", &others[..]), ("imatrix.dat", &others[..3])] {
        check(&Imatrix::open(&golden_path(name)).expect("a fixture"), others);
        check(&Imatrix::from_bytes(golden(name)).expect("a fixture"), others);
    }
}

#[test]
fn a_file_that_is_cut_short_is_refused() {
    for name in ["imatrix.gguf", "imatrix.dat"] {
        let whole = golden(name);
        for length in 0..whole.len() {
            let result = Imatrix::from_bytes(whole[..length].to_vec());
            let is_whole = match name {
                // An older writer ends before the number of chunks and the name of the data set.
                "imatrix.dat" => length == whole.len() - 8 - "calibration.txt".len(),
                // The last tensor has 12 bytes of 32.
                _ => length >= whole.len() - 20,
            };
            assert_eq!(result.is_ok(), is_whole, "{name} cut to {length}");
        }
    }
    let short = folder("imatrix").join("short.dat");
    std::fs::write(&short, &golden("imatrix.dat")[..100]).expect("a small file");
    refused(Imatrix::open(&short), Blame::Input, &["short.dat", "cut short"]);
}

#[test]
fn what_is_no_file_of_importances_is_refused() {
    let refused = |bytes: Vec<u8>, words: &[&str]| {
        refused(Imatrix::from_bytes(bytes), Blame::Input, words);
    };
    refused(golden("small.gguf"), &["general.type", "there is none", "not a model"]);
    refused(b"\xff\xff\xff\xff".to_vec(), &["number of entries", "-1", "from 0 up"]);
    refused(b"# a text\nof some lines".to_vec(), &["entry 0", "bytes are announced"]);
    let older = golden("imatrix.dat");
    let mut longer = older.clone();
    longer.push(0);
    refused(longer, &["end", "1 more bytes"]);
    let mut nameless = older.clone();
    nameless[8] = 0xff;
    refused(nameless, &["entry 0", "no text"]);
    // The second entry again in place of the first.
    let second = &older[4 + 4 + QUERY.len() + 8 + 16..][..4 + DOWN.len() + 8 + 48];
    refused([&[2, 0, 0, 0], second, second].concat(), &[DOWN, "twice"]);
}

/// A file of the newer layout with one entry.
fn newer(kind: Format, sums: &[u8], counts: Option<&[f32]>) -> Result<Imatrix, Error> {
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    writer.metadata("general.type", Value::String("imatrix".into()))?;
    let sum_count = sums.len() as u64 / (if kind == Format::F32 { 4 } else { 2 });
    writer.tensor("w.in_sum2", TensorKind::Block(kind), &[2, sum_count / 2])?;
    if let Some(counts) = counts {
        writer.tensor("w.counts", TensorKind::Block(Format::F32), &[1, counts.len() as u64])?;
    }
    writer.data("w.in_sum2", sums)?;
    if let Some(counts) = counts {
        writer
            .data("w.counts", &counts.iter().flat_map(|c| c.to_le_bytes()).collect::<Vec<u8>>())?;
    }
    Imatrix::from_bytes(writer.finish()?.into_inner())
}

#[test]
fn sums_and_counts_must_belong_together() {
    let sums: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    assert!(newer(Format::F32, &sums, Some(&[1.0, 2.0])).is_ok());
    let missing = newer(Format::F32, &sums, None);
    refused(missing, Blame::Input, &["w.counts", "missing", "w.in_sum2"]);
    let few = newer(Format::F32, &sums, Some(&[1.0]));
    refused(few, Blame::Input, &["w.counts", "1 counts", "2 matrices"]);
    let halves = newer(Format::F16, &sums[..8], Some(&[1.0, 1.0]));
    refused(halves, Blame::Input, &["w.in_sum2", "F16", "F32"]);
}

#[test]
fn numbers_that_are_no_sums_are_refused_where_they_are_used() {
    for wrong in [f32::NAN, f32::INFINITY, -1.0] {
        let sums: Vec<u8> = [1f32, 2.0, 3.0, wrong].iter().flat_map(|v| v.to_le_bytes()).collect();
        let imatrix = newer(Format::F32, &sums, Some(&[1.0, 2.0])).expect("sizes fit");
        assert_eq!(imatrix.of("w", 0, 2, 2).expect("the first is right"), Some(vec![1.0, 2.0]));
        let words = ["'w'", "matrix 1, column 1", "damaged"];
        refused(imatrix.of("w", 1, 2, 2), Blame::Input, &words);
        let imatrix = newer(Format::F32, &sums, Some(&[1.0, wrong])).expect("sizes fit");
        refused(imatrix.of("w", 1, 2, 2), Blame::Input, &["'w'", "a count of", "matrix 1"]);
    }
}
