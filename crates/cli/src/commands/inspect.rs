//! `ironstar inspect`: what a model file holds and what running it takes.

use crate::failure::Failure;
use crate::flags::Inspect;
use crate::progress::Progress;
use crate::ranks::{self, Layers};
use crate::{loading, print};
use ironstar_gguf::{Gguf, Metadata, TensorKind, Value};
use ironstar_model::deepseek_v4::shape::ARCHITECTURE;
use ironstar_model::deepseek_v4::{SparkShape, drafter_specs, tensor_specs, weight_plan};
use ironstar_model::{Model, Options, PlanLine, Shape, Stages};
use ironstar_quant::Format;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Longest text of a metadata value that is shown.
const VALUE_CHARS_MAX: usize = 100;

/// Most entries of an array that are shown.
const ENTRIES_MAX: usize = 128;

/// Runs the command.
pub fn run(flags: &Inspect) -> Result<(), Failure> {
    let opened = loading::open(flags.model.as_deref(), None)?;
    if flags.check {
        return check(&opened);
    }
    let session = match architecture(&opened.gguf) {
        Some(other) if other != ARCHITECTURE => None,
        _ => Some(
            Session::plan(&opened, flags)
                .map_err(|failure| loading::in_file(&opened.name, failure))?,
        ),
    };
    if flags.json {
        return print(json(&opened, session.as_ref(), flags).as_bytes());
    }
    print(text(&opened, session.as_ref(), flags).as_bytes())
}

fn architecture(gguf: &Gguf) -> Option<&str> {
    gguf.metadata().opt_str("general.architecture").ok().flatten()
}

/// What a file that can be run alone is, and what that takes.
struct Session {
    shape: Shape,
    plan: Vec<PlanLine>,
    /// Weights on each rank.
    parts: Vec<Vec<PlanLine>>,
    /// Layers of each, where they are cut.
    stages: Option<Stages>,
}

impl Session {
    fn plan(opened: &loading::Opened, flags: &Inspect) -> Result<Self, Failure> {
        let context = flags.ctx;
        let shape = Shape::from_metadata(opened.gguf.metadata()).map_err(loading::from_model)?;
        if context > shape.context {
            return Err(Failure::caller(format!(
                "--ctx {context}: this model was made for at most {} tokens",
                shape.context
            )));
        }
        let plan = memory_plan(opened, &shape, context)?;
        let cut = flags.layers.as_deref().map(Stages::parse).transpose();
        let cut = cut.map_err(loading::from_model)?;
        let nodes = cut.as_ref().map(Stages::count).or(flags.stages);
        let layers = Layers { cut, ..Layers::default() };
        let stages = nodes.map(|nodes| ranks::stages(opened, nodes, &layers)).transpose()?;
        let parts = match &stages {
            Some(stages) => ranks::stage_plans(opened, stages)?,
            None => ranks::rank_plans(opened, flags.ranks.unwrap_or(1))?,
        };
        Ok(Session { shape, plan, parts, stages })
    }
}

fn text(opened: &loading::Opened, session: Option<&Session>, flags: &Inspect) -> String {
    let mut text = String::new();
    let name = opened.gguf.metadata().opt_str("general.name").ok().flatten().unwrap_or("no name");
    let packed = if opened.gguf.is_packed() { " (packed)" } else { "" };
    let _ = writeln!(text, "{}: {name}{packed}", opened.name);
    match session {
        Some(session) => {
            let _ = writeln!(text, "\nShape");
            for (key, value) in session.shape.to_metadata() {
                let _ = writeln!(text, "  {key:<46} {}", shown(&value));
            }
        }
        None => {
            let found = architecture(&opened.gguf).unwrap_or_default();
            let _ = writeln!(
                text,
                "\nArchitecture {found}: nothing that runs alone here, where models of \
                 {ARCHITECTURE} do; drafters are named beside one (--mtp-model)"
            );
        }
    }
    let _ = writeln!(text, "\nTensors by type");
    for (kind, (count, bytes)) in by_kind(&opened.gguf) {
        let _ = writeln!(text, "  {kind:<8} {count:>6} tensors {:>12}", mib(bytes));
    }
    if flags.tensors {
        let files = [Some(&opened.gguf), opened.drafter.as_ref()];
        for tensor in files.into_iter().flatten().flat_map(Gguf::tensors) {
            let dims: Vec<String> = tensor.dims.iter().map(u64::to_string).collect();
            let kind = tensor.kind.name();
            let _ = writeln!(text, "  {:<40} {kind:<8} {}", tensor.name, dims.join(" x "));
        }
    }
    if flags.metadata {
        let _ = writeln!(text, "\nMetadata");
        for (key, value) in opened.gguf.metadata().entries() {
            let _ = writeln!(text, "  {key:<46} {}", shown(value));
        }
    }
    if let Some(Session { plan, parts, stages, .. }) = session {
        let _ = writeln!(text, "\nMemory for a session of {} tokens", flags.ctx);
        for line in plan {
            let _ = writeln!(text, "  {:<28} {:>12}", line.what, mib(line.bytes));
        }
        let sum = plan.iter().map(|line| line.bytes).sum();
        let _ = writeln!(text, "  {:<28} {:>12}", "in all", mib(sum));
        if let Some(stages) = stages {
            show_stages(&mut text, stages, parts);
        } else if parts.len() > 1 {
            show_parts(&mut text, parts);
        }
    }
    text
}

