//! `ironstar synth`: random models of full size, so that anyone can measure speed without weights.
//!
//! Values are valid blocks with mean 0, scaled by the width of their rows, so that activations stay
//! finite; router logits are spread so that all experts are used. The text that comes out is noise.
//! Equal flags give equal files. With `--alias K` only K layers have data of their own, which the
//! others share: a small file that fills a whole card, since every tensor is uploaded for itself.
//! [`in_memory`] is the same model without a file, for `bench --synth`.

mod blocks;
mod vocabulary;

use crate::failure::Failure;
use crate::flags::{Random, Synth, SynthMix, SynthShape};
use crate::loading::Opened;
use crate::progress::Progress;
use crate::{loading, outfile};
use blocks::Tiles;
use ironstar_gguf::{Gguf, TensorInfo, TensorKind, Value, Writer};
use ironstar_model::Shape;
use ironstar_model::deepseek_v4::{
    Field, Kind, TensorSpec, drafter_specs, import, known, tensor_specs,
};
use ironstar_quant::Format;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Smaller tensors are never shared: norms and scales cost nothing.
const SHARED_MIN: u64 = 1 << 20;
/// Bytes of one write, and the unit in which a tensor's place in its tile is drawn.
const PIECE: usize = 16 << 20;
/// Prompts have at most so many tokens.
const PROMPT_MAX: usize = 1 << 20;

/// Runs the command.
pub fn run(flags: &Synth) -> Result<(), Failure> {
    let (shape, planned) = planned(&flags.random())?;
    outfile::check(&flags.output, &[], flags.force)?;
    if let Some(path) = &flags.mtp {
        outfile::check(path, &[&flags.output], flags.force)?;
    }
    if let Some(path) = &flags.prompt {
        let count = flags.prompt_tokens.min(PROMPT_MAX);
        let text = vocabulary::prompt(shape.vocabulary, count, flags.seed);
        std::fs::write(path, text).map_err(|error| Failure::file("writing", path, &error))?;
    }
    create(flags, &flags.output, (&shape, &planned, metadata(&shape)))?;
    let Some(path) = &flags.mtp else { return Ok(()) };
    let block = plan(drafter_specs(&shape), flags.mix, None)?;
    create(flags, path, (&shape, &block, draft_metadata()))
}

/// Shape and tensors of a random model.
fn planned(what: &Random) -> Result<(Shape, Vec<Planned>), Failure> {
    let shape = shape(what)?;
    let planned = plan(tensor_specs(&shape), what.mix, what.alias)?;
    Ok((shape, planned))
}

/// The model that [`run`] would write, whose tensors are made as they are asked for.
pub fn in_memory(what: &Random) -> Result<Opened, Failure> {
    let (shape, planned) = planned(what)?;
    let name = format!("random {:?} of mix {:?}, seed {}", what.shape, what.mix, what.seed);
    let name = name.to_lowercase();
    let mut writer = Writer::new(std::io::empty());
    announce(&mut writer, &planned, metadata(&shape))?;
    let at = planned.iter().enumerate().map(|(at, tensor)| (tensor.spec.name.clone(), at));
    let at: HashMap<String, usize> = at.collect();
    let tiles = Mutex::new(Tiles::new(what.seed));
    let make = move |tensor: &TensorInfo| {
        let find = |name: &str| at.get(name).map(|at| &planned[*at]);
        let found = find(&tensor.name);
        let owner = found.and_then(|own| own.with.as_deref().map_or(Some(own), find));
        let mut all = Vec::new();
        if let Some(owner) = owner {
            all.reserve_exact(usize::try_from(owner.bytes).unwrap_or(0));
            let mut tiles = tiles.lock().unwrap_or_else(PoisonError::into_inner);
            // Nothing refuses a piece; were one missing, the length would tell.
            let _made = data(&mut tiles, owner, &shape, &mut |piece| {
                all.extend_from_slice(piece);
                Ok(())
            });
        }
        all
    };
    let gguf = Gguf::made(&name, &writer, make).map_err(|error| loading::from_gguf(&error))?;
    Ok(Opened { gguf, drafter: None, name })
}

/// A file's shape, tensors and keys.
type Content<'a> = (&'a Shape, &'a [Planned], Vec<(String, Value)>);

