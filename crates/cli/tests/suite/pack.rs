//! `ironstar pack` and back: the same file, and the same answers on the way.

use crate::common::{failure, folder, ironstar, project, run, text};
use serde_json::Value;
use std::path::Path;

fn word(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("it was written")
}

#[test]
fn the_bundled_model_there_and_back() {
    let folder = folder("pack");
    let source = project("models/nano.gguf");
    let (packed, back) = (folder.join("packed.gguf"), folder.join("back.gguf"));
    let report: Value =
        serde_json::from_str(&text(&["pack", word(&source), word(&packed), "--json"]))
            .expect("JSON");
    assert_eq!(report["undo_gives_equal_bytes"], true, "{report}");
    assert_eq!(report["bytes"].as_u64(), Some(read(&packed).len() as u64));
    assert!(report["in_planes"].as_u64() > Some(10), "{report}");
    let shown = text(&["pack", "--undo", word(&packed), word(&back)]);
    assert!(shown.contains("were in planes"), "{shown}");
    assert!(read(&back) == read(&source), "another file came back");
    assert_eq!(std::fs::read_dir(&folder).expect("ours").count(), 2, "nothing else is left");

    let answer = |model: &Path, more: &[&str]| {
        let mut words = vec!["run", "--backend", "cpu", "-p", "What is two and two?"];
        words.extend(["-n", "12", "--temp", "0", "-m", word(model)]);
        words.extend(more);
        text(&words)
    };
    let wanted = answer(&source, &[]);
    assert_eq!(answer(&packed, &[]), wanted);
    assert_eq!(answer(&packed, &["--ranks", "2"]), wanted);
    let check = text(&["inspect", "--check", word(&packed)]);
    assert!(check.contains("all finite"), "{check}");
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_lost() {
    let folder = folder("pack-refused");
    let (a, b) = (folder.join("a.gguf"), folder.join("b.gguf"));
    std::fs::copy(project("models/nano.gguf"), &a).expect("room");
    let refused = |words: &[&str], wanted: &str| {
        let (code, message) = failure(words);
        assert!(code == 2 && message.contains(wanted), "{code}: {message}");
    };
    let before = read(&a);
    refused(&["pack", word(&a), word(&a), "--force"], "is what is read");
    refused(&["pack", "--undo", word(&a), word(&b)], "not packed");
    std::fs::write(&b, "mine").expect("room");
    refused(&["pack", word(&a), word(&b)], "--force");
    assert_eq!((read(&a) == before, &read(&b)[..]), (true, &b"mine"[..]));
    run(&["pack", word(&a), word(&b), "--force"]);
    let c = folder.join("c.gguf");
    refused(&["pack", word(&b), word(&c)], "packed already");
    let mut newer = read(&b);
    let key = b"ironstar.planes\x04\0\0\0\x01";
    let at = newer.windows(key.len()).position(|bytes| bytes == key).expect("the key");
    newer[at + key.len() - 1] = 2;
    std::fs::write(&c, newer).expect("room");
    refused(&["inspect", word(&c)], "planes of version 2");
    let left = std::fs::read_dir(&folder).expect("ours").count();
    assert_eq!(left, 3, "nothing else is left");
    assert!(ironstar(&["pack", "--help"]).output().is_ok_and(|o| o.status.success()));
}
