//! `xtask/tidy-exceptions.txt`: lines `RULE PATH: REASON`; `#` begins a comment.

use super::{Finding, tree::Tree};

/// Where exceptions are listed, from the root.
pub const FILE: &str = "xtask/tidy-exceptions.txt";

struct Exception<'a> {
    line: usize,
    rule: &'a str,
    path: &'a str,
    used: bool,
}

/// Drops excepted findings; adds one for each exception that is unused or has no reason.
pub fn apply(tree: &Tree, findings: Vec<Finding>) -> Vec<Finding> {
    let text = tree.text(FILE).unwrap_or_default();
    let mut kept = Vec::new();
    let mut exceptions = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        match parse(index + 1, line) {
            Some(exception) => exceptions.push(exception),
            None => kept.push(about(index + 1, format!("`{line}` is not `RULE PATH: REASON`"))),
        }
    }
    for finding in findings {
        let fits = |e: &&mut Exception<'_>| e.rule == finding.rule && e.path == finding.path;
        match exceptions.iter_mut().find(fits) {
            Some(exception) => exception.used = true,
            None => kept.push(finding),
        }
    }
    for unused in exceptions.iter().filter(|e| !e.used) {
        let message =
            format!("nothing needs `{} {}` any more: remove it", unused.rule, unused.path);
        kept.push(about(unused.line, message));
    }
    kept
}

fn parse(line: usize, text: &str) -> Option<Exception<'_>> {
    let (head, reason) = text.split_once(": ")?;
    let (rule, path) = head.split_once(' ')?;
    let whole = reason.split_whitespace().count() >= 3 && !path.contains(' ');
    whole.then_some(Exception { line, rule, path, used: false })
}

fn about(line: usize, message: String) -> Finding {
    Finding { path: FILE.to_string(), line, rule: "exceptions", message }
}
