//! A loaded model on a backend.

use crate::backend::{self, BackendChoice};
use crate::sampler::Sampler;
use crate::speculation::CostModel;
use crate::store::{Disk, Folder, Key, Settings, Store, Writing};
use crate::{Error, Session};
use ironstar_device::{Backend, Compiling, Counters, CudaDevice, Draw, Isa, Shortcuts, Step};
use ironstar_gguf::{Gguf, Metadata};
use ironstar_model::{
    BLOCK_TOKENS, Directions, LogitsFor, Model, Observer, Options as ModelOptions, Output,
    Pipeline, Progress, RowStorage, State, SteeringScales, Wanted,
};
use ironstar_text::{PRE_TOKENIZER, Parts, Tokenizer};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Which next-token block is loaded with a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DrafterChoice {
    /// `NAME-dspark.gguf` beside `NAME.gguf`, or else `NAME-mtp.gguf`, if one is there.
    #[default]
    Beside,
    /// None, even if there is one.
    None,
    /// This file.
    File(PathBuf),
}

/// How an engine is opened. None of it but the last three lines changes a bit of any answer.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where to run.
    pub backend: BackendChoice,
    /// Which NVIDIA card, counted from 0.
    pub card: u32,
    /// All cards, where the driver has been asked for them already; `None` asks it.
    pub cards: Option<Vec<CudaDevice>>,
    /// Processor threads; 0 means one for each core.
    pub threads: usize,
    /// Instruction set; `None` means the best that is there.
    pub isa: Option<Isa>,
    /// Folder of kernels that were compiled for a card; `None` compiles them at every start.
    pub kernel_cache: Option<PathBuf>,
    /// Who is told of kernels that are being compiled.
    pub compiling: Compiling,
    /// Which next-token block to load.
    pub drafter: DrafterChoice,
    /// Most rows of a step, so also of a prompt's.
    pub step_rows: usize,
    /// Tokens between checkpoints of a session.
    pub checkpoint_spacing: usize,
    /// Most memory of all stored states; 0 keeps none there.
    pub store_ram_bytes: u64,
    /// Folder of stored states, for later runs; `None` keeps them in memory only.
    pub store_dir: Option<PathBuf>,
    /// Most bytes of all files in it, those of other models and processes included.
    pub store_disk_bytes: u64,
    /// Multiplies all matrices as floats; for checking.
    pub float_products: bool,
    /// Shortcuts of a GPU that are left out, and those that must be taken; for diagnosis.
    pub shortcuts: [Shortcuts; 2],
    /// FP8 and FP4 round trips of the model; off only for checking.
    pub round_trips: bool,
    /// How key/value rows are kept.
    pub rows: RowStorage,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            backend: BackendChoice::Auto,
            card: 0,
            cards: None,
            threads: 0,
            isa: None,
            kernel_cache: None,
            compiling: Compiling::default(),
            drafter: DrafterChoice::Beside,
            step_rows: 512,
            checkpoint_spacing: 2048,
            store_ram_bytes: 128 << 20,
            store_dir: None,
            store_disk_bytes: 16 << 30,
            float_products: false,
            shortcuts: [Shortcuts::NONE; 2],
            round_trips: true,
            rows: RowStorage::Bf16,
        }
    }
}

impl EngineOptions {
    pub(crate) fn model(&self) -> ModelOptions {
        let (round_trips, rows) = (self.round_trips, self.rows);
        ModelOptions { round_trips, rows, step_rows_max: self.step_rows }
    }
}

/// A loaded model on a backend, with its tokenizer. Sessions are plain values beside it: whoever
/// owns the engine owns the device and passes `&mut Engine` to the session that is to move.
pub struct Engine {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) model: Model,
    pub(crate) sampler: Sampler,
    pub(crate) store: Store,
    /// What never changes of the store's key.
    store_base: Key,
    pub(crate) options: EngineOptions,
    tokenizer: Option<Arc<Tokenizer>>,
    observer: Option<Box<dyn Observer + Send>>,
    backend_note: Option<String>,
    /// What guessing cost and gained in the last session that guessed.
    pub(crate) costs: CostModel,
    /// States of sessions that are gone; their memory is freed at the next occasion.
    dropped: Dropped,
}

/// Where sessions leave their states when they end.
pub(crate) type Dropped = Arc<Mutex<Vec<State>>>;

