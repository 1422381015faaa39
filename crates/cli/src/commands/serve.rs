//! `ironstar serve`: from flags to a running server.

use crate::failure::Failure;
use crate::flags::{self, Serve, Speculate, ThinkingName};
use crate::{loading, ranks};
use ironstar_engine::sampler::Settings;
use ironstar_engine::scheduler::{Client, Limits, Scheduler, Source, SystemClock, spawn};
use ironstar_engine::{Engine, Speculation};
use ironstar_server::scripted::Playbook;
use ironstar_server::{Log, Model, Options, Server, Shutdown};
use ironstar_text::chat::{Effort, Release, Thinking};
use ironstar_wire::Profile;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The format of current V4 weights.
const RELEASE: Release = Release::V0731;

/// Ends the engine's thread and waits until it has kept what it can.
pub(super) type Join = Box<dyn FnOnce() -> Result<(), Failure>>;

/// Runs the command.
pub fn run(flags: &Serve) -> Result<(), Failure> {
    let options = options(flags)?;
    // The address first: a model takes long to load, and for nothing if the port is taken.
    let server = Server::bind(options).map_err(failure)?;
    let address = server.address();
    let (model, client, join) = match &flags.scripted {
        Some(path) => scripted(path)?,
        None => engine(&Setup::of(flags))?,
    };
    let shutdown = Shutdown::default();
    Server::stop_on_signals(&shutdown).map_err(failure)?;
    note(&format!(
        "serving {} with a context of {} tokens at http://{address}",
        model.name, model.context
    ));
    server.run(model, client, &shutdown).map_err(failure)?;
    join()?;
    ranks::tell_gates(&flags.model.ranks);
    Ok(())
}

fn options(flags: &Serve) -> Result<Options, Failure> {
    let network = &flags.network;
    let keys = match &network.api_key_file {
        None => Vec::new(),
        Some(path) => keys(path)?,
    };
    let mut options = Options {
        address: SocketAddr::from((network.host, network.port)),
        keys,
        no_key: network.no_key,
        cors: network.cors.clone(),
        requests_max: flags.load.queue,
        keepalive: Duration::from_secs(flags.load.keepalive),
        grace: Duration::from_secs(flags.load.grace),
        log: log(flags.quiet),
        trace: flags.trace.clone(),
        store_dir: flags.model.state_dir.as_ref().map(|folder| folder.join("responses")),
        threads: loading::cores().clamp(1, 4),
        ..Options::default()
    };
    options.limits.body_bytes = flags.load.body_mib << 20;
    Ok(options)
}

/// The lines of a file that are not empty and no comment.
fn keys(path: &Path) -> Result<Vec<String>, Failure> {
    let text = super::read_text(path)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys: Vec<String> = lines.filter(|l| !l.starts_with('#')).map(str::to_owned).collect();
    if keys.is_empty() {
        return Err(Failure::caller(format!(
            "{} has no key; write one a line, each 8 characters or more",
            path.display()
        )));
    }
    Ok(keys)
}

fn log(quiet: bool) -> Log {
    if quiet { Arc::new(|_| {}) } else { Arc::new(note) }
}

/// A line on standard error.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// What an engine that is served must know of the command line.
pub(super) struct Setup<'a> {
    pub model: &'a flags::Model,
    pub thinking: ThinkingName,
    pub name: Option<&'a str>,
    pub aliases: &'a [String],
    pub parallel: usize,
}

impl<'a> Setup<'a> {
    fn of(flags: &'a Serve) -> Self {
        Setup {
            model: &flags.model,
            thinking: flags.thinking,
            name: flags.name.as_deref(),
            aliases: &flags.alias,
            parallel: flags.load.parallel,
        }
    }
}

