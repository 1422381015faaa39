//! Building the peer, and our own binary.

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The driver, copied out of the project since it links a library that nothing here may need.
const MANIFEST: &str = include_str!("../../peer/Cargo.toml.in");
const DRIVER: &str = include_str!("../../peer/main.rs.in");
/// What building the library needs beside a C++ compiler.
const PACKAGES: [&str; 2] = ["cmake", "libclang"];
/// Every instruction set of this processor: the crate passes it on to the library's build.
const RUSTFLAGS: &str = "-C target-cpu=native";

/// The peer's driver.
pub struct Peer {
    /// The program.
    pub binary: PathBuf,
    /// Name and version of the library.
    pub version: String,
    /// Flags and instruction sets, as the library itself reports them.
    pub features: String,
}

/// Builds the peer under `home`, once: about ten minutes of two cores.
pub fn peer(root: &Path, home: &Path) -> Result<Peer> {
    let driver = home.join("driver");
    std::fs::create_dir_all(driver.join("src"))?;
    write_if_new(&driver.join("Cargo.toml"), MANIFEST)?;
    write_if_new(&driver.join("src").join("main.rs"), DRIVER)?;
    let tools = tools(home)?;
    let mut path = OsString::from(tools.join("bin"));
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    eprintln!("peer-bench: building the peer in {}", home.display());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let status = Command::new("cargo")
        .args(["build", "--release", "--manifest-path"])
        .arg(driver.join("Cargo.toml"))
        .current_dir(root)
        .env("CARGO_TARGET_DIR", home.join("target"))
        .env("RUSTFLAGS", RUSTFLAGS)
        .env("PATH", path)
        .env("LIBCLANG_PATH", libclang(&tools)?)
        .env("BINDGEN_EXTRA_CLANG_ARGS", format!("-I{}", compiler_headers()?.display()))
        .env("CMAKE_BUILD_PARALLEL_LEVEL", cores.to_string())
        .status()
        .context("cargo could not be started")?;
    if !status.success() {
        bail!("the peer's build ended with {status}");
    }
    let version = MANIFEST
        .lines()
        .find_map(|line| line.strip_prefix("llama-cpp-sys-2 = { version = \"="))
        .and_then(|rest| rest.split('"').next())
        .context("the manifest names the version")?;
    let binary = home.join("target").join("release").join("peer");
    let features = super::output(Command::new(&binary).arg("--features"))?;
    Ok(Peer {
        binary,
        version: format!("llama-cpp-sys-2 {version}"),
        features: format!("RUSTFLAGS={RUSTFLAGS}; {}", String::from_utf8(features)?.trim()),
    })
}

/// Builds our binary as users do, and gives its path.
pub fn ours(root: &Path, target: &Path) -> Result<PathBuf> {
    eprintln!("peer-bench: building ironstar");
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--package", "ironstar-cli"]).current_dir(root);
    crate::ci::finish(&mut build)?;
    Ok(target.join("release").join("ironstar"))
}

/// Rewriting an equal file would make cargo build again.
fn write_if_new(path: &Path, text: &str) -> Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// A Python environment with [`PACKAGES`].
fn tools(home: &Path) -> Result<PathBuf> {
    let tools = home.join("tools");
    if !tools.join("bin").join("cmake").exists() {
        let mut make = Command::new("python3");
        super::output(make.args(["-m", "venv"]).arg(&tools))
            .context("python3 with its venv module is needed")?;
        let mut install = Command::new(tools.join("bin").join("python"));
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        super::output(install.args(PACKAGES))?;
    }
    Ok(tools.canonicalize()?)
}

/// The folder of libclang.so inside the environment.
fn libclang(tools: &Path) -> Result<PathBuf> {
    let lib = tools.join("lib");
    let mut found = std::fs::read_dir(&lib)?
        .filter_map(|python| Some(python.ok()?.path().join("site-packages/clang/native")))
        .filter(|folder| folder.join("libclang.so").exists());
    found.next().with_context(|| format!("no libclang.so under {}", lib.display()))
}

/// Where the system's compiler has stddef.h and its like, which the packaged libclang lacks.
fn compiler_headers() -> Result<PathBuf> {
    let mut ask = Command::new("cc");
    let path = String::from_utf8(super::output(ask.arg("-print-file-name=include"))?)?;
    Ok(PathBuf::from(path.trim()))
}
