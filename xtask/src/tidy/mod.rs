//! The rules of the house that no compiler checks: STYLE as a program.
//!
//! A rule is a function from the [`Tree`] to findings. A finding that must stay is listed in
//! `xtask/tidy-exceptions.txt` with its reason; an exception that nothing needs is a finding
//! itself.

mod dependencies;
mod exceptions;
mod layout;
mod source;
mod text;
mod tree;

#[cfg(test)]
mod tests;

use anyhow::{Result, bail};
use std::fmt;
use std::path::Path;
use tree::Tree;

/// One place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// From the root.
    pub path: String,
    /// From 1; 0 speaks of the whole file.
    pub line: usize,
    /// Name of the rule, as in the exceptions file.
    pub rule: &'static str,
    /// What was found, what was wanted.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { path, line, rule, message } = self;
        match line {
            0 => write!(f, "{path}: {rule}: {message}"),
            _ => write!(f, "{path}:{line}: {rule}: {message}"),
        }
    }
}

/// A rule looks at the tree and reports.
type Rule = fn(&Tree, &mut Vec<Finding>);

/// Every rule. The order is that of the modules; findings are sorted by file.
const RULES: [Rule; 17] = [
    text::file_lines,
    text::function_lines,
    text::columns,
    text::markers,
    text::banned_calls,
    text::foreign_paths,
    text::expect_sentence,
    text::unsafe_places,
    text::lint_reasons,
    text::ignored_tests,
    layout::crate_docs,
    layout::unreachable_files,
    layout::large_files,
    layout::format_tests,
    dependencies::arrows,
    dependencies::cycles,
    dependencies::explained,
];

/// Checks the tree under `root` and prints what is wrong.
pub fn run(root: &Path) -> Result<()> {
    let (findings, files) = check(root)?;
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => println!("tidy: {files} files, {} rules, nothing found", RULES.len()),
        count => bail!(
            "tidy: {count} findings; fix them, or list one with its reason in {}",
            exceptions::FILE
        ),
    }
    Ok(())
}

/// All findings, sorted, less the excepted ones; and the number of files.
fn check(root: &Path) -> Result<(Vec<Finding>, usize)> {
    let tree = Tree::read(root)?;
    let mut findings = Vec::new();
    for rule in RULES {
        rule(&tree, &mut findings);
    }
    let mut findings = exceptions::apply(&tree, findings);
    findings.sort();
    findings.dedup();
    Ok((findings, tree.files.len()))
}
