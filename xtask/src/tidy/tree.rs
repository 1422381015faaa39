//! What lies in the project: its files, its packages as cargo sees them, and which Rust file
//! belongs where.

use super::source::{Source, word_after};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders with made or foreign content: tidy's own bad example, build output, fuzz inputs.
const SKIPPED: [&str; 5] =
    ["target/", ".git/", "fuzz/corpus/", "fuzz/artifacts/", "xtask/tests/bad_tree/"];

/// A package of the workspace (or of the libFuzzer folder beside it).
pub struct Package {
    /// Name without `ironstar-`.
    pub name: String,
    /// Folder from the root.
    pub folder: String,
    /// Names of what `dependencies` and `build-dependencies` list.
    pub dependencies: BTreeSet<String>,
    /// Names of what `dev-dependencies` lists.
    pub dev_dependencies: BTreeSet<String>,
    /// Root files with the kind of each target.
    roots: Vec<(String, bool)>,
}

/// The project as rules see it.
pub struct Tree {
    /// Absolute path.
    pub root: PathBuf,
    /// All files, from the root, with `/`, sorted.
    pub files: Vec<String>,
    /// Packages by name.
    pub packages: Vec<Package>,
    /// All Rust files.
    pub sources: Vec<Source>,
    /// Rust files that some target of some package includes.
    pub reached: BTreeSet<String>,
}

impl Tree {
    /// Reads everything that the rules need.
    pub fn read(root: &Path) -> Result<Self> {
        let root =
            root.canonicalize().with_context(|| format!("{} is no folder", root.display()))?;
        let files = list_files(&root)?;
        let mut packages = packages(&root, "Cargo.toml")?;
        if files.iter().any(|f| f == "fuzz/libfuzzer/Cargo.toml") {
            packages.extend(self::packages(&root, "fuzz/libfuzzer/Cargo.toml")?);
        }
        let mut tree =
            Tree { root, files, packages, sources: Vec::new(), reached: BTreeSet::new() };
        tree.read_sources()?;
        Ok(tree)
    }

    /// The package that a file belongs to: the one with the longest folder above it.
    pub fn package_of(&self, path: &str) -> Option<&Package> {
        let above = |p: &&Package| path.starts_with(&format!("{}/", p.folder));
        self.packages.iter().filter(above).max_by_key(|p| p.folder.len())
    }

    /// Text of a file that is not Rust; `None` for binary files and links that lead nowhere.
    pub fn text(&self, path: &str) -> Option<String> {
        String::from_utf8(std::fs::read(self.root.join(path)).ok()?).ok()
    }

    fn read_sources(&mut self) -> Result<()> {
        let mut texts = BTreeMap::new();
        for path in self.files.iter().filter(|f| f.ends_with(".rs")) {
            let text = std::fs::read_to_string(self.root.join(path))
                .with_context(|| format!("{path} could not be read"))?;
            texts.insert(path.clone(), Source::new(path, text, false));
        }
        let mut product = BTreeSet::new();
        for package in &self.packages {
            for (file, test) in &package.roots {
                follow(&texts, file, *test, true, &mut product, &mut self.reached);
            }
        }
        self.sources = texts.into_values().collect();
        for source in &mut self.sources {
            source.test = !product.contains(&source.path);
        }
        Ok(())
    }
}

/// Walks `mod` declarations and `include!` from a target's root file.
fn follow(
    texts: &BTreeMap<String, Source>,
    path: &str,
    test: bool,
    is_root: bool,
    product: &mut BTreeSet<String>,
    reached: &mut BTreeSet<String>,
) {
    let Some(source) = texts.get(path) else {
        return;
    };
    let first_visit = reached.insert(path.to_string());
    let newly_product = !test && product.insert(path.to_string());
    if !first_visit && !newly_product {
        return;
    }
    for (file, declared_as_test) in declared(source, is_root) {
        for candidate in file {
            follow(texts, &candidate, test || declared_as_test, false, product, reached);
        }
    }
}

