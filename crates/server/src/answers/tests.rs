use super::*;
use ironstar_engine::store::sim::{Faults, Rot, SimDisk};
use ironstar_text::chat::{Assistant, ToolCall, ToolResult};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn answer(bytes: usize) -> Answer {
    Answer { messages: Vec::new(), body: format!("\"{}\"", "x".repeat(bytes)) }
}

/// Every kind of message, with what JSON must escape.
fn conversation() -> Answer {
    let call = ToolCall {
        id: "call_1".into(),
        name: "read".into(),
        arguments: r#"{"n": 12345678901234567890, "s": "\n\""}"#.into(),
    };
    let turn = Assistant {
        reasoning: Some("why\u{0}".into()),
        content: "wörld \u{1f44b}".into(),
        calls: vec![call],
    };
    let result = ToolResult { call_id: "call_1".into(), text: "a\r\nb".into() };
    let messages = vec![
        Message::System("s".into()),
        Message::Developer("d".into()),
        Message::User("u \"quoted\"".into()),
        Message::Assistant(turn),
        Message::Tool(result),
        Message::LatestReminder(String::new()),
        Message::Assistant(Assistant::default()),
    ];
    Answer { messages, body: r#"{"id":"resp_a","n":1e400}"#.into() }
}

fn shelved(disk: &SimDisk, bytes_max: u64) -> Answers {
    Answers::new(1 << 20, Some(Shelf::new(Arc::new(disk.clone()), bytes_max)))
}

#[test]
fn in_memory_the_oldest_are_forgotten_first_and_the_bytes_add_up() {
    let mut memory = Memory::new(100);
    for id in ["a", "b", "c"] {
        memory.keep(id.into(), answer(37));
    }
    assert!(memory.get("a").is_none() && memory.get("b").is_some());
    memory.keep("huge".into(), answer(1000));
    assert!(memory.get("huge").is_none() && memory.get("c").is_some());
    assert!(memory.remove("b") && !memory.remove("b") && memory.remove("c"));
    assert_eq!((memory.bytes, memory.order.len()), (0, 0));
}

#[test]
fn what_is_on_disk_is_there_after_a_restart_until_it_is_removed() {
    let disk = SimDisk::new(1);
    let before = shelved(&disk, MIB);
    assert_eq!(before.keep("resp_a".into(), conversation()), None);
    assert!(before.memory().get("resp_a").is_none(), "it is in one place");
    let after = shelved(&disk.restart(), MIB);
    assert_eq!(after.get("resp_a"), Some(conversation()));
    assert!(after.remove("resp_a") && !after.remove("resp_a"));
    assert_eq!(after.get("resp_a"), None);
}

#[test]
fn no_damage_makes_another_answer() {
    let whole = file::write("resp_a", &conversation()).expect("it can be written");
    assert_eq!(file::read("resp_a", &whole), Some(conversation()));
    assert_eq!(file::read("resp_b", &whole), None, "it is somebody else's");
    for at in 0..whole.len() {
        assert_eq!(file::read("resp_a", &whole[..at]), None, "cut at {at}");
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        assert_eq!(file::read("resp_a", &flipped), None, "bit {} of byte {at}", at % 8);
    }
    let longer = [&whole[..], b" "].concat();
    assert_eq!(file::read("resp_a", &longer), None);
}

/// Files with good checksums that somebody else made.
#[test]
fn hostile_files_are_no_answers() {
    let sealed = |json: &str| {
        let head =
            format!("ironstar-answer 1 {} {:08x}\n", json.len(), crc32fast::hash(json.as_bytes()));
        head + json
    };
    let good = r#"{"id":"resp_a","messages":[{"role":"user","text":"u"}],"body":"{}"}"#;
    assert!(file::read("resp_a", sealed(good).as_bytes()).is_some());
    let deep = format!(r#"{{"id":"resp_a","messages":[],"body":"{}"}}"#, "[".repeat(100_000));
    for wrong in [
        r#"{"id":"resp_a","messages":[],"body":"<html>"}"#,
        r#"{"id":"resp_a","messages":[],"body":""}"#,
        r#"{"id":"resp_a","messages":[{"role":"robot","text":"u"}],"body":"{}"}"#,
        r#"{"id":"resp_a","messages":[{"role":"user"}],"body":"{}"}"#,
        r#"{"id":"resp_a","messages":{},"body":"{}"}"#,
        r#"{"id":"resp_a","messages":[],"body":"{}","more":1}"#,
        "[]",
        "",
        &"[".repeat(100_000),
        &deep,
    ] {
        assert_eq!(file::read("resp_a", sealed(wrong).as_bytes()), None, "{wrong:.80}");
    }
    let newer = sealed(good).replace("answer 1", "answer 2");
    assert_eq!(file::read("resp_a", newer.as_bytes()), None, "another version");
}

#[test]
fn ids_from_requests_are_no_paths() {
    let disk = SimDisk::new(1);
    let bytes = file::write("resp_x", &answer(1)).expect("it can be written");
    for id in ["../resp_x", "resp_/../x", "", "x", "resp_é", "resp_x.answer", "resp_\0"] {
        disk.put(&format!("{id}.answer"), bytes.clone());
        let answers = shelved(&disk, MIB);
        assert!(answers.get(id).is_none() && !answers.remove(id), "{id:?}");
    }
    let long = format!("resp_{}", "x".repeat(100));
    assert!(shelved(&disk, MIB).get(&long).is_none());
    assert_eq!(disk.names().len(), 7, "nothing was removed");
}

#[test]
fn the_folder_is_bounded_and_the_oldest_go_first() {
    let disk = SimDisk::new(1);
    let answers = shelved(&disk, 100_000);
    for number in 0..60 {
        assert_eq!(answers.keep(format!("resp_{number}"), answer(9_000)), None);
        assert!(disk.bytes() <= 100_000, "{} bytes", disk.bytes());
        assert!(answers.get("resp_0").is_some(), "what is used again is not old");
    }
    assert!(answers.get("resp_59").is_some() && answers.get("resp_1").is_none());
    // Small ones are bounded in number.
    let tiny = shelved(&disk, 100_000);
    (0..60).for_each(|number| drop(tiny.keep(format!("resp_t{number}"), answer(1))));
    assert!(disk.names().len() <= 25, "{} files", disk.names().len());
    // One that is larger than all may be does not cost the others their place.
    assert!(tiny.keep("resp_huge".into(), answer(200_000)).is_some());
    assert!(tiny.get("resp_t59").is_some());
}

/// Bug reports H30, for answers: a crash at every operation in turn.
#[test]
fn what_was_acknowledged_survives_any_crash_and_nothing_half_written_is_taken() {
    for crash_at in 1..1000 {
        let disk = SimDisk::new(crash_at);
        disk.set_faults(Faults { crash_at: Some(crash_at), ..Faults::default() });
        let answers = shelved(&disk, 30_000);
        let ids: Vec<String> = (0..6).map(|number| format!("resp_{number}")).collect();
        let mut kept = Vec::new();
        for id in &ids {
            let told = answers.keep(id.clone(), answer(6_000));
            if told.is_none() && !disk.has_crashed() {
                kept.push(id);
            }
        }
        let crashed = disk.has_crashed();
        let survived = shelved(&disk.restart(), 30_000);
        for id in &ids {
            let found = survived.get(id);
            assert!(found.is_none_or(|found| found == answer(6_000)), "{id}, crash at {crash_at}");
        }
        // Four fit; older ones may have been removed to make room.
        for id in kept.iter().rev().take(2) {
            assert!(survived.get(id).is_some(), "{id} is lost by a crash at {crash_at}");
        }
        assert_eq!(survived.keep("resp_new".into(), answer(10)), None);
        if !crashed {
            assert!(crash_at > 20, "only {crash_at} operations");
            return;
        }
    }
}

#[test]
fn a_folder_that_fails_is_told_once_and_memory_serves() {
    let disk = SimDisk::new(1);
    let answers = shelved(&disk, MIB);
    disk.set_faults(Faults { read_only: true, ..Faults::default() });
    let told = answers.keep("resp_a".into(), conversation()).expect("it is told");
    assert!(told.contains("kept in memory"), "{told}");
    assert_eq!(answers.keep("resp_b".into(), conversation()), None, "once");
    assert_eq!(answers.get("resp_b"), Some(conversation()));
    assert!(answers.remove("resp_a"));
    disk.set_faults(Faults::default());
    assert_eq!(answers.keep("resp_c".into(), conversation()), None);
    assert_eq!(shelved(&disk.restart(), MIB).get("resp_c"), Some(conversation()));
    // A disk that is full gives up the oldest.
    let disk = SimDisk::new(1);
    let answers = shelved(&disk, MIB);
    disk.set_faults(Faults { capacity: 30_000, ..Faults::default() });
    for number in 0..9 {
        assert_eq!(answers.keep(format!("resp_{number}"), answer(8_000)), None, "{number}");
    }
    disk.rot("resp_8.answer", Rot::Cut);
    assert!(answers.get("resp_8").is_none() && answers.get("resp_7").is_some());
}
