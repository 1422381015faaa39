//! Rules about whole files: what a crate page says, what nothing includes, what is too large.

use super::{Finding, source::Source, tree::Tree};

const LARGE_BYTES: u64 = 5 * 1024 * 1024;
const LIB_LINES: usize = 150;

/// `lib.rs` is doc with an example, modules, and a short public surface.
pub fn crate_docs(tree: &Tree, findings: &mut Vec<Finding>) {
    for source in tree.sources.iter().filter(|s| s.path.ends_with("/src/lib.rs")) {
        let mut report = |line, message: String| {
            findings.push(Finding { path: source.path.clone(), line, rule: "crate-docs", message });
        };
        let doc: String = source.text.lines().take_while(|l| l.starts_with("//!")).collect();
        if doc.is_empty() {
            report(
                1,
                "a crate begins with `//!`: what it is, what it must not know, where to start"
                    .into(),
            );
        } else if !doc.contains("```") {
            report(1, "the crate page wants an example of a few lines that runs as a test".into());
        }
        let lines = source.text.lines().count();
        if lines > LIB_LINES {
            report(
                0,
                format!(
                    "{lines} lines; a crate root has at most {LIB_LINES}: move code into modules"
                ),
            );
        }
    }
}

/// Every Rust file is part of some target.
pub fn unreachable_files(tree: &Tree, findings: &mut Vec<Finding>) {
    for source in tree.sources.iter().filter(|s| !tree.reached.contains(&s.path)) {
        findings.push(Finding {
            path: source.path.clone(),
            line: 0,
            rule: "unreachable-files",
            message: "no crate includes this file: declare it with `mod` or remove it".into(),
        });
    }
}

/// Nothing large enters the repository unnoticed.
pub fn large_files(tree: &Tree, findings: &mut Vec<Finding>) {
    for path in &tree.files {
        let bytes = tree.root.join(path).symlink_metadata().map_or(0, |m| m.len());
        if bytes > LARGE_BYTES {
            findings.push(Finding {
                path: path.clone(),
                line: 0,
                rule: "large-files",
                message: format!(
                    "{bytes} bytes, and the limit is {LARGE_BYTES}: git keeps it for ever"
                ),
            });
        }
    }
}

/// Every entry `module::INFO` of the table FORMATS is tested: in its own file, or by a test that
/// walks the table.
pub fn format_tests(tree: &Tree, findings: &mut Vec<Finding>) {
    let own = |source: &&Source| source.path.starts_with("crates/quant/");
    let tests = |source: &&Source| source.text.contains("#[test]");
    let walks = |source: &Source| source.words("FORMATS").any(|at| source.in_test(at));
    if tree.sources.iter().filter(own).filter(tests).any(walks) {
        return;
    }
    let table = |source: &&Source| source.code.contains("static FORMATS");
    let Some(source) = tree.sources.iter().filter(own).find(table) else {
        return;
    };
    let start = source.code.find("static FORMATS").expect("the filter saw it");
    let end = source.code[start..].find("];").map_or(source.code.len(), |i| start + i);
    for (at, _) in source.code[start..end].match_indices("::INFO") {
        let before = &source.code[start..start + at];
        let module = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
        let file = format!("crates/quant/src/{module}.rs");
        let folder = format!("crates/quant/src/{module}/");
        let of_module = |s: &&Source| s.path == file || s.path.starts_with(&folder);
        if !tree.sources.iter().filter(of_module).any(|s| tests(&s)) {
            findings.push(Finding {
                path: source.path.clone(),
                line: source.line(start + at),
                rule: "format-tests",
                message: format!("format `{module}` has no test, and no test walks FORMATS"),
            });
        }
    }
}
