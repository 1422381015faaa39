use super::{run, script};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Stands in for every program: says what it was told, in a file, and all that is looked for.
const PROGRAM: &str = r#"#!/bin/bash
echo "$(basename "$0") $*" >>"$TOLD"
if [[ "$*" == *flash-q4* && "$*" != *--ranks* && "$1" != synth ]]; then
    echo "it needs more"
    exit 3
fi
[[ "$1" == synth ]] && : >"$2"
[[ "$1" == sim ]] && echo "    2        1  tensor 2    1.5"
[[ "$1" == bench ]] && echo '{"rows":[{"prefill_tps":3.5,"gen_tps":2.5}]}'
echo "reading one answer against guesses SUMMARY rank 0 1 tokens/s" \
    "shared fox behind launches, first"
"#;

const PROGRAMS: [&str; 7] = [
    "ironstar",
    "gpu_check",
    "kernel_bench",
    "card_gates",
    "card_lost",
    "compute-sanitizer",
    "nvidia-smi",
];

/// A folder of one test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("istar-cards-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder for files");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a script says, what it told the programs, and its files.
struct Ran {
    said: String,
    told: Vec<String>,
    summary: String,
    logs: usize,
}

fn ran(name: &str, count: u32, parts: &[&str], seconds: &str) -> Ran {
    let folder = Folder::new(name);
    let at = |name: &str| folder.0.join(name);
    for program in PROGRAMS {
        fs::write(at(program), PROGRAM).expect("written");
        fs::set_permissions(at(program), fs::Permissions::from_mode(0o755)).expect("ours");
    }
    fs::write(at("cards.sh"), script(count)).expect("written");
    let path = format!("{}:{}", folder.0.display(), std::env::var("PATH").expect("a path"));
    let made = Command::new("bash")
        .args([at("cards.sh"), at("out")])
        .args(parts)
        .env("PATH", path)
        .env("TOLD", at("told"))
        .env("SHM", &folder.0)
        .env("SECONDS_MAX", seconds)
        .output()
        .expect("there is a bash");
    let errors = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success() && errors.is_empty(), "{errors}");
    let told = fs::read_to_string(at("told")).unwrap_or_default();
    Ran {
        said: String::from_utf8(made.stdout).expect("a text"),
        told: told.lines().map(str::to_owned).collect(),
        summary: fs::read_to_string(at("out/summary.txt")).expect("made at the start"),
        logs: fs::read_dir(at("out")).expect("made").count(),
    }
}

/// Flags of what a program is told are in the file where it reads them.
fn known(program: &str, words: &[&str]) {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let read = |path: &str| fs::read_to_string(crates.join(path)).expect(path);
    let files: &[&str] = match program {
        "gpu_check" => &["engine/examples/card/words.rs"],
        "kernel_bench" => &["device/examples/kernel_bench.rs"],
        "ironstar" => &[
            "cli/src/flags.rs",
            "cli/src/flags/bench.rs",
            "cli/src/flags/cluster.rs",
            "cli/src/flags/ranks.rs",
        ],
        _ => &[],
    };
    let text: String = files.iter().map(|file| read(file)).collect();
    for word in words.iter().filter(|word| word.starts_with("--")) {
        let field = word.trim_start_matches('-').replace('-', "_");
        let read = text.contains(&format!("\"{word}\"")) || text.contains(&format!("pub {field}:"));
        let other = program == "compute-sanitizer" && ["--tool", "--kernel-regex"].contains(word);
        assert!(read || other, "{word} is no flag of {program}: {words:?}");
    }
}

/// Every part runs and says something, and what programs are told is what they know.
#[test]
fn every_part_runs() {
    for count in [1, 8] {
        let ran = ran(&format!("all{count}"), count, &[], "490");
        let ended: Vec<_> = ran.said.lines().filter(|line| line.contains(": rc ")).collect();
        let failed: Vec<_> = ended.iter().filter(|line| !line.contains(": rc 0,")).collect();
        let parts = ended.len();
        assert!(parts >= 15, "{count} cards: {parts} parts\n{}", ran.said);
        match count {
            1 => assert!(failed.is_empty(), "{failed:?}"),
            // One card refuses what two hold.
            _ => assert!(failed.len() == 1 && failed[0].starts_with("big-one: rc 3"), "{failed:?}"),
        }
        let lines = ran.summary.lines().count();
        assert!(ran.logs <= 8 && ran.said.len() < 12_000, "{} bytes", ran.said.len());
        assert!((parts - 2..=60).contains(&lines), "{lines} lines of {parts} parts");
        assert!(ran.summary.contains("prefill_tps:3.5 gen_tps:2.5"), "{}", ran.summary);
        let ranks = |n: &str| ran.told.iter().any(|told| told.contains(&format!("--ranks {n}")));
        assert_eq!((ranks("2"), ranks("8")), (true, count == 8));
        for line in &ran.told {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (program, words) = words.split_first().expect("the program's name");
            if *program == "compute-sanitizer" {
                let own = words.iter().position(|word| *word == "gpu_check").expect("a program");
                known(program, &words[..own]);
                known("gpu_check", &words[own..]);
            } else if *program != "nvidia-smi" {
                known(program, words);
            }
        }
    }
}

/// What comparisons leave out are names of shortcuts.
#[test]
fn shortcuts_that_are_left_out_exist() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/device/src/gpu/shortcuts.rs");
    let table = fs::read_to_string(path).expect("the table of shortcuts");
    let lists = script(1);
    let lists = lists.lines().filter_map(|line| {
        let (_, list) = line.split_once('=')?;
        (list.starts_with("all,-") || list.starts_with('-')).then_some(list)
    });
    let names =
        lists.flat_map(|list| list.split(',')).filter(|word| !["all", "$row"].contains(word));
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 10);
    for name in names {
        let name = name.strip_prefix('-').expect("behind `all` are those that are left out");
        assert!(table.contains(&format!("\"{name}\"")), "{name} is no shortcut any more");
    }
}

/// Named parts are all that run, and what there is no time for is named.
#[test]
fn parts_are_chosen_by_name_and_by_time() {
    let some = ran("some", 1, &["cuts", "race-wide_"], "490");
    let parts: Vec<&str> = some.said.lines().filter(|line| line.contains(": rc 0")).collect();
    assert_eq!(parts.len(), 2, "{}", some.said);
    assert!(
        some.said.contains("cuts: reading") && some.told.iter().any(|t| t.contains("kns=wide"))
    );
    let none = ran("none", 2, &[], "3");
    assert!(!none.said.contains(": rc"), "{}", none.said);
    assert!(none.said.contains("no time was left for: one two nano one-8k"), "{}", none.said);
}

#[test]
fn counts_are_one_to_eight() {
    for wrong in ["0", "9", "two", ""] {
        let error = run(wrong).expect_err("no such count").to_string();
        assert!(error.contains("1 to 8"), "{error}");
    }
}