/// Makes a file; one that was not completed is removed.
fn create(flags: &Synth, path: &Path, (shape, planned, keys): Content<'_>) -> Result<(), Failure> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .create_new(!flags.force)
        .truncate(flags.force)
        .open(path)
        .map_err(|error| Failure::file("creating", path, &error))?;
    match write(&file, (shape, planned, keys), flags.seed) {
        Ok(()) => report(path, planned),
        Err(failure) => {
            drop(file);
            let _ = std::fs::remove_file(path);
            Err(failure)
        }
    }
}

/// A tensor, how it is stored, and whose data it has if not its own.
struct Planned {
    spec: TensorSpec,
    kind: TensorKind,
    bytes: u64,
    with: Option<String>,
}

/// The shape that the flags name, checked as one from a file is.
fn shape(flags: &Random) -> Result<Shape, Failure> {
    let mut shape = match flags.shape {
        SynthShape::Flash => known::flash(),
        SynthShape::Pro => known::pro(),
        SynthShape::Reduced => known::reduced(),
        SynthShape::Tiny => known::tiny(),
    };
    if let Some(layers) = flags.layers {
        if layers == 0 || layers > shape.layers {
            let all = shape.layers;
            return Err(Failure::caller(format!("--layers {layers}: 1 to {all} are possible")));
        }
        shape = known::first_layers(shape, layers);
    }
    if let Some(experts) = flags.experts {
        let (used, all) = (shape.experts_used, shape.experts);
        if experts < used || experts > all {
            return Err(Failure::caller(format!("--experts {experts}: {used} to {all} fit")));
        }
        shape.experts = experts;
    }
    Ok(shape)
}

/// What each tensor is stored as in a mix: dense matrices Q8_0, and formats of the experts.
#[must_use]
pub fn kind_of(spec: &TensorSpec, mix: SynthMix) -> TensorKind {
    let (gate, down) = match mix {
        SynthMix::Q2 => (Format::Iq2Xxs, Format::Q2K),
        SynthMix::Q4 => (Format::Q4K, Format::Q4K),
        SynthMix::Mxfp4 => (Format::Mxfp4, Format::Mxfp4),
    };
    match spec.field {
        Field::ExpertGate | Field::ExpertUp => TensorKind::Block(gate),
        Field::ExpertDown => TensorKind::Block(down),
        _ => import::default_kind(spec),
    }
}

/// Bytes of a tensor in a mix.
pub fn bytes_of(spec: &TensorSpec, kind: TensorKind) -> Result<u64, Failure> {
    let dims: Vec<u64> = spec.dims.iter().map(|dim| *dim as u64).collect();
    kind.bytes(&dims).ok_or_else(|| {
        let (name, dims) = (&spec.name, &spec.dims);
        Failure::ours(format!("{name} of {dims:?} does not fit {}", kind.name()))
    })
}

fn plan(
    specs: Vec<TensorSpec>,
    mix: SynthMix,
    alias: Option<usize>,
) -> Result<Vec<Planned>, Failure> {
    // Names of the tensors with data, by what they hold; the layers share them in turn.
    let mut owners: HashMap<Field, Vec<String>> = HashMap::new();
    let mut turns: HashMap<Field, usize> = HashMap::new();
    let mut planned: Vec<Planned> = Vec::new();
    for spec in specs {
        let kind = kind_of(&spec, mix);
        let bytes = bytes_of(&spec, kind)?;
        let mut with = None;
        if let Some(alias) = alias.filter(|_| bytes >= SHARED_MIN) {
            let owners = owners.entry(spec.field).or_default();
            let turn = turns.entry(spec.field).or_default();
            // Compressors of different ratios have different sizes.
            let same = |name: &&String| {
                planned.iter().any(|other| other.spec.name == **name && other.bytes == bytes)
            };
            let fitting: Vec<&String> = owners.iter().filter(same).collect();
            if fitting.len() >= alias {
                with = Some(fitting[*turn % alias].clone());
                *turn += 1;
            } else {
                owners.push(spec.name.clone());
            }
        }
        planned.push(Planned { spec, kind, bytes, with });
    }
    Ok(planned)
}

