//! From flags to an opened model: the file that was named, or the one inside the binary.

use crate::debug::StepPrinter;
use crate::failure::Failure;
use crate::flags::{self, BackendName, DebugKey, IsaName, Numerics};
use crate::progress::Progress;
use crate::ranks::{self, Group};
use card::CardPlan;
use ironstar_device::{Compiling, Isa, Shortcuts, cuda_devices};
use ironstar_engine::{Engine, EngineOptions, drafter_beside};
use ironstar_gguf::Gguf;
use ironstar_model::{Directions, RowStorage, SteeringScales};
use ironstar_text::Tokenizer;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

mod card;

/// The small model that every binary carries, and its next-token block.
#[cfg(feature = "bundled-model")]
pub static BUNDLED: Option<(&[u8], &[u8])> = Some((
    include_bytes!("../../../models/nano.gguf"),
    include_bytes!("../../../models/nano-mtp.gguf"),
));
/// This binary was built without the small model.
#[cfg(not(feature = "bundled-model"))]
pub static BUNDLED: Option<(&[u8], &[u8])> = None;

/// A model file with the name that is shown for it.
pub struct Opened {
    /// The model.
    pub gguf: Gguf,
    /// Its next-token block, where there is one.
    pub drafter: Option<Gguf>,
    /// What to call it.
    pub name: String,
}

/// Opens a model, by default the bundled one.
pub fn open(model: Option<&Path>, mtp_model: Option<&Path>) -> Result<Opened, Failure> {
    let Some(path) = model else {
        return bundled(mtp_model);
    };
    let drafter = match mtp_model {
        Some(path) => Some(open_file(path)?),
        None => match drafter_beside(path) {
            Some(path) if path.exists() => Some(open_file(&path)?),
            _ => None,
        },
    };
    Ok(Opened { gguf: open_file(path)?, drafter, name: path.display().to_string() })
}

/// An engine as the flags want it, with the model's name.
pub fn engine(flags: &flags::Model) -> Result<(Engine, Opened), Failure> {
    engine_of(flags, None)
}

/// The same of a model that is no file.
pub fn engine_of(flags: &flags::Model, made: Option<Opened>) -> Result<(Engine, Opened), Failure> {
    let group = Group::of_flags(&flags.ranks)?;
    let asks_of_gates = flags.ranks.profile_gates.is_some() || flags.ranks.fake_gates;
    if asks_of_gates && (group.ranks == 1 || group.layers.is_some()) {
        let text = "--profile-gates and --fake-gates: there are gates between ranks only; add \
                    --ranks N";
        return Err(Failure::caller(text));
    }
    let named = || open(flags.model.as_deref(), flags.mtp_model.as_deref());
    let opened = made.map_or_else(named, |made| alone(made, &group))?;
    let options = EngineOptions {
        backend: flags.backend.choice(),
        kernel_cache: kernel_cache(),
        compiling: compiling(),
        threads: flags.threads.map_or(0, usize::from),
        isa: flags.isa.map(isa),
        step_rows: flags.backend.chunk(flags.prefill_chunk),
        float_products: flags.numerics != Numerics::Quantized,
        round_trips: flags.numerics != Numerics::Exact,
        rows: rows(flags.numerics),
        shortcuts: shortcuts(&flags.debug),
        store_dir: flags.state_dir.clone(),
        store_disk_bytes: u64::from(flags.state_disk_mib) << 20,
        store_ram_bytes: u64::from(flags.state_ram_mib) << 20,
        ..EngineOptions::default()
    };
    let options = spaced(on_cards(flags, &group, (&opened, options)));
    let bar = Progress::new("loading", 0, "bytes");
    let mut on_progress = |progress: ironstar_model::Progress<'_>| {
        bar.total(progress.bytes_total as u64);
        bar.at(progress.bytes_done as u64);
    };
    let drafter = opened.drafter.as_ref();
    let shared =
        EngineOptions { threads: flags.threads.map_or(cores(), usize::from), ..options.clone() };
    let mut engine = match &group.layers {
        None if group.ranks == 1 => {
            Engine::from_gguf(&opened.gguf, drafter, options, &mut on_progress)
        }
        None => {
            let backend = ranks::lead(flags, &group, &opened, &shared)?;
            Engine::on_backend(backend, &opened.gguf, drafter, shared, &mut on_progress)
        }
        Some(layers) => {
            let (pipeline, bytes, threads) =
                ranks::lead_pipeline(flags, &group, layers, &opened, &shared)?;
            let options = EngineOptions { threads, ..shared };
            let node = (pipeline, bytes);
            Engine::on_pipeline(node, &opened.gguf, drafter, options, &mut on_progress)
        }
    }
    .map_err(|error| in_file(&opened.name, from_engine(error)))?;
    engine.meet(ranks::LOADING).map_err(from_engine)?;
    drop(bar);
    let gates = engine.gates_note();
    gates.iter().map(String::as_str).chain(engine.backend_note()).for_each(ranks::note);
    if let [first, others @ ..] = engine.model().ignored() {
        let _ = writeln!(
            std::io::stderr(),
            "ironstar: {}: tensor '{first}' and {} others are not used by this engine",
            opened.name,
            others.len()
        );
    }
    steer(&mut engine, &flags.steering)?;
    if flags.debug.contains(&DebugKey::Steps) {
        engine.set_observer(Some(Box::new(StepPrinter::default())));
    }
    Ok((engine, opened))
}

