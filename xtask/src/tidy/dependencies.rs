//! Rules about Cargo.toml: the arrows between crates, and a reason for every package.

use super::{Finding, tree::Package, tree::Tree};
use std::collections::{BTreeMap, BTreeSet};

/// DESIGN section 3: what a crate may name; what those may name, it may too.
const ARROWS: [(&str, &[&str]); 11] = [
    ("quant", &[]),
    ("text", &[]),
    ("gguf", &["quant"]),
    ("wire", &["text"]),
    ("device", &["quant"]),
    ("model", &["device", "gguf"]),
    ("cluster", &["device"]),
    ("engine", &["model", "cluster", "text"]),
    ("server", &["engine", "wire", "text"]),
    ("agent", &["engine", "wire", "text"]),
    ("cli", &["server", "agent", "engine", "wire", "text", "cluster", "model", "gguf"]),
];

/// Developer tools: they may name any crate, and no crate may name them.
const TOOLS: [&str; 3] = ["xtask", "fuzz", "fuzz-libfuzzer"];

const LIST: &str = "docs/dependencies.md";

/// Crates depend only along the arrows of DESIGN section 3.
pub fn arrows(tree: &Tree, findings: &mut Vec<Finding>) {
    for package in tree.packages.iter().filter(|p| !TOOLS.contains(&p.name.as_str())) {
        let Some(allowed) = allowed(&package.name) else {
            let message = format!(
                "`{}` has no place among the crates: draw its arrows in ARROWS of xtask",
                package.name
            );
            findings.push(finding(package, "arrows", message));
            continue;
        };
        for name in own(&package.dependencies) {
            if !allowed.contains(name) {
                let message = format!("`{}` must not know `{name}`", package.name);
                findings.push(finding(package, "arrows", message));
            }
        }
    }
}

/// Dev-dependencies may go further than the arrows, but form no cycle with anything.
pub fn cycles(tree: &Tree, findings: &mut Vec<Finding>) {
    let graph: BTreeMap<&str, BTreeSet<&str>> = tree
        .packages
        .iter()
        .map(|p| (p.name.as_str(), own(&p.dependencies).chain(own(&p.dev_dependencies)).collect()))
        .collect();
    for package in &tree.packages {
        if reachable(&graph, &package.name).contains(package.name.as_str()) {
            let message = format!("`{}` depends on itself, dev-dependencies counted", package.name);
            findings.push(finding(package, "cycles", message));
        }
    }
}

/// Every package from outside has a line in docs/dependencies.md, and every line a package.
pub fn explained(tree: &Tree, findings: &mut Vec<Finding>) {
    let text = tree.text(LIST).unwrap_or_default();
    let mut listed = BTreeMap::new();
    let mut report = |path: &str, line, message| {
        findings.push(Finding { path: path.to_string(), line, rule: "explained", message });
    };
    for (index, line) in text.lines().enumerate() {
        let Some(entry) = line.strip_prefix("- ") else {
            continue;
        };
        match entry.split_once(": ") {
            Some((name, reason)) if reason.split(';').count() >= 3 => {
                if listed.insert(name, index + 1).is_some() {
                    report(LIST, index + 1, format!("`{name}` is listed twice"));
                }
            }
            _ => report(
                LIST,
                index + 1,
                "wanted `- name: what for; why not ourselves; who keeps it`".into(),
            ),
        }
    }
    let mut used = BTreeSet::new();
    for package in &tree.packages {
        for name in package.dependencies.iter().chain(&package.dev_dependencies) {
            if is_own(name) {
                continue;
            }
            used.insert(name.as_str());
            if !listed.contains_key(name.as_str()) {
                let path = format!("{}/Cargo.toml", package.folder);
                report(&path, 0, format!("`{name}` has no line in {LIST} that says why"));
            }
        }
    }
    for (name, line) in listed.iter().filter(|(name, _)| !used.contains(*name)) {
        report(LIST, *line, format!("no Cargo.toml names `{name}` any more: remove the line"));
    }
}

fn allowed(name: &str) -> Option<BTreeSet<&'static str>> {
    let graph: BTreeMap<&str, BTreeSet<&str>> =
        ARROWS.iter().map(|(from, to)| (*from, to.iter().copied().collect())).collect();
    let (known, _) = graph.get_key_value(name)?;
    Some(reachable(&graph, known))
}

/// Everything that can be reached from `start` in one step or more.
fn reachable<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>, start: &str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&str> = graph.get(start).into_iter().flatten().copied().collect();
    while let Some(name) = open.pop() {
        if seen.insert(name) {
            open.extend(graph.get(name).into_iter().flatten().copied());
        }
    }
    seen
}

fn is_own(name: &str) -> bool {
    name.starts_with("ironstar-") || name == "xtask"
}

fn own(names: &BTreeSet<String>) -> impl Iterator<Item = &str> {
    names.iter().filter(|n| is_own(n)).map(|n| n.trim_start_matches("ironstar-"))
}

fn finding(package: &Package, rule: &'static str, message: String) -> Finding {
    Finding { path: format!("{}/Cargo.toml", package.folder), line: 0, rule, message }
}