/// Values that are decoded at a time.
const CHECKED_VALUES: usize = 1 << 20;

/// Reads every value of every tensor and refuses those that are no numbers.
fn check(opened: &loading::Opened) -> Result<(), Failure> {
    let files: Vec<&Gguf> = std::iter::once(&opened.gguf).chain(opened.drafter.as_ref()).collect();
    let tensors = || files.iter().flat_map(|file| file.tensors().iter().map(move |t| (*file, t)));
    let total = tensors().filter_map(|(_, tensor)| tensor.byte_count()).sum();
    let progress = Progress::new("checking", total, "bytes");
    let (mut done, mut values, mut wrong) = (0, 0, Vec::new());
    for (file, tensor) in tensors() {
        progress.message(&tensor.name);
        if let TensorKind::Block(format) = tensor.kind {
            let bytes = file.bytes(tensor).map_err(|error| loading::from_gguf(&error))?;
            let found = damaged(format, &bytes);
            values += tensor.element_count();
            if let Some((count, first)) = found {
                wrong.push(format!("{}: {count} values, the first at {first}", tensor.name));
            }
        }
        done += tensor.byte_count().unwrap_or(0);
        progress.at(done);
    }
    drop(progress);
    if wrong.is_empty() {
        return print(format!("{}: {values} values, all finite\n", opened.name).as_bytes());
    }
    let message = format!(
        "values that are no finite numbers; fetch or convert the file again:\n  {}",
        wrong.join("\n  ")
    );
    Err(loading::in_file(&opened.name, Failure::caller(message)))
}

/// How many values of a tensor are not finite, and the index of the first.
fn damaged(format: Format, bytes: &[u8]) -> Option<(usize, usize)> {
    let info = format.info();
    let part = (CHECKED_VALUES / info.block_elements).max(1);
    let mut values = Vec::new();
    let mut found = None;
    let mut at = 0;
    for blocks in bytes.chunks(part * info.block_bytes) {
        values.resize(blocks.len() / info.block_bytes * info.block_elements, 0.0);
        (info.decode)(blocks, &mut values);
        let bad = values.iter().filter(|value| !value.is_finite()).count();
        if bad > 0 {
            let first = values.iter().position(|value| !value.is_finite()).unwrap_or(0);
            let (count, earliest) = found.unwrap_or((0, at + first));
            found = Some((count + bad, earliest));
        }
        at += values.len();
    }
    found
}

/// One line a class of tensors, the smallest and the largest rank of each.
fn show_parts(text: &mut String, parts: &[Vec<PlanLine>]) {
    let _ = writeln!(text, "\nWeights on each of {} ranks", parts.len());
    let sum = |part: &Vec<PlanLine>| part.iter().map(|line| line.bytes).sum::<u64>();
    let rows = parts[0]
        .iter()
        .enumerate()
        .map(|(at, line)| (line.what, parts.iter().map(|part| part[at].bytes).collect::<Vec<_>>()));
    for (what, bytes) in rows.chain([("in all", parts.iter().map(sum).collect())]) {
        let (least, most) = (bytes.iter().min(), bytes.iter().max());
        let (least, most) = (least.copied().unwrap_or(0), most.copied().unwrap_or(0));
        let range = if least == most { String::new() } else { format!("{} to ", mib(least)) };
        let _ = writeln!(text, "  {what:<56} {:>12}", format!("{range}{}", mib(most)));
    }
}

/// A block of lines for each node of a pipeline.
fn show_stages(text: &mut String, stages: &Stages, parts: &[Vec<PlanLine>]) {
    for (node, part) in parts.iter().enumerate() {
        let range = stages.range(node);
        let _ =
            writeln!(text, "\nWeights on node {node}: layers {} to {}", range.start, range.end - 1);
        for line in part.iter().filter(|line| line.bytes > 0) {
            let _ = writeln!(text, "  {:<56} {:>12}", line.what, mib(line.bytes));
        }
        let _ = writeln!(text, "  {:<56} {:>12}", "in all", mib(ranks::sum(part)));
    }
}

/// Weights as they lie in the files, one session, and scratch.
fn memory_plan(
    opened: &loading::Opened,
    shape: &Shape,
    context: usize,
) -> Result<Vec<PlanLine>, Failure> {
    let mut plan = weight_plan(&opened.gguf, &tensor_specs(shape)).map_err(loading::from_model)?;
    let options = Options::default();
    let Some(drafter) = &opened.drafter else {
        plan.extend(Model::memory_plan(shape, context, &options, false));
        return Ok(plan);
    };
    let spark = SparkShape::from_gguf(drafter, shape).map_err(loading::from_model)?;
    let (what, specs) = match &spark {
        Some(spark) => ("DSpark drafter", spark.specs_in(drafter, shape)),
        None => ("next-token block", drafter_specs(shape)),
    };
    let lines = weight_plan(drafter, &specs).map_err(loading::from_model)?;
    plan.push(PlanLine { what, bytes: lines.iter().map(|line| line.bytes).sum() });
    plan.extend(match &spark {
        Some(spark) => Model::spark_memory_plan(shape, context, &options, spark),
        None => Model::memory_plan(shape, context, &options, true),
    });
    Ok(plan)
}

