//! `ironstar quantize`: published weights or a GGUF file in, a GGUF file in the yardstick's layout
//! out.

mod encode;
mod importance;
mod output;
mod plan;
mod source;

use crate::failure::Failure;
use crate::flags::Quantize;
use crate::{loading, outfile, print};
use importance::{Importances, Reach};
use ironstar_gguf::{Array, Value};
use ironstar_model::deepseek_v4::{TensorSpec, tensor_specs};
use ironstar_text::Parts;
use output::{Inputs, Job, bytes_of};
use plan::Planned;
use source::Source;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Runs the command.
pub fn run(flags: &Quantize) -> Result<(), Failure> {
    let source = Source::open(&flags.input)?;
    let rules = flags
        .tensor_type
        .iter()
        .map(|rule| plan::parse_rule(rule))
        .collect::<Result<Vec<_>, _>>()?;
    let shape = source.shape()?;
    let present = |specs: Vec<TensorSpec>| -> Vec<TensorSpec> {
        specs.into_iter().filter(|spec| !spec.optional || source.has(spec)).collect()
    };
    let mut specs = present(tensor_specs(&shape));
    let backbone = specs.len();
    let drafts = source.drafter(&shape)?;
    if let Some(drafts) = &drafts {
        specs.extend(present(drafts.specs.clone()));
    }
    let mut model = plan::plan(specs, flags.mix, &rules)?;
    let drafter = model.split_off(backbone);

    let name = flags.name.clone().or_else(|| source.name()).unwrap_or_else(|| "unnamed".into());
    let parts = source.tokenizer(flags.tokenizer.as_deref())?;
    check_tokens(&parts, shape.vocabulary)?;
    let mut metadata = shape.to_metadata();
    let temperature = flags.default_temp.or(source.default_temperature());
    metadata.extend(general(&name, temperature));
    metadata.extend(vocabulary(&parts));
    if let Some(missing) = specs_of(&model, &drafter).find_map(|spec| source.missing(spec)) {
        return Err(Failure::caller(format!(
            "{missing} is missing in the input; it is incomplete, or its metadata belongs to \
             another model"
        )));
    }
    let importances = flags.imatrix.as_deref().map(Importances::open).transpose()?;
    let mut reach = None;
    if let Some(importances) = &importances {
        let all = model.iter().chain(&drafter);
        let found = importances.check(all, &source, flags.imatrix_strict)?;
        metadata.extend(importances.metadata(found.weighed));
        reach = Some(found);
    }
    let mut jobs = vec![Job { path: &flags.output, metadata, tensors: model }];
    let kind = drafts.as_ref().map_or("mtp", |drafts| drafts.kind);
    let beside = ironstar_engine::named_beside(&flags.output, kind).ok_or_else(|| {
        Failure::caller(format!("{}: a file name is wanted", flags.output.display()))
    })?;
    if let Some(drafts) = drafts {
        let mut metadata = drafts.metadata;
        metadata.extend(general(&format!("{name} {}", drafts.what), temperature));
        jobs.push(Job { path: &beside, metadata, tensors: drafter });
    }
    if !flags.dry_run {
        for job in &jobs {
            outfile::check(job.path, &[&flags.input], flags.force)?;
        }
    }
    report(&jobs, reach, flags.json)?;
    if flags.dry_run {
        return Ok(());
    }
    write(flags, &jobs, &source, importances.as_ref())
}

fn check_tokens(parts: &Parts, vocabulary: usize) -> Result<(), Failure> {
    if parts.tokens.len() == vocabulary {
        return Ok(());
    }
    Err(Failure::caller(format!(
        "the tokenizer has {} tokens and the model's vocabulary {vocabulary}; name the right one \
         with --tokenizer",
        parts.tokens.len()
    )))
}

