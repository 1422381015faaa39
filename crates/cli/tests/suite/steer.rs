//! `ironstar steer` and the steering flags, through the binary.
#![expect(clippy::unwrap_used, reason = "a failed run fails the test")]

use std::path::Path;
use std::process::Output;

fn ironstar(folder: &Path, args: &[&str]) -> Output {
    crate::common::ironstar(args).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_direction_is_built_and_changes_answers() {
    let folder = crate::common::folder("steer-build");
    let write = |name: &str, lines: &str| std::fs::write(folder.join(name), lines).unwrap();
    write("toward.txt", "Tell me a story about a fox.\nTell me a story about a bear.\n\n");
    write("away.txt", "What is a hash map?\nWhat does cargo build do?\n");
    let build = ["steer", "build", "--toward", "toward.txt", "--away", "away.txt", "-o", "d.f32"];
    let made = ironstar(&folder, &[&build[..], &["--json"]].concat());
    assert!(made.status.success(), "{}", text(&made.stderr));
    let object: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let layers = object["lengths"].as_array().unwrap().len();
    let bytes = std::fs::read(folder.join("d.f32")).unwrap();
    assert_eq!(bytes.len() % (4 * layers), 0);
    assert_eq!(ironstar(&folder, &build).status.code(), Some(2), "it is not overwritten");
    let again = ironstar(&folder, &[&build[..], &["--force"]].concat());
    assert!(again.status.success());
    assert!(std::fs::read(folder.join("d.f32")).unwrap() == bytes, "it repeats");

    let ask = ["run", "-p", "Tell me a story about a fox.", "--temp", "0", "-n", "24"];
    let steered = |scale: &str| {
        let flags = ["--dir-steering-file", "d.f32", "--dir-steering-ffn", scale];
        let output = ironstar(&folder, &[&ask[..], &flags].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let plain = text(&ironstar(&folder, &ask).stdout);
    assert_eq!(steered("0"), plain);
    assert_ne!(steered("4"), plain);

    write("prompts.txt", "Tell me a story about a fox.\n");
    let sweep = [
        "steer",
        "sweep",
        "prompts.txt",
        "--dir-steering-file",
        "d.f32",
        "--scales=-1,0",
        "-n",
        "24",
        "--json",
    ];
    let swept = ironstar(&folder, &sweep);
    assert!(swept.status.success(), "{}", text(&swept.stderr));
    let lines: Vec<serde_json::Value> =
        text(&swept.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1]["content"].as_str().unwrap().trim_end(), plain.trim_end());
}

#[test]
fn what_does_not_fit_is_the_callers_fault() {
    let folder = crate::common::folder("steer-refused");
    std::fs::write(folder.join("short.f32"), [0; 12]).unwrap();
    std::fs::write(folder.join("empty.txt"), "\n \n").unwrap();
    let cases: [(&[&str], &str); 4] = [
        (&["run", "-p", "Hi", "--dir-steering-file", "short.f32"], "short.f32: steering: 12 bytes"),
        (&["run", "-p", "Hi", "--dir-steering-ffn", "1"], "--dir-steering-file"),
        (&["steer", "sweep", "empty.txt"], "--dir-steering-file"),
        (
            &["steer", "build", "--toward", "empty.txt", "--away", "empty.txt", "-o", "x"],
            "holds no prompt",
        ),
    ];
    for (args, wanted) in cases {
        let output = ironstar(&folder, args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(wanted), "{args:?}: {error}");
    }
    let missing = ironstar(&folder, &["run", "-p", "Hi", "--dir-steering-file", "no.f32"]);
    assert_eq!(missing.status.code(), Some(1), "{}", text(&missing.stderr));
}
