//! Rules about the text of one file: lengths, words that must not appear, calls that have a better
//! place.

use super::{Finding, source::Source, tree::Package, tree::Tree};

const FILE_LINES: usize = 1000;
const FUNCTION_LINES: usize = 70;
const KERNEL_LINES: usize = 150;
const COLUMNS: usize = 100;

/// Where a function may be a kernel.
const KERNELS: [&str; 3] = ["/cpu/packed/", "/cpu/reference/", "kernels/"];
/// Suffixes of files that people write line by line. Prose (Markdown) wraps in whatever shows it.
const WRITTEN: [&str; 5] = [".rs", ".k", ".py", ".sh", ".toml"];
/// Fixtures and the very text of the scripts that made them.
const GOLDEN: &str = "tests/golden/";
/// Leftovers, spelt in halves so that this file does not find itself.
const MARKERS: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("HA", "CK"), concat!("XX", "X")];
/// Packages that talk to a terminal.
const TERMINAL: [&str; 3] = ["cli", "xtask", "fuzz"];
/// Packages that may contain unsafe code.
const UNSAFE: [&str; 3] = ["quant", "device", "cluster"];

/// A file that a reader can hold.
pub fn file_lines(tree: &Tree, findings: &mut Vec<Finding>) {
    each_written(tree, findings, "file-lines", |_, text, report| {
        let lines = text.lines().count();
        if lines > FILE_LINES {
            report(
                0,
                format!("{lines} lines, and the limit is {FILE_LINES}: cut it along a boundary"),
            );
        }
    });
}

/// A function that fits a screen.
pub fn function_lines(tree: &Tree, findings: &mut Vec<Finding>) {
    each_source(tree, findings, "function-lines", |source, _, report| {
        let kernel = KERNELS.iter().any(|k| source.path.contains(k));
        let limit = if kernel { KERNEL_LINES } else { FUNCTION_LINES };
        for function in source.functions() {
            let lines = function.last_line - function.first_line + 1;
            if lines > limit {
                report(
                    function.first_line,
                    format!("`{}` has {lines} lines, and the limit is {limit}", function.name),
                );
            }
        }
    });
}

/// Lines that fit two files side by side.
pub fn columns(tree: &Tree, findings: &mut Vec<Finding>) {
    each_written(tree, findings, "columns", |_, text, report| {
        for (index, line) in text.lines().enumerate() {
            let width = line.chars().count();
            if width > COLUMNS && !line.contains("://") {
                report(index + 1, format!("{width} columns, and the limit is {COLUMNS}"));
            }
        }
    });
}

/// Work that is left goes into an issue, not into a comment.
pub fn markers(tree: &Tree, findings: &mut Vec<Finding>) {
    let everywhere = |path: &str| {
        WRITTEN.iter().chain(&[".md", ".txt", ".yml"]).any(|suffix| path.ends_with(suffix))
            && !path.starts_with(GOLDEN)
    };
    for path in tree.files.iter().filter(|p| everywhere(p)) {
        let text = tree.text(path).unwrap_or_default();
        for (index, line) in text.lines().enumerate() {
            let mut words = line.split(|c: char| !c.is_alphanumeric());
            if let Some(word) = words.find(|w| MARKERS.contains(w)) {
                let message = format!("`{word}`: finish it, or file what is left");
                findings.push(Finding {
                    path: path.clone(),
                    line: index + 1,
                    rule: "markers",
                    message,
                });
            }
        }
    }
}

/// Where a call is banned.
#[derive(Clone, Copy)]
enum Where {
    Anywhere,
    Product,
    Libraries,
    OutsideMain,
    Tests,
}

const ASK: &str = "only the binary talks to a terminal: return it, or send an event";
const FLAG: &str = "settings come through the flag table, read in main only";
const STUB: &str = "a stub is not allowed to land";

/// Calls that have a better replacement, or a better place.
const BANS: [(&str, Where, &str); 13] = [
    ("println!", Where::Libraries, ASK),
    ("eprintln!", Where::Libraries, ASK),
    ("print!", Where::Libraries, ASK),
    ("eprint!", Where::Libraries, ASK),
    ("env::var", Where::OutsideMain, FLAG),
    ("env::var_os", Where::OutsideMain, FLAG),
    ("process::exit", Where::OutsideMain, "only main ends the process: return an error"),
    (".unwrap()", Where::Product, "return an error, or `expect` with the invariant as a sentence"),
    (concat!("db", "g!"), Where::Anywhere, "a leftover of debugging"),
    (concat!("to", "do!"), Where::Anywhere, STUB),
    (concat!("unimple", "mented!"), Where::Anywhere, STUB),
    ("static mut", Where::Anywhere, "no global state"),
    ("thread::sleep", Where::Tests, "a test that sleeps is a bug: use a fake clock or a channel"),
];

/// Reports the calls in [`BANS`].
pub fn banned_calls(tree: &Tree, findings: &mut Vec<Finding>) {
    each_source(tree, findings, "banned-calls", |source, package, report| {
        let name = package.map_or("", |p| p.name.as_str());
        let main = source.path.ends_with("/main.rs") || source.path.ends_with("/build.rs");
        let applies = |place: Where, at: usize| match place {
            Where::Anywhere => true,
            Where::Tests => source.in_test(at),
            Where::Product => !source.in_test(at),
            Where::Libraries => !source.in_test(at) && !TERMINAL.contains(&name),
            Where::OutsideMain => !source.in_test(at) && !main && name != "xtask",
        };
        for (call, place, instead) in BANS {
            for at in source.words(call).filter(|&at| applies(place, at)) {
                report(source.line(at), format!("`{call}`: {instead}"));
            }
        }
    });
}