/// Files that a source names: where each may lie, and whether only tests see it.
fn declared(source: &Source, is_root: bool) -> Vec<(Vec<String>, bool)> {
    let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let stem = source.path.rsplit('/').next().unwrap_or("").trim_end_matches(".rs");
    let own = if is_root || stem == "mod" { folder.into() } else { format!("{folder}/{stem}") };
    let mut out = Vec::new();
    for at in source.words("mod") {
        let Some(name) = word_after(&source.code, at + 3) else {
            continue;
        };
        let after = source.code[at + 3..].trim_start()[name.len()..].trim_start();
        if !after.starts_with(';') {
            continue;
        }
        let attributes = source.attributes_before(at);
        let test = attributes.contains("cfg(test)") || source.in_test(at);
        let inner = enclosing_modules(source, at);
        let files = match quoted_after(attributes, "#[path") {
            Some(file) => vec![join(folder, &file)],
            None => vec![
                join(&own, &format!("{inner}{name}.rs")),
                join(&own, &format!("{inner}{name}/mod.rs")),
            ],
        };
        out.push((files, test));
    }
    for (at, _) in source.code.match_indices("include!(") {
        if let Some(file) = quoted_after(&source.text[at..], "include!(") {
            out.push((vec![join(folder, &file)], source.in_test(at)));
        }
    }
    out
}

/// `a/b/` where offset `at` lies in `mod a { mod b { .. } }`.
fn enclosing_modules(source: &Source, at: usize) -> String {
    let encloses = |start: &usize| {
        let open = source.code[*start..].find(['{', ';']).map(|i| start + i);
        let block = open.filter(|&o| source.code.as_bytes()[o] == b'{' && o < at);
        block.and_then(|o| source.matching_brace(o)).is_some_and(|end| end > at)
    };
    let name = |start: usize| word_after(&source.code, start + 3).map(|name| format!("{name}/"));
    source.words("mod").filter(encloses).filter_map(name).collect()
}

/// The first string literal after `word`.
fn quoted_after(text: &str, word: &str) -> Option<String> {
    let rest = &text[text.find(word)? + word.len()..];
    let open = rest.find('"')?;
    let close = rest[open + 1..].find('"')?;
    Some(rest[open + 1..open + 1 + close].to_string())
}

/// `folder/file` with `..` resolved.
fn join(folder: &str, file: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
    for part in file.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            other => parts.push(other),
        }
    }
    parts.join("/")
}

/// Files that git tracks or would track; a plain walk where there is no git.
fn list_files(root: &Path) -> Result<Vec<String>> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()
        .filter(|output| output.status.success() && !output.stdout.is_empty());
    let mut files: Vec<String> = match listed {
        Some(output) => String::from_utf8(output.stdout)
            .context("a file name is not UTF-8")?
            .split_terminator('\0')
            .filter(|f| root.join(f).exists())
            .map(str::to_string)
            .collect(),
        None => walk(root, "")?,
    };
    files.retain(|file| !SKIPPED.iter().any(|skip| file.starts_with(skip)));
    files.sort();
    files.dedup();
    Ok(files)
}

fn walk(root: &Path, folder: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a file name is not UTF-8")?;
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if !entry.file_type()?.is_dir() {
            files.push(path);
        } else if !SKIPPED.contains(&format!("{path}/").as_str()) {
            files.extend(walk(root, &path)?);
        }
    }
    Ok(files)
}

/// Asks cargo for the packages of one workspace.
fn packages(root: &Path, manifest: &str) -> Result<Vec<Package>> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline", "--manifest-path"])
        .arg(root.join(manifest))
        .output()
        .context("cargo could not be started")?;
    if !output.status.success() {
        bail!("cargo cannot read {manifest}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let listed = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    listed.iter().map(|package| read_package(root, package)).collect()
}

fn read_package(root: &Path, package: &Value) -> Result<Package> {
    let relative = |path: &Value| -> Result<String> {
        let path = Path::new(path.as_str().context("a path in cargo metadata")?);
        let inside = path.strip_prefix(root).with_context(|| format!("{}", path.display()))?;
        Ok(inside.to_string_lossy().replace('\\', "/"))
    };
    let manifest = relative(&package["manifest_path"])?;
    let folder = manifest.trim_end_matches("Cargo.toml").trim_end_matches('/').to_string();
    let (mut dependencies, mut dev_dependencies) = (BTreeSet::new(), BTreeSet::new());
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let name = dependency["name"].as_str().unwrap_or("").to_string();
        let dev = dependency["kind"] == "dev";
        if dev {
            dev_dependencies.insert(name)
        } else {
            dependencies.insert(name)
        };
    }
    let mut roots = Vec::new();
    for target in package["targets"].as_array().into_iter().flatten() {
        let kinds = target["kind"].as_array().into_iter().flatten();
        let test = kinds
            .filter_map(Value::as_str)
            .any(|kind| ["test", "bench", "example", "custom-build"].contains(&kind));
        roots.push((relative(&target["src_path"])?, test));
    }
    let name = package["name"].as_str().unwrap_or("").trim_start_matches("ironstar-").to_string();
    Ok(Package { name, folder, dependencies, dev_dependencies, roots })
}