impl Engine {
    /// Opens a model file, and the next-token block that the options name.
    pub fn open(
        path: &Path,
        options: EngineOptions,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Engine, Error> {
        let drafter = match &options.drafter {
            DrafterChoice::None => None,
            DrafterChoice::File(path) => Some(Gguf::open(path)?),
            DrafterChoice::Beside => match drafter_beside(path) {
                Some(path) => Some(Gguf::open(&path)?),
                None => None,
            },
        };
        Engine::from_gguf(&Gguf::open(path)?, drafter.as_ref(), options, progress)
    }

    /// Opens a model that lies in memory.
    pub fn from_bytes(
        model: Vec<u8>,
        drafter: Option<Vec<u8>>,
        options: EngineOptions,
    ) -> Result<Engine, Error> {
        let drafter = drafter.map(Gguf::from_bytes).transpose()?;
        Engine::from_gguf(&Gguf::from_bytes(model)?, drafter.as_ref(), options, &mut |_| {})
    }

    /// Opens a model from files that are open already.
    pub fn from_gguf(
        gguf: &Gguf,
        drafter: Option<&Gguf>,
        options: EngineOptions,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Engine, Error> {
        let files: Vec<&Gguf> = std::iter::once(gguf).chain(drafter).collect();
        let backend::Opened { backend, note } = backend::open(&options, backend::needs(&files)?)?;
        let mut engine = Engine::on_backend(backend, gguf, drafter, options, progress)?;
        engine.backend_note = note;
        Ok(engine)
    }

    /// Rank 0 of a pipeline, whose layers take so many bytes, on the backend that the options name.
    pub fn on_pipeline(
        (pipeline, weight_bytes): (Pipeline, u64),
        gguf: &Gguf,
        drafter: Option<&Gguf>,
        options: EngineOptions,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Engine, Error> {
        let backend::Opened { backend, note } =
            backend::open(&options, backend::Need::of_bytes(weight_bytes))?;
        let pipeline = Some(pipeline);
        let mut engine = Engine::assemble(backend, pipeline, (gguf, drafter), options, progress)?;
        engine.backend_note = note;
        Ok(engine)
    }

    /// Opens a model on a given backend; what the options say of backends is not used.
    pub fn on_backend(
        backend: Box<dyn Backend>,
        gguf: &Gguf,
        drafter: Option<&Gguf>,
        options: EngineOptions,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Engine, Error> {
        Engine::assemble(backend, None, (gguf, drafter), options, progress)
    }

    fn assemble(
        mut backend: Box<dyn Backend>,
        pipeline: Option<Pipeline>,
        (gguf, drafter): (&Gguf, Option<&Gguf>),
        options: EngineOptions,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Engine, Error> {
        if options.checkpoint_spacing == 0 {
            let (name, wanted) = ("checkpoint_spacing", "a number from 1 up");
            return Err(Error::Setting { name, found: "0".into(), wanted });
        }
        let has_tokens = gguf.metadata().get(TOKENS_KEY).is_some();
        let tokenizer = has_tokens.then(|| tokenizer(gguf)).transpose()?.map(Arc::new);
        let (device, model_options) = (backend.as_mut(), options.model());
        let model = Model::load_node(gguf, drafter, device, model_options, pipeline, progress)?;
        let (found, rows) = (tokenizer.as_ref().map(|t| t.vocab_size()), model.shape().vocabulary);
        if let Some(tokenizer) = found.and_then(|f| usize::try_from(f).ok()).filter(|f| *f > rows) {
            return Err(Error::Tokenizer { tokenizer, model: rows });
        }
        let store_base = Key::new(&[
            env!("CARGO_PKG_VERSION").as_bytes(),
            backend.kind().as_bytes(),
            &[u8::from(options.float_products)],
            &tokenizer_bytes(gguf.metadata())?,
        ]);
        let store = open_store(&model, &store_base, &options);
        Ok(Engine {
            backend,
            model,
            sampler: Sampler::default(),
            store,
            store_base,
            options,
            tokenizer,
            observer: None,
            backend_note: None,
            costs: CostModel::default(),
            dropped: Dropped::default(),
        })
    }

    /// Where the backend is rank 0 of a group: waits until the other ranks have loaded the same
    /// model.
    pub fn meet(&mut self, patience: std::time::Duration) -> Result<(), Error> {
        Ok(self.model.meet(self.backend.as_mut(), patience)?)
    }

    /// Microseconds that the last gates took on the device, where its cards add for themselves.
    pub fn gate_times(&mut self) -> Result<Vec<f64>, Error> {
        Ok(self.backend.gate_times()?)
    }

    /// How sums of cards of several processes go, once after each change.
    pub fn gates_note(&mut self) -> Option<String> {
        self.backend.gates_note()
    }

    /// Leaves out these shortcuts of the device from here on, and takes all others; false where it
    /// has none. For comparing them on a loaded model: no bit depends on it.
    pub fn leave_out(&mut self, shortcuts: Shortcuts) -> Result<bool, Error> {
        Ok(self.backend.leave_out(shortcuts)?)
    }

    /// A new empty session with room for `context` tokens.
    pub fn session(&mut self, context: usize) -> Result<Session, Error> {
        self.free_dropped();
        let state = self.model.new_state(self.backend.as_mut(), context)?;
        let costs = self.costs.heir();
        Ok(Session::new(state, costs, self.dropped.clone(), self.store.suspects()))
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The tokenizer of the file, for whoever speaks to the engine from elsewhere too; only models
    /// made for tests have none.
    #[must_use]
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.tokenizer.as_ref()
    }

    /// How it was opened.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Why `auto` did not take a card that is there.
    #[must_use]
    pub fn backend_note(&self) -> Option<&str> {
        self.backend_note.as_deref()
    }

    /// Name of the backend.
    #[must_use]
    pub fn backend_name(&self) -> &'static str {
        self.backend.name()
    }

    /// What the backend has done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.backend.counters()
    }

    /// Stored states: what they take, and how their folder fares.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Stored states that belong to the model as it is now.
    pub(crate) fn current_store(&mut self) -> &mut Store {
        self.store.set_key(key_of(&self.model, &self.store_base));
        &mut self.store
    }

    /// Waits until everything that was stored is on the disk, or given up.
    pub fn flush_store(&mut self) {
        self.store.flush();
    }

    /// Keeps stored states on another disk than the options say; for tests.
    pub fn set_disk(&mut self, disk: Arc<dyn Disk>, writing: Writing) {
        let store = Store::new(*self.store.key(), *self.store.settings());
        self.store = store.with_disk(disk, writing);
    }

    /// Forgets what is stored in memory, so that what is rewound is evaluated again; for
    /// measurements.
    pub fn forget_checkpoints(&mut self) {
        self.store.forget();
    }

    /// Rows of a prompt's steps from now on, at most what the engine was opened with.
    pub fn set_prompt_rows(&mut self, rows: usize) {
        self.options.step_rows = rows.clamp(1, self.model.options().step_rows_max);
    }

    /// Somebody who looks at every step from now on (`--debug steps`).
    pub fn set_observer(&mut self, observer: Option<Box<dyn Observer + Send>>) {
        self.observer = observer;
    }

    /// Steers all sessions from their next step on; `None` stops that. What they have evaluated is
    /// not evaluated again; where that was steered otherwise, no other session starts from it.
    pub fn steer(&mut self, how: Option<(&Directions, SteeringScales)>) -> Result<(), Error> {
        Ok(self.model.steer(self.backend.as_mut(), how)?)
    }

    /// Other scales for the directions in force.
    pub fn set_steering_scales(&mut self, scales: SteeringScales) -> Result<(), Error> {
        Ok(self.model.set_steering_scales(scales)?)
    }

    /// Evaluates tokens after a state's position; the caller commits.
    pub(crate) fn step(
        &mut self,
        state: &mut State,
        tokens: &[u32],
        logits: LogitsFor<'_>,
        drafts: LogitsFor<'_>,
    ) -> Result<Output, Error> {
        let step = Step::single(tokens, state.position());
        self.step_of(&step, &mut [state], logits, drafts)
    }

    /// Evaluates rows of several sessions in one pass; the caller commits.
    pub(crate) fn step_of(
        &mut self,
        step: &Step,
        states: &mut [&mut State],
        logits: LogitsFor<'_>,
        drafts: LogitsFor<'_>,
    ) -> Result<Output, Error> {
        let observer = self.observer.as_deref_mut().map(|o| o as &mut dyn Observer);
        let backend = self.backend.as_mut();
        let wanted = Wanted { logits, drafts };
        Ok(self.model.forward_observed(backend, step, states, &wanted, observer)?)
    }

    /// Most rows of a step whose tokens the device can draw; 0 if it cannot. Who looks at every
    /// step sees what is read back.
    pub(crate) fn draw_rows(&self) -> usize {
        if self.observer.is_some() { 0 } else { self.model.draw_rows(self.backend.as_ref()) }
    }

    /// [`Engine::step_of`] for those who want the tokens of some rows and not their logits.
    pub(crate) fn step_drawn_of(
        &mut self,
        step: &Step,
        states: &mut [&mut State],
        rows: LogitsFor<'_>,
        draws: &[Draw],
    ) -> Result<Vec<Option<u32>>, Error> {
        let backend = self.backend.as_mut();
        Ok(self.model.forward_drawn(backend, step, states, rows, draws)?)
    }

    /// Logits of the first rows that tokens were drawn of, as long as nothing came after.
    pub(crate) fn drawn_logits(&mut self, rows: usize) -> Result<Vec<f32>, Error> {
        Ok(self.model.drawn_logits(self.backend.as_mut(), rows)?)
    }

    pub(crate) fn free_dropped(&mut self) {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.drain(..).for_each(|state| state.release(self.backend.as_mut()));
    }
}

impl Drop for Engine {
    /// The other ranks of a group end with the engine.
    fn drop(&mut self) {
        self.model.dismiss(self.backend.as_mut());
    }
}

/// A key that differs wherever the bits of a state could: model, drafter, settings and steering,
/// and in the base kind of device, arithmetic and this program's version; and the tokenizer,
/// without which equal text is not equal tokens.
fn key_of(model: &Model, base: &Key) -> Key {
    Key::new(&[base.bytes(), &model.state_identity()])
}

fn open_store(model: &Model, base: &Key, options: &EngineOptions) -> Store {
    let key = key_of(model, base);
    // A session of one block is larger than any part of a longer one.
    let context = BLOCK_TOKENS.min(model.shape().context);
    let plan = model.plan(context);
    let part: u64 = plan.iter().filter(|line| line.what != "scratch").map(|line| line.bytes).sum();
    let logits = u64::try_from(model.shape().vocabulary).unwrap_or(u64::MAX).saturating_mul(4);
    let settings = Settings {
        ram_bytes: options.store_ram_bytes,
        disk_bytes: options.store_disk_bytes,
        file_bytes_max: part.saturating_add(logits).saturating_add(1 << 20),
    };
    let store = Store::new(key, settings);
    match &options.store_dir {
        None => store,
        Some(folder) => store.with_disk(Arc::new(Folder::new(folder.clone())), Writing::Thread),
    }
}

/// What a file says of its vocabulary, one behind the other; nothing where there is none.
fn tokenizer_bytes(metadata: &Metadata) -> Result<Vec<u8>, Error> {
    let mut all = Vec::new();
    if metadata.get(TOKENS_KEY).is_none() {
        return Ok(all);
    }
    let mut add = |bytes: &[u8]| {
        all.extend_from_slice(&u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes());
        all.extend_from_slice(bytes);
    };
    let parts = tokenizer_parts(metadata)?;
    parts.tokens.iter().for_each(|token| add(token));
    parts.merges.iter().for_each(|merge| add(merge.as_bytes()));
    parts.kinds.iter().for_each(|kind| add(&kind.to_le_bytes()));
    add(parts.pre.as_bytes());
    Ok(all)
}

/// The drafter that lies beside `DIR/NAME.gguf`: `DIR/NAME-dspark.gguf`, or else
/// `DIR/NAME-mtp.gguf`.
#[must_use]
pub fn drafter_beside(model: &Path) -> Option<PathBuf> {
    ["dspark", "mtp"].iter().filter_map(|kind| named_beside(model, kind)).find(|p| p.exists())
}

/// `DIR/NAME-KIND.gguf` for `DIR/NAME.gguf`.
#[must_use]
pub fn named_beside(model: &Path, kind: &str) -> Option<PathBuf> {
    let stem = model.file_stem()?.to_str()?;
    Some(model.with_file_name(format!("{stem}-{kind}.gguf")))
}

const TOKENS_KEY: &str = "tokenizer.ggml.tokens";

/// The tokenizer that a model file carries.
pub fn tokenizer(gguf: &Gguf) -> Result<Tokenizer, Error> {
    Ok(Tokenizer::from_parts(tokenizer_parts(gguf.metadata())?)?)
}

fn tokenizer_parts(metadata: &Metadata) -> Result<Parts, Error> {
    let merges = metadata.opt_array_bytes("tokenizer.ggml.merges")?.unwrap_or_default();
    Ok(Parts {
        tokens: metadata.array_bytes(TOKENS_KEY)?.to_vec(),
        merges: merges.iter().map(|merge| String::from_utf8_lossy(merge).into_owned()).collect(),
        kinds: metadata.opt_array_u32("tokenizer.ggml.token_type")?.unwrap_or_default(),
        pre: metadata.opt_str("tokenizer.ggml.pre")?.unwrap_or(PRE_TOKENIZER).to_owned(),
        bos: metadata.opt_u32("tokenizer.ggml.bos_token_id")?,
        eos: metadata.opt_u32("tokenizer.ggml.eos_token_id")?,
        pad: metadata.opt_u32("tokenizer.ggml.padding_token_id")?,
    })
}
