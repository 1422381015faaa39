//! Which tensor gets which format: the mix, then the exceptions of the command line. Pure.

use crate::failure::Failure;
use crate::flags::Mix;
use ironstar_gguf::TensorKind;
use ironstar_model::deepseek_v4::{Field, Kind, TensorSpec, import};
use ironstar_quant::{FORMATS, Format};

/// An exception: tensors of a class, or whose name starts so, get this format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    which: String,
    format: Format,
}

/// What becomes of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The tensor.
    pub spec: TensorSpec,
    /// What it will be stored as.
    pub kind: TensorKind,
}

/// Reads `WHICH=TYPE`.
pub fn parse_rule(text: &str) -> Result<Rule, Failure> {
    let (which, name) = text.split_once('=').ok_or_else(|| {
        Failure::caller(format!("--tensor-type '{text}': WHICH=TYPE is wanted, as in experts=Q4_K"))
    })?;
    let format = Format::from_name(&name.to_uppercase()).ok_or_else(|| {
        let known: Vec<&str> = FORMATS.iter().map(|info| info.name).collect();
        Failure::caller(format!(
            "--tensor-type '{text}': '{name}' is not a format; known are {}",
            known.join(", ")
        ))
    })?;
    if format.info().encode.is_none() {
        return Err(Failure::caller(format!(
            "--tensor-type '{text}': {name} cannot be written yet"
        )));
    }
    Ok(Rule { which: which.to_owned(), format })
}

/// The format of each tensor; fails where a format does not fit a tensor, or a rule fits none.
pub fn plan(specs: Vec<TensorSpec>, mix: Mix, rules: &[Rule]) -> Result<Vec<Planned>, Failure> {
    let mut used = vec![false; rules.len()];
    let mut planned = Vec::with_capacity(specs.len());
    for spec in specs {
        let mut kind = mixed(&spec, mix);
        for (rule, used) in rules.iter().zip(&mut used) {
            if classes(spec.field).contains(&rule.which.as_str())
                || spec.name.starts_with(&rule.which)
            {
                *used = true;
                if spec.kind != Kind::Table {
                    kind = TensorKind::Block(rule.format);
                }
            }
        }
        check(&spec, kind)?;
        planned.push(Planned { spec, kind });
    }
    match rules.iter().zip(&used).find(|(_, used)| !**used) {
        Some((rule, _)) => Err(Failure::caller(format!(
            "--tensor-type '{}=..' fits no tensor; classes are experts, gate, up, down, \
             attention, shared, \
             embedding, output, indexer, compressor, router, mhc; or the start of a name that \
             'ironstar inspect --tensors' lists",
            rule.which
        ))),
        None => Ok(planned),
    }
}

/// Classes that a tensor answers to in `--tensor-type`.
fn classes(field: Field) -> &'static [&'static str] {
    match field {
        Field::ExpertGate => &["experts", "gate"],
        Field::ExpertUp => &["experts", "up"],
        Field::ExpertDown => &["experts", "down"],
        Field::SharedGate | Field::SharedUp | Field::SharedDown => &["shared"],
        Field::QueryA | Field::QueryB | Field::KeyValue | Field::OutputA | Field::OutputB => {
            &["attention"]
        }
        Field::DraftEmbeddingProjection | Field::DraftStreamProjection => &["attention"],
        Field::Embedding => &["embedding"],
        Field::Output => &["output"],
        Field::IndexQuery | Field::IndexWeights => &["indexer"],
        Field::CompressorValues
        | Field::CompressorScores
        | Field::CompressorPositions
        | Field::IndexCompressorValues
        | Field::IndexCompressorScores
        | Field::IndexCompressorPositions => &["compressor"],
        Field::Router => &["router"],
        Field::HcAttnMatrix | Field::HcFfnMatrix | Field::HeadMatrix => &["mhc"],
        _ => &[],
    }
}

/// The layout that the yardstick reads (spec 7.2), with the mix's formats for what is large.
fn mixed(spec: &TensorSpec, mix: Mix) -> TensorKind {
    let (experts, dense) = match mix {
        Mix::Mxfp4 => (Format::Mxfp4, Format::Q8_0),
        Mix::Q2 => (Format::Q2K, Format::Q8_0),
        Mix::Q4 => (Format::Q4K, Format::Q8_0),
        Mix::Q6 => (Format::Q6K, Format::Q8_0),
        Mix::Q8 => (Format::Q8_0, Format::Q8_0),
        Mix::Bf16 => (Format::Bf16, Format::Bf16),
        Mix::F32 => (Format::F32, Format::F32),
    };
    let kind = import::default_kind(spec);
    match (kind, spec.kind) {
        (TensorKind::Block(Format::F16), _) if mix == Mix::F32 => TensorKind::Block(Format::F32),
        (_, Kind::Routed) => TensorKind::Block(experts),
        (TensorKind::Block(Format::Q8_0), Kind::Dense) => TensorKind::Block(dense),
        _ => kind,
    }
}

fn check(spec: &TensorSpec, kind: TensorKind) -> Result<(), Failure> {
    let TensorKind::Block(format) = kind else { return Ok(()) };
    let info = format.info();
    let fits = match spec.kind {
        Kind::Vector | Kind::Float => matches!(format, Format::F32 | Format::F16 | Format::Bf16),
        Kind::Dense | Kind::Routed | Kind::Table => true,
    };
    if !fits {
        return Err(Failure::caller(format!(
            "{}: {} was asked for, but this tensor is used as floats: F32, F16 or BF16",
            spec.name, info.name
        )));
    }
    match format.row_bytes(spec.dims[0]) {
        Some(_) => Ok(()),
        None => Err(Failure::caller(format!(
            "{}: {} was asked for, but it needs rows of whole blocks of {} and this \
             tensor's have {}",
            spec.name, info.name, info.block_elements, spec.dims[0]
        ))),
    }
}
