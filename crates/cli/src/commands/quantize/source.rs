//! Where weights come from: a published checkpoint, or another GGUF file.

use crate::failure::Failure;
use crate::loading;
use ironstar_gguf::safetensors::Checkpoint;
use ironstar_gguf::{Bytes, Gguf, TensorKind, Value};
use ironstar_model::Shape;
use ironstar_model::deepseek_v4::{SparkShape, TensorSpec, drafter_specs, import};
use ironstar_quant::Format;
use ironstar_text::{Parts, Tokenizer};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Rows of one matrix of a tensor; a vector is one row.
#[must_use]
pub fn rows_of(spec: &TensorSpec) -> usize {
    spec.dims.get(1).copied().unwrap_or(1)
}

/// A drafter that the input has.
pub struct Drafts {
    /// End of its file's name.
    pub kind: &'static str,
    /// What it is called.
    pub what: &'static str,
    /// Its tensors, as they are named in the file that is written.
    pub specs: Vec<TensorSpec>,
    /// Metadata of its file.
    pub metadata: Vec<(String, Value)>,
}

/// An opened input.
pub enum Source {
    /// Published safetensors.
    Published {
        /// The weights.
        checkpoint: Checkpoint,
        /// `config.json`.
        config: String,
        /// The folder.
        folder: PathBuf,
    },
    /// A GGUF file and its next-token block.
    Gguf {
        /// The model.
        model: Gguf,
        /// The next-token block.
        drafter: Option<Gguf>,
    },
}

