//! `ironstar inspect`: what a model file holds and what running it takes.

use crate::failure::Failure;
use crate::flags::Inspect;
use crate::{loading, print};
use ironstar_gguf::{Gguf, Metadata, TensorKind, Value};
use ironstar_model::deepseek_v4::{SparkShape, drafter_specs, tensor_specs, weight_plan};
use ironstar_model::{Model, Options, PlanLine, Shape};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Longest text of a metadata value that is shown.
const VALUE_CHARS_MAX: usize = 100;

/// Most entries of an array that are shown.
const ENTRIES_MAX: usize = 128;

/// Runs the command.
pub fn run(flags: &Inspect) -> Result<(), Failure> {
    let opened = loading::open(flags.model.as_deref(), None)?;
    let shape = Shape::from_metadata(opened.gguf.metadata())
        .map_err(|error| loading::in_file(&opened.name, loading::from_model(error)))?;
    if flags.ctx > shape.context {
        return Err(Failure::caller(format!(
            "--ctx {}: this model was made for at most {} tokens",
            flags.ctx, shape.context
        )));
    }
    let plan = memory_plan(&opened, &shape, flags.ctx)
        .map_err(|failure| loading::in_file(&opened.name, failure))?;
    if flags.json {
        return print(json(&opened, &shape, &plan, flags).as_bytes());
    }
    let mut text = String::new();
    let name = opened.gguf.metadata().opt_str("general.name").ok().flatten().unwrap_or("no name");
    let _ = writeln!(text, "{}: {name}", opened.name);
    let _ = writeln!(text, "\nShape");
    for (key, value) in shape.to_metadata() {
        let _ = writeln!(text, "  {key:<46} {}", shown(&value));
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
    let _ = writeln!(text, "\nMemory for a session of {} tokens", flags.ctx);
    for line in &plan {
        let _ = writeln!(text, "  {:<28} {:>12}", line.what, mib(line.bytes));
    }
    let _ =
        writeln!(text, "  {:<28} {:>12}", "in all", mib(plan.iter().map(|line| line.bytes).sum()));
    print(text.as_bytes())
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

fn json(opened: &loading::Opened, shape: &Shape, plan: &[PlanLine], flags: &Inspect) -> String {
    let values = |entries: &[(String, Value)]| -> serde_json::Map<String, serde_json::Value> {
        entries.iter().map(|(key, value)| (key.clone(), json_of(value))).collect()
    };
    let tensors: Vec<serde_json::Value> = opened.gguf.tensors().iter().map(tensor_json).collect();
    let lines: serde_json::Map<_, _> =
        plan.iter().map(|line| (line.what.to_owned(), line.bytes.into())).collect();
    let metadata: &Metadata = opened.gguf.metadata();
    let object = serde_json::json!({
        "file": opened.name,
        "shape": values(&shape.to_metadata()),
        "metadata": values(metadata.entries()),
        "tensors": tensors,
        "memory": { "context": flags.ctx, "bytes": lines },
    });
    format!("{object}\n")
}

fn tensor_json(tensor: &ironstar_gguf::TensorInfo) -> serde_json::Value {
    let known = !matches!(tensor.kind, TensorKind::Other(_));
    serde_json::json!({
        "name": tensor.name, "type": tensor.kind.name(), "dims": tensor.dims, "part": tensor.part,
        "bytes": tensor.byte_count(), "known": known,
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