/// Keys and tensors, before any data.
fn announce<W: Write + Seek>(
    writer: &mut Writer<W>,
    planned: &[Planned],
    keys: Vec<(String, Value)>,
) -> Result<(), Failure> {
    let from_gguf = |error: ironstar_gguf::Error| loading::from_gguf(&error);
    for (key, value) in keys {
        writer.metadata(&key, value).map_err(from_gguf)?;
    }
    for Planned { spec, kind, with, .. } in planned {
        let dims: Vec<u64> = spec.dims.iter().map(|dim| *dim as u64).collect();
        match with {
            None => writer.tensor(&spec.name, *kind, &dims),
            Some(with) => writer.tensor_sharing(&spec.name, *kind, &dims, with),
        }
        .map_err(from_gguf)?;
    }
    Ok(())
}

fn write(file: &File, (shape, planned, keys): Content<'_>, seed: u64) -> Result<(), Failure> {
    let from_gguf = |error: ironstar_gguf::Error| loading::from_gguf(&error);
    let mut writer = Writer::new(file);
    announce(&mut writer, planned, keys)?;
    let own = || planned.iter().filter(|tensor| tensor.with.is_none());
    let progress = Progress::new("writing", own().map(|tensor| tensor.bytes).sum(), "bytes");
    let (mut tiles, mut done) = (Tiles::new(seed), 0);
    for tensor in own() {
        let name = &tensor.spec.name;
        progress.message(name);
        data(&mut tiles, tensor, shape, &mut |piece: &[u8]| {
            done += piece.len() as u64;
            progress.at(done);
            writer.data(name, piece).map_err(from_gguf)
        })?;
    }
    writer.finish().map_err(from_gguf)?;
    Ok(())
}

/// The data of one tensor, piece by piece.
fn data(
    tiles: &mut Tiles,
    tensor: &Planned,
    shape: &Shape,
    put: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let spec = &tensor.spec;
    let format = match tensor.kind {
        TensorKind::Block(format) => format,
        _ => return put(&expert_table(shape, blocks::key(tiles.seed, &spec.name))),
    };
    let spread = match (spec.kind, spec.field) {
        (_, Field::CompressorPositions | Field::IndexCompressorPositions) => 0.1,
        (Kind::Vector, field) => {
            let len = spec.dims.iter().product();
            return put(&blocks::constant(constant(field), len));
        }
        (_, Field::Embedding) => 1.0,
        // Logits of standard deviation 2: the experts' weights differ, and none is left out.
        (_, Field::Router) => 2.0 / width(spec),
        _ => 1.0 / width(spec),
    };
    tiles.fill(format, spread, &spec.name, tensor.bytes, PIECE, put)
}

/// What a vector holds everywhere: scales 1, biases and logits 0.
fn constant(field: Field) -> f32 {
    match field {
        Field::HcAttnBase
        | Field::HcFfnBase
        | Field::HeadBase
        | Field::Sinks
        | Field::RouterBias => 0.0,
        _ => 1.0,
    }
}

/// Square root of a row's width.
fn width(spec: &TensorSpec) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "a spread of random numbers")]
    let width = spec.dims[0] as f32;
    width.sqrt()
}

/// Distinct experts for each token: a random first one and random strides that never meet.
fn expert_table(shape: &Shape, mut state: u64) -> Vec<u8> {
    let (experts, used) = (shape.experts as u64, shape.experts_used as u64);
    let stride_max = (experts / used).max(1);
    let mut bytes = Vec::with_capacity(shape.vocabulary * shape.experts_used * 4);
    for _ in 0..shape.vocabulary {
        let mut expert = blocks::next(&mut state) % experts;
        for _ in 0..used {
            let id = i32::try_from(expert).expect("a model has at most 4096 experts");
            bytes.extend(id.to_le_bytes());
            expert = (expert + 1 + blocks::next(&mut state) % stride_max) % experts;
        }
    }
    bytes
}

fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let mut all = shape.to_metadata();
    all.push(("general.name".into(), Value::String("synthetic".into())));
    all.extend(vocabulary::metadata(shape.vocabulary));
    all
}

fn draft_metadata() -> Vec<(String, Value)> {
    vec![("general.architecture".into(), Value::String("deepseek4_mtp_support".into()))]
}