/// Nothing reads what a clone of the project does not have.
pub fn foreign_paths(tree: &Tree, findings: &mut Vec<Finding>) {
    each_source(tree, findings, "foreign-paths", |source, _, report| {
        let foreign = [concat!("/wo", "rk/"), concat!("../sha", "red")];
        for (index, line) in source.text.lines().enumerate() {
            if foreign.iter().any(|f| line.contains(f)) {
                report(index + 1, "a path outside the project: a clone has nothing there".into());
            }
        }
    });
}

/// `expect` states the invariant that makes the failure impossible, as a sentence.
pub fn expect_sentence(tree: &Tree, findings: &mut Vec<Finding>) {
    each_source(tree, findings, "expect-sentence", |source, _, report| {
        for at in source.words(".expect(\"").filter(|&at| !source.in_test(at)) {
            let rest = &source.text[at + ".expect(\"".len()..];
            let sentence = &rest[..rest.find('"').unwrap_or(rest.len())];
            if sentence.split_whitespace().count() < 2 {
                report(
                    source.line(at),
                    format!("`expect(\"{sentence}\")` does not say why it cannot fail"),
                );
            }
        }
    });
}

/// Unsafe code only where STYLE 16 allows it, and never without its reason.
pub fn unsafe_places(tree: &Tree, findings: &mut Vec<Finding>) {
    each_source(tree, findings, "unsafe-places", |source, package, report| {
        let name = package.map_or("", |p| p.name.as_str());
        let code_only = |at: &usize| {
            // The type of a function has no name before its parameters.
            let head = source.code[*at..].split('(').next().unwrap_or("");
            let is_type = head.ends_with("fn");
            !is_type && !source.attributes_before(*at).trim_end().ends_with("#[")
        };
        // A private function or trait method shares the contract of its module; its callers' blocks
        // say why they keep it.
        let own_contract = |at: usize| {
            let is_function = source.code[at..].starts_with("unsafe fn");
            !is_function || source.code[..at].trim_end().ends_with("pub")
        };
        let places: Vec<usize> = source.words("unsafe").filter(code_only).collect();
        let allowed = match name {
            _ if UNSAFE.contains(&name) => usize::MAX,
            "gguf" => 2,
            _ => 0,
        };
        for (index, &at) in places.iter().enumerate() {
            let line = source.line(at);
            if index >= allowed {
                report(
                    line,
                    format!(
                        "`{name}` may have {allowed} unsafe places: move it to quant or device"
                    ),
                );
            }
            if own_contract(at) && !has_safety(source, at) {
                report(
                    line,
                    "no `SAFETY:` above (a function: `# Safety`): which facts, checked where"
                        .into(),
                );
            }
        }
    });
}

/// Whether the comment between the item before and `at`, or the line itself, speaks of safety.
fn has_safety(source: &Source, at: usize) -> bool {
    let speaks = |text: &str| text.contains("SAFETY:") || text.contains("# Safety");
    speaks(source.line_text(source.line(at))) || speaks(source.attributes_before(at))
}

/// A lint that is switched off says why.
pub fn lint_reasons(tree: &Tree, findings: &mut Vec<Finding>) {
    each_source(tree, findings, "lint-reasons", |source, _, report| {
        for attribute in ["#[allow(", "#![allow(", "#[expect(", "#![expect("] {
            for (at, _) in source.code.match_indices(attribute) {
                let end = source.code[at..].find(")]").map_or(source.code.len(), |i| at + i);
                if !source.code[at..end].contains("reason") {
                    report(source.line(at), format!("`{attribute}..)]` without `reason = \"..\"`"));
                }
            }
        }
    });
}

/// A test that does not run says why.
pub fn ignored_tests(tree: &Tree, findings: &mut Vec<Finding>) {
    each_source(tree, findings, "ignored-tests", |source, _, report| {
        for (at, _) in source.code.match_indices("#[ignore]") {
            report(source.line(at), "write `#[ignore = \"why, and how to run it\"]`".into());
        }
    });
}

/// Runs `rule` on every Rust file.
fn each_source(
    tree: &Tree,
    findings: &mut Vec<Finding>,
    name: &'static str,
    rule: impl Fn(&Source, Option<&Package>, &mut dyn FnMut(usize, String)),
) {
    for source in &tree.sources {
        rule(source, tree.package_of(&source.path), &mut |line, message| {
            findings.push(Finding { path: source.path.clone(), line, rule: name, message });
        });
    }
}

/// Runs `rule` on every file that people write line by line.
fn each_written(
    tree: &Tree,
    findings: &mut Vec<Finding>,
    name: &'static str,
    rule: impl Fn(&str, &str, &mut dyn FnMut(usize, String)),
) {
    let written = |path: &&String| {
        WRITTEN.iter().any(|suffix| path.ends_with(suffix)) && !path.starts_with(GOLDEN)
    };
    for path in tree.files.iter().filter(written) {
        let Some(text) = tree.text(path) else {
            continue;
        };
        rule(path, &text, &mut |line, message| {
            findings.push(Finding { path: path.clone(), line, rule: name, message });
        });
    }
}