impl Source {
    /// Opens a folder of safetensors or a GGUF file.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        if !path.is_dir() {
            let opened = loading::open(Some(path), None)?;
            return Ok(Source::Gguf { model: opened.gguf, drafter: opened.drafter });
        }
        let config_path = path.join("config.json");
        let config = crate::commands::read_text(&config_path)?;
        let checkpoint = Checkpoint::open(path).map_err(|error| loading::from_gguf(&error))?;
        Ok(Source::Published { checkpoint, config, folder: path.to_owned() })
    }

    /// The numbers of the model.
    pub fn shape(&self) -> Result<Shape, Failure> {
        match self {
            Source::Published { config, .. } => Shape::from_config(config),
            Source::Gguf { model, .. } => Shape::from_metadata(model.metadata()),
        }
        .map_err(loading::from_model)
    }

    /// The vocabulary, from the input or from a file that was named.
    pub fn tokenizer(&self, named: Option<&Path>) -> Result<Parts, Failure> {
        let path = match (self, named) {
            (_, Some(path)) => path.to_owned(),
            (Source::Published { folder, .. }, None) => folder.join("tokenizer.json"),
            (Source::Gguf { model, .. }, None) => {
                return Ok(loading::tokenizer(model)?.parts());
            }
        };
        let json = std::fs::read(&path).map_err(|error| Failure::file("reading", &path, &error))?;
        Tokenizer::from_json(&json)
            .map(|tokenizer| tokenizer.parts())
            .map_err(|error| Failure::caller(format!("{}: {error}", path.display())))
    }

    /// The next-token block or DSpark, whichever there is.
    pub fn drafter(&self, shape: &Shape) -> Result<Option<Drafts>, Failure> {
        let spark = match self {
            Source::Published { checkpoint, config, .. } => {
                let has = |name: &str| checkpoint.tensor(name).is_some();
                SparkShape::from_config(config, &has, shape)
            }
            Source::Gguf { drafter, .. } => {
                drafter.as_ref().map_or(Ok(None), |file| SparkShape::from_gguf(file, shape))
            }
        }
        .map_err(loading::from_model)?;
        if let Some(spark) = spark {
            let specs = match self {
                Source::Gguf { drafter: Some(file), .. } => spark.specs_in(file, shape),
                _ => ironstar_model::deepseek_v4::spark_specs(shape, &spark),
            };
            let (kind, what, metadata) = ("dspark", "DSpark drafter", spark.to_metadata(shape));
            return Ok(Some(Drafts { kind, what, specs, metadata }));
        }
        let has_mtp = match self {
            Source::Published { checkpoint, .. } => {
                checkpoint.tensor("mtp.0.e_proj.weight").is_some()
            }
            Source::Gguf { drafter, .. } => drafter.is_some(),
        };
        Ok(has_mtp.then(|| Drafts {
            kind: "mtp",
            what: "next-token block",
            specs: drafter_specs(shape),
            metadata: import::drafter_metadata(shape),
        }))
    }

    /// The model's name as the input gives it.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        match self {
            Source::Published { folder, .. } => {
                let folder = folder.canonicalize().ok()?;
                Some(folder.file_name()?.to_string_lossy().into_owned())
            }
            Source::Gguf { model, .. } => {
                model.metadata().opt_str("general.name").ok().flatten().map(str::to_owned)
            }
        }
    }

    /// Temperature that the input recommends.
    #[must_use]
    pub fn default_temperature(&self) -> Option<f32> {
        let Source::Gguf { model, .. } = self else { return None };
        model.metadata().opt_f32("general.sampling.temp").ok().flatten()
    }

    /// What of a tensor is not there, by the input's name for it.
    #[must_use]
    pub fn missing(&self, spec: &TensorSpec) -> Option<String> {
        match self {
            Source::Published { checkpoint, .. } => {
                spec.published_names().into_iter().find(|name| checkpoint.tensor(name).is_none())
            }
            Source::Gguf { .. } => self.file_of(spec).is_none().then(|| spec.name.clone()),
        }
    }

    /// Whether a tensor that a file may leave out is there.
    #[must_use]
    pub fn has(&self, spec: &TensorSpec) -> bool {
        self.missing(spec).is_none()
    }

    /// The bytes of a tensor that is already stored as wanted.
    pub fn stored_as(
        &self,
        spec: &TensorSpec,
        wanted: TensorKind,
    ) -> Result<Option<Bytes>, Failure> {
        let Source::Gguf { .. } = self else { return Ok(None) };
        let (file, info) = self.need(spec)?;
        if info.kind != wanted {
            return Ok(None);
        }
        file.bytes(info).map(Some).map_err(|error| loading::from_gguf(&error))
    }

    /// The values of some rows of one matrix of a stack (index 0 for a plain tensor), in the order
    /// of the file.
    pub fn values(
        &self,
        spec: &TensorSpec,
        index: usize,
        rows: Range<usize>,
    ) -> Result<Vec<f32>, Failure> {
        match self {
            Source::Published { checkpoint, .. } => {
                let name = &spec.published_names()[index];
                let shape =
                    checkpoint.value_shape(name).map_err(|error| loading::from_gguf(&error))?;
                let wanted: Vec<u64> =
                    spec.dims.iter().take(2).rev().map(|dim| *dim as u64).collect();
                if shape != wanted {
                    return Err(Failure::caller(format!(
                        "{name} has dims {shape:?}, but config.json wants {wanted:?}"
                    )));
                }
                checkpoint.rows_to_f32(name, rows).map_err(|error| loading::from_gguf(&error))
            }
            Source::Gguf { .. } => {
                let (file, info) = self.need(spec)?;
                let TensorKind::Block(format) = info.kind else {
                    return Err(Failure::caller(format!(
                        "{} is stored as {}, but floats are wanted",
                        spec.name,
                        info.kind.name()
                    )));
                };
                let bytes = file.bytes(info).map_err(|error| loading::from_gguf(&error))?;
                let matrix = &bytes[index * (bytes.len() / spec.stack())..];
                let row = bytes.len() / spec.stack() / rows_of(spec);
                let mut values = vec![0.0; rows.len() * spec.dims[0]];
                (format.info().decode)(&matrix[rows.start * row..rows.end * row], &mut values);
                Ok(values)
            }
        }
    }

    /// Whether a tensor is taken over as it is, so that nothing is encoded.
    #[must_use]
    pub fn copies(&self, spec: &TensorSpec, kind: TensorKind) -> bool {
        match self {
            Source::Published { .. } => kind == TensorKind::Block(Format::Mxfp4),
            Source::Gguf { .. } => self.file_of(spec).is_some_and(|(_, info)| info.kind == kind),
        }
    }

    /// The bytes of one matrix of a published stack, where the model's own import makes them better
    /// than a detour over floats: FP4 as MXFP4 without loss, and ids.
    pub fn imported(
        &self,
        spec: &TensorSpec,
        index: usize,
        kind: TensorKind,
    ) -> Result<Option<Vec<u8>>, Failure> {
        match self {
            Source::Published { checkpoint, .. }
                if matches!(kind, TensorKind::I32 | TensorKind::Block(Format::Mxfp4)) =>
            {
                import::part_bytes(checkpoint, spec, index, kind, None)
                    .map(Some)
                    .map_err(loading::from_model)
            }
            _ => Ok(None),
        }
    }

    fn file_of(&self, spec: &TensorSpec) -> Option<(&Gguf, &ironstar_gguf::TensorInfo)> {
        let Source::Gguf { model, drafter } = self else { return None };
        let files = [Some(model), drafter.as_ref()];
        files.into_iter().flatten().find_map(|file| Some((file, file.tensor(&spec.name)?)))
    }

    fn need(&self, spec: &TensorSpec) -> Result<(&Gguf, &ironstar_gguf::TensorInfo), Failure> {
        let (file, info) = self
            .file_of(spec)
            .ok_or_else(|| Failure::caller(format!("{} is missing in the input", spec.name)))?;
        let dims: Vec<u64> = spec.dims.iter().map(|dim| *dim as u64).collect();
        if info.dims == dims {
            return Ok((file, info));
        }
        Err(Failure::caller(format!(
            "{} has dims {:?}, but the metadata wants {dims:?}",
            spec.name, info.dims
        )))
    }

    /// What a partial output was made from: it is continued only from the same input.
    #[must_use]
    pub fn identity(&self, path: &Path) -> String {
        let mut files: Vec<PathBuf> = match self {
            Source::Gguf { .. } => vec![path.to_owned()],
            Source::Published { folder, .. } => std::fs::read_dir(folder)
                .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
                .unwrap_or_default(),
        };
        files.sort();
        files.iter().filter_map(|file| described(file)).collect::<Vec<_>>().join("\n")
    }
}

/// A file's name, length and time of change.
#[must_use]
pub fn described(file: &Path) -> Option<String> {
    let about = std::fs::metadata(file).ok()?;
    let changed = about.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(format!("{} {} {}", file.display(), about.len(), changed.as_nanos()))
}
