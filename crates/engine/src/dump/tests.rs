//! Files and comparisons by hand; `tests/suite/dump.rs` has whole models.
#![expect(clippy::unwrap_used, reason = "a failed file fails the test")]

use super::npy::{self, Kind, Records, Table};
use super::{DumpError, Key, compare};
use ironstar_model::What;
use std::path::{Path, PathBuf};

/// An empty folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let own = format!("ironstar-dump-{name}-{}", std::process::id());
    let folder = std::env::temp_dir().join(own);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn write(folder: &Path, name: &str, kind: Kind, rows: &[(u32, &[f32])]) {
    let path = folder.join(format!("{name}.npy"));
    let width = rows[0].1.len();
    npy::create(&path, kind, width).unwrap();
    for (position, row) in rows {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small ids")]
        let word = |value: &f32| match kind {
            Kind::Floats => value.to_bits(),
            Kind::Words => *value as u32,
        };
        let words = std::iter::once(*position).chain(row.iter().map(word));
        npy::append(&path, &words.flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    }
    npy::close(&path, Table { kind, width, records: rows.len() }).unwrap();
}

/// A folder with these tokens and one tensor.
fn dump(name: &str, tokens: &[f32], tensor: (&str, Kind), rows: &[(u32, &[f32])]) -> PathBuf {
    let folder = folder(name);
    let tokens: Vec<(u32, &[f32])> = (0..).zip(tokens.chunks(1)).collect();
    write(&folder, "tokens", Kind::Words, &tokens);
    write(&folder, tensor.0, tensor.1, rows);
    folder
}

#[test]
fn names_are_read_as_they_are_written() {
    for what in What::ALL {
        let key = Key::Layer(12, what);
        assert_eq!(Key::named(&key.name()), Some(key));
    }
    for name in ["tokens", "logits"] {
        assert_eq!(Key::named(name).unwrap().name(), name);
    }
    for name in ["", "layer.1", "layer.01.ffn_out", "layer.+1.ffn_out", "layer.1.other", "x"] {
        assert_eq!(Key::named(name), None, "{name}");
    }
}

/// NumPy wrote it: `tests/golden/make/dump_records.py`.
#[test]
fn records_of_numpy_are_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/dump/records.npy");
    let mut file = Records::open(&path).unwrap();
    assert_eq!(file.table, Table { kind: Kind::Floats, width: 3, records: 2 });
    assert_eq!(file.positions().unwrap(), [7, 4_000_000_000]);
    let row: Vec<f32> = file.row(1).unwrap().into_iter().map(f32::from_bits).collect();
    assert_eq!(row, [0.5, -2.0, 1e-30]);
}

#[test]
fn the_last_record_of_a_position_counts() {
    let name = ("layer.0.ffn_out", Kind::Floats);
    let a = dump("again-a", &[1.0, 2.0], name, &[(0, &[1.0, 2.0]), (1, &[3.0, 4.0])]);
    let twice: [(u32, &[f32]); 3] = [(1, &[9.0, 9.0]), (0, &[1.0, 2.0]), (1, &[3.0, 4.0])];
    let b = dump("again-b", &[1.0, 2.0], name, &twice);
    let found = compare(&a, &b).unwrap();
    assert_eq!((found.positions, found.tensors[0].rows), (2, (2, 0)));
    assert!(found.first_beyond(0.0).is_none());
    for folder in [a, b] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn what_differs_is_told_with_its_place() {
    let name = ("layer.3.queries", Kind::Floats);
    let rows: [(u32, &[f32]); 2] = [(0, &[3.0, 4.0]), (1, &[0.0, 1.0])];
    let a = dump("place-a", &[1.0, 2.0], name, &rows);
    let check = |name: &str, tokens: &[f32], rows: &[(u32, &[f32])]| {
        let b = dump(name, tokens, ("layer.3.queries", Kind::Floats), rows);
        let found = compare(&a, &b).unwrap();
        std::fs::remove_dir_all(b).unwrap();
        found
    };
    let found = check("place-b", &[1.0, 2.0], &[(0, &[3.0, 4.5]), (1, &[0.0, 3.0])]);
    let queries = found.first_beyond(0.05).unwrap();
    let place = queries.largest.unwrap();
    assert_eq!((queries.rows, place.position, place.index), ((2, 2), 1, 1));
    assert_eq!((place.apart(), queries.relative), (2.0, 2.0));
    assert_eq!(queries.first.unwrap().position, 0);
    assert!(found.first_beyond(2.5).is_none());
    // Zeros of both signs are other bits, and not apart.
    let found = check("place-c", &[1.0, 2.0], &[(0, &[3.0, 4.0]), (1, &[-0.0, 1.0])]);
    assert!(found.first_beyond(0.0).is_some() && found.first_beyond(1e-9).is_none());
    // What is no number is beyond every tolerance.
    let found = check("place-d", &[1.0, 2.0], &[(0, &[f32::NAN, 4.0]), (1, &[0.0, 1.0])]);
    assert!(found.first_beyond(1e30).is_some());
    // Behind another token nothing is compared.
    let found = check("place-e", &[1.0, 5.0], &[(0, &[3.0, 4.0]), (1, &[0.0, 7.0])]);
    assert_eq!((found.tokens_part_at, found.tensors[0].rows), (Some(1), (1, 0)));
    let other = dump("place-f", &[6.0], name, &rows[..1]);
    assert!(matches!(compare(&a, &other), Err(DumpError::Apart { .. })));
    for folder in [a, other] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn ids_are_the_same_or_not() {
    let name = ("layer.3.experts", Kind::Words);
    let a = dump("ids-a", &[1.0], name, &[(0, &[3.0, 4.0])]);
    let b = dump("ids-b", &[1.0], name, &[(0, &[3.0, 5.0])]);
    let found = compare(&a, &b).unwrap();
    let place = found.first_beyond(1e30).unwrap().largest.unwrap();
    assert_eq!((place.index, place.values), (1, [4.0, 5.0]));
    for folder in [a, b] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// Every way in which a file is not what it says.
#[test]
fn damaged_files_are_refused() {
    let folder = folder("damaged");
    write(&folder, "tokens", Kind::Words, &[(0, &[1.0]), (1, &[2.0])]);
    let path = folder.join("tokens.npy");
    let whole = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8], what: &str| {
        std::fs::write(&path, bytes).unwrap();
        match Records::open(&path) {
            Err(error @ DumpError::Format { .. }) => assert!(error.is_input()),
            other => panic!("{what}: {:?}", other.map(|file| file.table)),
        }
    };
    for cut in [0, 1, 8, 9, 10, 60, 191, 192, 193, whole.len() - 1] {
        refused(&whole[..cut], &format!("cut to {cut}"));
    }
    refused(&[&whole[..], &[0]].concat(), "a byte more");
    let text = String::from_utf8_lossy(&whole[10..192]).into_owned();
    for (from, to) in [
        ("(2,), ", "(9,), "),
        ("(1,))", "(0,))"),
        ("(2,), }", "(99999999999999999999,), }"),
        ("(1,))", "(+1,))"),
        ("<u4', (", "<f8', ("),
        ("False", "True"),
    ] {
        let other = text.replacen(from, to, 1);
        assert_ne!(other, text, "{from}");
        let length = u16::try_from(other.len()).unwrap().to_le_bytes();
        refused(&[&whole[..8], &length, other.as_bytes(), &whole[192..]].concat(), to);
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(compare(&folder, &folder), Err(DumpError::File { .. })));
}