/// Loads a model and starts its thread.
pub(super) fn engine(setup: &Setup<'_>) -> Result<(Model, Client, Join), Failure> {
    let (engine, opened) = loading::engine(setup.model)?;
    let most = engine.model().shape().context;
    let context = setup.model.ctx;
    if context > most {
        return Err(Failure::caller(format!(
            "--ctx {context}: this model was made for at most {most} tokens"
        )));
    }
    let metadata = opened.gguf.metadata();
    let temperature = metadata.opt_f32("general.sampling.temp");
    let temperature = temperature.map_err(|error| loading::from_gguf(&error))?;
    let file_name = metadata.opt_str("general.name").map_err(|error| loading::from_gguf(&error))?;
    let name = setup.name.or(file_name).unwrap_or(&opened.name);
    let tokenizer = loading::engine_tokenizer(&engine, &opened)?;
    let temperature = temperature.map_or(1.0, f64::from);
    let model = Model {
        name: name.split_whitespace().collect::<Vec<_>>().join("-"),
        aliases: setup.aliases.to_vec(),
        vocabulary: engine.model().shape().vocabulary,
        context,
        profile: Profile {
            release: RELEASE,
            thinking: thinking(setup.thinking),
            dsml_token: tokenizer.special("｜DSML｜"),
            think_tokens: true,
        },
        settings: Settings { temperature, ..Settings::default() },
        speculation: match setup.model.speculate {
            Speculate::Auto => Speculation::Auto,
            Speculate::Off => Speculation::Off,
            Speculate::Mtp => Speculation::Mtp,
            Speculate::Dspark => Speculation::Dspark,
            Speculate::Lookup => Speculation::Lookup,
        },
        tokenizer,
    };
    let (client, join) = start(engine, setup.parallel, context)?;
    Ok((model, client, join))
}

fn start(engine: Engine, parallel: usize, context: usize) -> Result<(Client, Join), Failure> {
    // One more than the sessions: a title may pass a long answer.
    let sessions = u64::try_from(parallel).unwrap_or(u64::MAX).saturating_add(1);
    let limits = Limits {
        sessions: parallel,
        queue: usize::MAX,
        session_bytes: engine.session_bytes(context).saturating_mul(sessions),
        context,
        ..Limits::default()
    };
    let scheduler = Scheduler::new(engine, Box::new(SystemClock::default()), limits);
    let (client, thread) = spawn(scheduler)
        .map_err(|error| Failure::environment(format!("starting the engine: {error}")))?;
    let join = move || match thread.join() {
        Ok(mut engine) => {
            engine.flush_store();
            engine.store().status().problems.iter().for_each(|problem| note(&problem.text));
            Ok(())
        }
        Err(_panic) => Err(Failure::ours("the engine's thread panicked")),
    };
    Ok((client, Box::new(join)))
}

fn scripted(path: &Path) -> Result<(Model, Client, Join), Failure> {
    let text = super::read_text(path)?;
    let play = Playbook::parse(&text)
        .map_err(|error| Failure::caller(format!("{}: {error}", path.display())))?;
    let opened = loading::open(None, None)?;
    let tokenizer = Arc::new(loading::tokenizer(&opened.gguf)?);
    let (model, client, thread) = play
        .start(tokenizer)
        .map_err(|error| Failure::environment(format!("starting the script: {error}")))?;
    let join = move || match thread.join() {
        Ok(_script) => Ok(()),
        Err(_panic) => Err(Failure::ours("the script's thread panicked")),
    };
    Ok((model, client, Box::new(join)))
}

fn thinking(name: ThinkingName) -> Thinking {
    match name {
        ThinkingName::Off => Thinking::Off,
        ThinkingName::Low => Thinking::On(Effort::Low),
        ThinkingName::High => Thinking::On(Effort::High),
        ThinkingName::Max => Thinking::On(Effort::Max),
    }
}

/// The blame of a server that could not start.
pub(super) fn failure(error: ironstar_server::Error) -> Failure {
    if error.is_input() {
        Failure::caller(error.to_string())
    } else {
        Failure::environment(error.to_string())
    }
}