/// A model that is no file, if one device is to run it.
fn alone(made: Opened, group: &Group) -> Result<Opened, Failure> {
    if group.ranks > 1 || group.layers.is_some() {
        let text = "a random model without a file is for one device: ranks open a file each, which \
                    `ironstar synth` writes";
        return Err(Failure::caller(text));
    }
    Ok(made)
}

/// Options with the cards, where the model is to be on one of them, and as long steps as it has
/// room for; says what it will hold. What keeps the driver from telling is told by who opens the
/// card.
fn on_cards(
    flags: &flags::Model,
    group: &Group,
    (opened, options): (&Opened, EngineOptions),
) -> EngineOptions {
    if group.ranks > 1 || group.layers.is_some() || flags.backend == BackendName::Cpu {
        return options;
    }
    let cards = match (cuda_devices(), flags.backend) {
        (Ok(cards), _) => cards,
        (Err(_), BackendName::Auto) => Vec::new(),
        (Err(_), _) => return options,
    };
    let plan = cards.first().and_then(|card| {
        let mut plan = CardPlan::new(card, opened, &options, flags)?;
        if flags.prefill_chunk.is_none() {
            plan.choose_rows();
        }
        ranks::note(&plan.text());
        Some(plan.rows)
    });
    let step_rows = plan.unwrap_or(options.step_rows);
    EngineOptions { cards: Some(cards), step_rows, ..options }
}

/// A checkpoint cuts a step, so that none comes before a whole step has ended.
fn spaced(options: EngineOptions) -> EngineOptions {
    let checkpoint_spacing = options.checkpoint_spacing.max(options.step_rows);
    EngineOptions { checkpoint_spacing, ..options }
}

/// Shortcuts that are left out, and those that must be taken.
fn shortcuts(keys: &[DebugKey]) -> [Shortcuts; 2] {
    let mut all = [Shortcuts::NONE; 2];
    for key in keys {
        match *key {
            DebugKey::Steps => {}
            DebugKey::Disable(shortcut) => all[0] = all[0].with(shortcut),
            DebugKey::Require(shortcut) => all[1] = all[1].with(shortcut),
        }
    }
    all
}

/// An instruction set by its flag.
#[must_use]
pub fn isa(name: IsaName) -> Isa {
    match name {
        IsaName::Scalar => Isa::Scalar,
        IsaName::Avx2 => Isa::Avx2,
        IsaName::Avx512 => Isa::Avx512,
        IsaName::Amx => Isa::Amx,
        IsaName::Neon => Isa::Neon,
        IsaName::I8mm => Isa::I8mm,
    }
}

/// How key/value rows are kept.
#[must_use]
pub fn rows(numerics: Numerics) -> RowStorage {
    match numerics {
        Numerics::Quantized => RowStorage::Bf16,
        Numerics::Float | Numerics::Exact => RowStorage::F32,
    }
}

/// Steers as the flags want it.
fn steer(engine: &mut Engine, flags: &flags::Steering) -> Result<(), Failure> {
    let Some(path) = &flags.dir_steering_file else { return Ok(()) };
    let bytes = std::fs::read(path).map_err(|error| Failure::file("reading", path, &error))?;
    let (layers, width) = (engine.model().shape().layers, engine.model().shape().width);
    let named = |error: String| Failure::caller(format!("{}: {error}", path.display()));
    let directions = Directions::from_bytes(&bytes, layers, width);
    let directions = directions.map_err(|error| named(error.to_string()))?;
    let (attention, ffn) = (flags.dir_steering_attn, flags.dir_steering_ffn);
    let scales = SteeringScales { attention, ffn };
    engine.steer(Some((&directions, scales))).map_err(from_engine)
}