fn by_kind(gguf: &Gguf) -> BTreeMap<String, (usize, u64)> {
    let mut kinds: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for tensor in gguf.tensors() {
        let entry = kinds.entry(tensor.kind.name()).or_default();
        *entry = (entry.0 + 1, entry.1 + tensor.byte_count().unwrap_or(0));
    }
    kinds
}

fn json(opened: &loading::Opened, session: Option<&Session>, flags: &Inspect) -> String {
    let of_rank = |part: &Vec<PlanLine>| -> serde_json::Value {
        let lines = part.iter().map(|line| (line.what.to_owned(), line.bytes.into()));
        serde_json::Value::Object(lines.collect())
    };
    let parts: Option<Vec<serde_json::Value>> =
        session.map(|session| session.parts.iter().map(of_rank).collect());
    let values = |entries: &[(String, Value)]| -> serde_json::Map<String, serde_json::Value> {
        entries.iter().map(|(key, value)| (key.clone(), json_of(value))).collect()
    };
    let tensors: Vec<serde_json::Value> = opened.gguf.tensors().iter().map(tensor_json).collect();
    let memory = session.map(|session| {
        let lines: serde_json::Map<_, _> =
            session.plan.iter().map(|line| (line.what.to_owned(), line.bytes.into())).collect();
        serde_json::json!({ "context": flags.ctx, "bytes": lines })
    });
    let metadata: &Metadata = opened.gguf.metadata();
    let object = serde_json::json!({
        "file": opened.name,
        "shape": session.map(|session| values(&session.shape.to_metadata())),
        "metadata": values(metadata.entries()),
        "tensors": tensors,
        "memory": memory,
        "ranks": parts,
        "layers": session.and_then(|session| session.stages.as_ref()).map(Stages::to_string),
    });
    format!("{object}\n")
}

fn tensor_json(tensor: &ironstar_gguf::TensorInfo) -> serde_json::Value {
    let known = !matches!(tensor.kind, TensorKind::Other(_));
    serde_json::json!({
        "name": tensor.name, "type": tensor.kind.name(), "dims": tensor.dims, "part": tensor.part,
        "bytes": tensor.byte_count(), "in_planes": tensor.planes().is_some(), "known": known,
    })
}

/// A value as JSON: numbers as numbers, long arrays by their length.
fn json_of(value: &Value) -> serde_json::Value {
    use ironstar_gguf::Array;
    match value {
        Value::String(text) => text.as_str().into(),
        Value::Bool(v) => (*v).into(),
        Value::U8(v) => (*v).into(),
        Value::I8(v) => (*v).into(),
        Value::U16(v) => (*v).into(),
        Value::I16(v) => (*v).into(),
        Value::U32(v) => (*v).into(),
        Value::I32(v) => (*v).into(),
        Value::U64(v) => (*v).into(),
        Value::I64(v) => (*v).into(),
        Value::F32(v) => (*v).into(),
        Value::F64(v) => (*v).into(),
        Value::Array(Array::U32(v)) if v.len() <= ENTRIES_MAX => v.as_slice().into(),
        Value::Array(Array::I32(v)) if v.len() <= ENTRIES_MAX => v.as_slice().into(),
        Value::Array(Array::F32(v)) if v.len() <= ENTRIES_MAX => v.as_slice().into(),
        Value::Array(other) => serde_json::json!({ "entries": other.len() }),
    }
}

/// A value in one line; arrays by their length and first entries.
fn shown(value: &Value) -> String {
    let mut text = match value {
        Value::String(text) => text.clone(),
        Value::Bool(v) => v.to_string(),
        Value::U8(v) => v.to_string(),
        Value::I8(v) => v.to_string(),
        Value::U16(v) => v.to_string(),
        Value::I16(v) => v.to_string(),
        Value::U32(v) => v.to_string(),
        Value::I32(v) => v.to_string(),
        Value::U64(v) => v.to_string(),
        Value::I64(v) => v.to_string(),
        Value::F32(v) => v.to_string(),
        Value::F64(v) => v.to_string(),
        Value::Array(array) => match array {
            ironstar_gguf::Array::U32(v) if v.len() <= ENTRIES_MAX => joined(v),
            ironstar_gguf::Array::I32(v) if v.len() <= ENTRIES_MAX => joined(v),
            ironstar_gguf::Array::F32(v) if v.len() <= ENTRIES_MAX => joined(v),
            other => format!("{} entries", other.len()),
        },
    };
    if let Some((cut, _)) = text.char_indices().nth(VALUE_CHARS_MAX) {
        text.truncate(cut);
        text.push_str("...");
    }
    text.replace('\n', " ")
}

fn joined<T: ToString>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
}

/// Bytes as mebibytes.
fn mib(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "two decimals are shown")]
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    format!("{mebibytes:.2} MiB")
}