fn write(
    flags: &Quantize,
    jobs: &[Job<'_>],
    source: &Source,
    importances: Option<&Importances>,
) -> Result<(), Failure> {
    let mut identity = source.identity(&flags.input);
    if let Some(imatrix) = flags.imatrix.as_deref().and_then(source::described) {
        let _ = write!(identity, "\nimportances {imatrix}");
    }
    let threads = flags.threads.map_or_else(loading::cores, usize::from);
    let inputs = Inputs { source, importances, identity, threads };
    jobs.iter().try_for_each(|job| output::write(job, &inputs))
}

/// The tensors of both files.
fn specs_of<'a>(
    model: &'a [Planned],
    drafter: &'a [Planned],
) -> impl Iterator<Item = &'a TensorSpec> {
    model.iter().chain(drafter).map(|planned| &planned.spec)
}

fn general(name: &str, temperature: Option<f32>) -> Vec<(String, Value)> {
    let text = |key: &str, value: &str| (key.to_owned(), Value::String(value.to_owned()));
    let mut all = vec![
        text("general.name", name),
        text("general.type", "model"),
        ("general.quantization_version".into(), Value::U32(2)),
        ("general.alignment".into(), Value::U32(32)),
    ];
    if let Some(temperature) = temperature {
        all.push(("general.sampling.temp".into(), Value::F32(temperature)));
    }
    all
}

/// The tokenizer as GGUF files carry it.
fn vocabulary(parts: &Parts) -> Vec<(String, Value)> {
    let kinds = parts.kinds.iter().map(|kind| i32::try_from(*kind).unwrap_or(1)).collect();
    let merges = parts.merges.iter().map(|merge| merge.clone().into_bytes()).collect();
    let mut all = vec![
        ("tokenizer.ggml.model".to_owned(), Value::String("gpt2".into())),
        ("tokenizer.ggml.pre".to_owned(), Value::String(parts.pre.clone())),
        ("tokenizer.ggml.tokens".to_owned(), Value::Array(Array::String(parts.tokens.clone()))),
        ("tokenizer.ggml.token_type".to_owned(), Value::Array(Array::I32(kinds))),
        ("tokenizer.ggml.merges".to_owned(), Value::Array(Array::String(merges))),
        ("tokenizer.ggml.add_bos_token".to_owned(), Value::Bool(false)),
    ];
    let ids = [("bos", parts.bos), ("eos", parts.eos), ("padding", parts.pad)];
    for (name, id) in ids {
        all.extend(id.map(|id| (format!("tokenizer.ggml.{name}_token_id"), Value::U32(id))));
    }
    all
}

/// What will be written: bytes by format, for each file, and what importances do for it.
fn report(jobs: &[Job<'_>], reach: Option<Reach>, json: bool) -> Result<(), Failure> {
    let mut text = String::new();
    let mut files = Vec::new();
    for job in jobs {
        let total: u64 = job.tensors.iter().map(bytes_of).sum();
        let mut formats: BTreeMap<String, (usize, u64)> = BTreeMap::new();
        for planned in &job.tensors {
            let name = planned.kind.name();
            let entry = formats.entry(name).or_default();
            *entry = (entry.0 + 1, entry.1 + bytes_of(planned));
        }
        let _ =
            writeln!(text, "{}: {} tensors, {total} bytes", job.path.display(), job.tensors.len());
        for (format, (tensors, bytes)) in &formats {
            let _ = writeln!(text, "  {format:<8} {tensors:>6} tensors {bytes:>15} bytes");
        }
        files.push(serde_json::json!({
            "file": job.path.display().to_string(), "tensors": job.tensors.len(), "bytes": total,
            "formats": formats,
        }));
    }
    if let Some(Reach { weighed, unknown }) = reach {
        let _ = writeln!(text, "importances: {weighed} tensors are weighed, {unknown} have none");
    }
    if json {
        let mut all = serde_json::json!({ "files": files });
        if let Some(Reach { weighed, unknown }) = reach {
            all["importances"] = serde_json::json!({ "weighed": weighed, "unknown": unknown });
        }
        text = format!("{all}\n");
    }
    print(text.as_bytes())
}
