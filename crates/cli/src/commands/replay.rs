//! `ironstar replay`: a request from a trace, asked again.

use super::serve::{Setup, engine, failure};
use crate::failure::Failure;
use crate::flags::Replay;
use crate::print;
use ironstar_server::{Options, Server, Shutdown};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

/// Runs the command.
pub fn run(flags: &Replay) -> Result<(), Failure> {
    let old = trace(&flags.file)?;
    let body = old["body"].as_str().ok_or_else(|| wrong(&flags.file, "no `body`"))?;
    let path = match old["protocol"].as_str() {
        Some("Chat") => "/v1/chat/completions",
        Some("Completions") => "/v1/completions",
        Some("Responses") => "/v1/responses",
        Some("Messages") => "/v1/messages",
        _ => return Err(wrong(&flags.file, "no `protocol` that this program knows")),
    };
    let mut folder = flags.file.clone().into_os_string();
    folder.push(".replay");
    let folder = PathBuf::from(folder);
    let options = Options {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        trace: Some(folder.clone()),
        seed: old["seed"].as_u64(),
        ..Options::default()
    };
    let server = Server::bind(options).map_err(failure)?;
    let (address, shutdown) = (server.address(), Shutdown::default());
    let setup = Setup {
        model: &flags.model,
        thinking: flags.thinking,
        name: None,
        aliases: &[],
        parallel: 1,
    };
    let (model, client, join) = engine(&setup)?;
    let stop = shutdown.clone();
    let serving = std::thread::spawn(move || server.run(model, client, &stop));
    let told = ask(address, path, body);
    shutdown.stop();
    let served = serving.join().map_err(|_| Failure::ours("the server panicked"))?;
    served.map_err(failure)?;
    join()?;
    let told = told.map_err(|error| Failure::environment(format!("asking the server: {error}")))?;
    let Some(id) = told.lines().find_map(|line| line.strip_prefix("x-request-id: ")) else {
        return Err(Failure::ours("the server's answer has no request id"));
    };
    let path = folder.join(format!("{}.json", id.trim()));
    if !path.exists() {
        // It was refused: the answer says why.
        return print(told.as_bytes());
    }
    report(&old, &trace(&path)?, &path)
}

fn trace(path: &Path) -> Result<Value, Failure> {
    serde_json::from_str(&super::read_text(path)?)
        .map_err(|error| wrong(path, &format!("no JSON ({error})")))
}

fn wrong(path: &Path, found: &str) -> Failure {
    Failure::caller(format!(
        "{}: {found}; wanted a file that `ironstar serve --trace FOLDER` wrote",
        path.display()
    ))
}

/// The whole of what the server sends, head and body.
fn ask(address: SocketAddr, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut told = Vec::new();
    stream.read_to_end(&mut told)?;
    Ok(String::from_utf8_lossy(&told).into_owned())
}

fn report(old: &Value, new: &Value, path: &Path) -> Result<(), Failure> {
    let tokens = |trace: &Value, list: &str| -> Vec<Value> {
        let entries = trace[list].as_array().map(Vec::as_slice).unwrap_or_default();
        entries.iter().map(|entry| entry["tokens"].clone()).collect()
    };
    let mut out = String::new();
    for answer in new["answers"].as_array().into_iter().flatten() {
        out.push_str(answer["text"].as_str().unwrap_or_default());
        out.push('\n');
    }
    print(out.as_bytes())?;
    for (what, list) in [("prompt", "prompts"), ("answer", "answers")] {
        let same = tokens(old, list) == tokens(new, list);
        let word = if same { "the same tokens" } else { "OTHER TOKENS" };
        let _ = writeln!(std::io::stderr(), "{what}: {word}");
    }
    let _ = writeln!(std::io::stderr(), "the new trace: {}", path.display());
    Ok(())
}