fn report(path: &Path, planned: &[Planned]) -> Result<(), Failure> {
    let sum = |own: bool| -> u64 {
        let counted = planned.iter().filter(|tensor| !own || tensor.with.is_none());
        counted.map(|tensor| tensor.bytes).sum()
    };
    let text = format!(
        "{}: {} tensors, {} of weights, {} in the file\n",
        path.display(),
        planned.len(),
        crate::commands::gib(sum(false)),
        crate::commands::gib(sum(true)),
    );
    crate::print(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::{bytes_of, in_memory, kind_of, metadata, plan, planned, write};
    use crate::flags::{Random, SynthMix, SynthShape};
    use ironstar_engine::{CancelFlag, Engine, EngineOptions};
    use ironstar_gguf::Gguf;
    use ironstar_model::deepseek_v4::{known, tensor_specs};

    /// Published files of Flash, in units of 0.01 GiB.
    #[test]
    fn mixes_have_the_published_sizes() {
        for (mix, wanted) in
            [(SynthMix::Q2, 80.76), (SynthMix::Q4, 153.32), (SynthMix::Mxfp4, 145.26)]
        {
            let specs = tensor_specs(&known::flash());
            let bytes: u64 = specs
                .iter()
                .map(|spec| bytes_of(spec, kind_of(spec, mix)).expect("whole blocks"))
                .sum();
            #[expect(clippy::cast_precision_loss, reason = "two decimals are compared")]
            let gib = bytes as f64 / f64::from(1 << 30);
            assert!((gib - wanted).abs() < 0.006, "{mix:?}: {gib} GiB, published {wanted}");
        }
    }

    /// A model in memory is the file: keys, tensors, what they share, and every byte; and so are
    /// its logits.
    #[test]
    fn a_model_in_memory_is_the_one_in_the_file() {
        let folder = std::env::temp_dir().join(format!("ironstar-synth-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder of our own");
        let (shape, mix, experts) = (SynthShape::Tiny, SynthMix::Q2, None);
        let (layers, alias) = (Some(3), Some(1));
        let what = Random { shape, mix, layers, experts, alias, seed: 5 };
        let path = folder.join("model.gguf");
        let (shape, tensors) = planned(&what).expect("a plan");
        assert!(tensors.iter().any(|tensor| tensor.with.is_some()), "some share data");
        let file = std::fs::File::create(&path).expect("a file");
        write(&file, (&shape, &tensors, metadata(&shape)), what.seed).expect("room for it");
        let (file, made) =
            (Gguf::open(&path).expect("a model"), in_memory(&what).expect("one").gguf);
        assert_eq!(made.tensors(), file.tensors());
        for tensor in file.tensors() {
            assert_eq!(made.place(tensor).expect("inside"), file.place(tensor).expect("inside"));
            let (own, wanted) = (made.bytes(tensor), file.bytes(tensor));
            assert!(*own.expect("made") == *wanted.expect("written"), "{}", tensor.name);
        }
        let logits = |gguf: &Gguf| {
            let backend = ironstar_engine::BackendChoice::Cpu;
            let options = EngineOptions { backend, threads: 2, ..EngineOptions::default() };
            let mut engine =
                Engine::from_gguf(gguf, None, options, &mut |_| {}).expect("a small model");
            let mut session = engine.session(64).expect("a short one");
            let go = CancelFlag::default();
            session.sync(&mut engine, &[3, 70, 9], &mut |_| {}, &go).expect("three tokens");
            let logits = session.logits().expect("behind a prompt");
            logits.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
        };
        assert!(logits(&made) == logits(&file));
        std::fs::remove_dir_all(folder).expect("it was made here");
    }

    #[test]
    fn shared_data_has_the_right_size_and_owner() {
        let planned = plan(tensor_specs(&known::flash()), SynthMix::Q2, Some(2)).expect("a plan");
        let own: u64 = planned.iter().filter(|t| t.with.is_none()).map(|t| t.bytes).sum();
        let all: u64 = planned.iter().map(|t| t.bytes).sum();
        assert!(own * 12 < all, "two layers of 43 and what is not shared: {own} of {all}");
        for tensor in &planned {
            let Some(with) = &tensor.with else { continue };
            let owner = planned.iter().find(|t| t.spec.name == *with).expect("an owner");
            assert!(owner.with.is_none() && owner.bytes == tensor.bytes);
            assert_eq!(owner.spec.field, tensor.spec.field);
        }
    }
}