fn bundled(mtp_model: Option<&Path>) -> Result<Opened, Failure> {
    let (model, drafter) = BUNDLED.ok_or_else(|| {
        Failure::caller("this binary carries no model; name one with --model FILE")
    })?;
    let wrong = |error: ironstar_gguf::Error| Failure::ours(format!("the bundled model: {error}"));
    let drafter = match mtp_model {
        Some(path) => open_file(path)?,
        None => Gguf::from_static(drafter).map_err(wrong)?,
    };
    let gguf = Gguf::from_static(model).map_err(wrong)?;
    Ok(Opened { gguf, drafter: Some(drafter), name: "the bundled nano model".into() })
}

fn open_file(path: &Path) -> Result<Gguf, Failure> {
    Gguf::open(path).map_err(|error| from_gguf(&error))
}

/// The blame of a reader's error.
pub fn from_gguf(error: &ironstar_gguf::Error) -> Failure {
    match error.blame() {
        ironstar_gguf::Blame::Input => Failure::caller(error.to_string()),
        ironstar_gguf::Blame::Environment => Failure::environment(error.to_string()),
    }
}

/// The blame of a model's error.
pub fn from_model(error: ironstar_model::Error) -> Failure {
    match error.blame() {
        ironstar_model::Blame::Input => Failure::caller(error.to_string()),
        ironstar_model::Blame::Environment => Failure::environment(error.to_string()),
        ironstar_model::Blame::Internal => Failure::ours(error.to_string()),
    }
}

/// A failure with the file that it is about.
pub fn in_file(name: &str, failure: Failure) -> Failure {
    Failure { message: format!("{name}: {}", failure.message), ..failure }
}

/// The blame of an engine's error; only Ctrl-C cancels here.
pub fn from_engine(error: ironstar_engine::Error) -> Failure {
    if matches!(error, ironstar_engine::Error::Cancelled { .. }) {
        return Failure::interrupted();
    }
    match error.blame() {
        ironstar_engine::Blame::Input => Failure::caller(error.to_string()),
        ironstar_engine::Blame::Environment => Failure::environment(error.to_string()),
        ironstar_engine::Blame::Internal => Failure::ours(error.to_string()),
    }
}

/// The engine's tokenizer; where its file has none, the error that says so.
pub fn engine_tokenizer(engine: &Engine, opened: &Opened) -> Result<Arc<Tokenizer>, Failure> {
    let shared = engine.tokenizer().cloned();
    shared.map_or_else(|| tokenizer(&opened.gguf).map(Arc::new), Ok)
}

/// The vocabulary that a model file carries.
pub fn tokenizer(gguf: &Gguf) -> Result<Tokenizer, Failure> {
    ironstar_engine::tokenizer(gguf).map_err(from_engine)
}

/// How many threads there can be.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Where this program keeps what it remembers between runs.
#[must_use]
pub fn state_folder() -> Option<PathBuf> {
    Some(std::env::home_dir()?.join(".local/state/ironstar"))
}

/// Shows that a card's kernels are being compiled, which its first start waits for.
fn compiling() -> Compiling {
    let shown = Mutex::new(None);
    Compiling::told(move |done, all| {
        if done == 0 {
            ranks::note("compiling the kernels for this card, once for each version");
        }
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = shown.get_or_insert_with(|| Progress::new("compiling", all as u64, "parts"));
        bar.at(done as u64);
        if done == all {
            *shown = None;
        }
    })
}

/// Where compiled kernels are kept between runs; they can be deleted at any time.
#[must_use]
pub fn kernel_cache() -> Option<PathBuf> {
    Some(std::env::home_dir()?.join(".cache/ironstar/kernels"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_checkpoint_cuts_a_step() {
        let usual = EngineOptions::default().checkpoint_spacing;
        let spacing = |step_rows| {
            spaced(EngineOptions { step_rows, ..EngineOptions::default() }).checkpoint_spacing
        };
        assert_eq!([spacing(512), spacing(usual), spacing(4096)], [usual, usual, 4096]);
    }
}
