//! Reads weights into a backend: walks the tensor table, checks each tensor, and hands out typed
//! handles.

use super::dspark::SparkShape;
use super::part::{Piece, check_ranks, check_tensor, cut};
use super::pipeline::Pipe;
use super::shape::Shape;
use super::weights::{Field, Kind, Place, TensorSpec, drafter_specs, tensor_specs};
use crate::{Error, Fingerprint, Progress};
use ironstar_device::{
    Arena, Backend, Buffer, Element, Ffn, HcWeights, Matrix, MatrixPart, MatrixSource, Part,
    RouteBy, SharedBytes,
};
use ironstar_gguf::{Bytes, DataPlace, Gguf, TensorInfo, TensorKind};
use ironstar_quant::Format;
use ironstar_quant::planes::Layout;
use std::collections::{HashMap, HashSet};

/// Formats that [`Kind::Float`] and [`Kind::Vector`] accept.
const FLOATS: [Format; 3] = [Format::F32, Format::F16, Format::Bf16];

/// The backbone around its layers.
pub(super) struct Weights {
    /// [vocabulary, d]
    embedding: Option<Matrix>,
    /// Those that this node has, with their numbers.
    pub layers: Vec<(usize, Block)>,
    head: Option<Head>,
    /// [vocabulary, d]
    output: Option<Matrix>,
}

impl Weights {
    pub fn embedding(&self) -> Matrix {
        self.embedding.expect("the first node has it, and the one that guesses")
    }

    pub fn head(&self) -> &Head {
        self.head.as_ref().expect("the last node has it")
    }

    pub fn output(&self) -> Matrix {
        self.output.expect("the last node has it")
    }
}

/// One layer, the draft block, or a stage of DSpark.
pub(super) struct Block {
    pub hc_attn: HcWeights,
    pub attn_norm: Buffer,
    /// [q_rank, d]
    pub q_a: Matrix,
    pub q_norm: Buffer,
    /// [heads * D, q_rank]
    pub q_b: Matrix,
    /// [D, d]
    pub kv: Matrix,
    pub kv_norm: Buffer,
    /// `[heads]`
    pub sinks: Buffer,
    /// [groups * rank, heads * D / groups]
    pub output_a: Matrix,
    /// [d, groups * rank]
    pub output_b: Matrix,
    pub compressor: Option<Compressor>,
    pub indexer: Option<Indexer>,
    pub hc_ffn: HcWeights,
    pub ffn_norm: Buffer,
    /// [experts, d]
    pub router: Matrix,
    pub route_by: RouteBy,
    pub routed: Ffn,
    pub shared: Ffn,
}

/// `[parts * width, d]` twice, `[ratio, parts * width]` and `[width]`.
pub(super) struct Compressor {
    pub values: Matrix,
    pub scores: Matrix,
    pub positions: Buffer,
    pub norm: Buffer,
}

pub(super) struct Indexer {
    /// [heads * width, q_rank]
    pub query: Matrix,
    /// [heads, d]
    pub weights: Matrix,
    pub compressor: Compressor,
}

/// What collapses the streams before the output matrix.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub mix: HcWeights,
    pub norm: Buffer,
}

/// What guesses tokens.
pub(super) enum Drafter {
    Mtp(Box<Mtp>),
    Spark(Box<Spark>),
}

/// The MTP block.
pub(super) struct Mtp {
    /// [d, d]
    pub embedding_projection: Matrix,
    /// [d, d]
    pub stream_projection: Matrix,
    pub embedding_norm: Buffer,
    pub stream_norm: Buffer,
    pub block: Block,
    pub head: Head,
}

/// DSpark.
pub(super) struct Spark {
    pub shape: SparkShape,
    /// [d, targets * d]
    pub main_projection: Matrix,
    pub main_norm: Buffer,
    pub stages: Vec<Block>,
    pub head: Head,
    /// [vocabulary, rank] both
    pub markov_embedding: Matrix,
    pub markov_output: Matrix,
    pub confidence: ConfidenceHead,
}

/// Weights of the confidence head and of the mix before it, in our own memory.
pub(super) struct ConfidenceHead {
    /// [streams, streams * d]
    pub matrix: Vec<f32>,
    /// `[streams]`
    pub base: Vec<f32>,
    /// 1
    pub scale: Vec<f32>,
    /// [d + rank]
    pub weights: Vec<f32>,
}

/// What a file gave.
pub(super) struct Loaded<W> {
    pub weights: W,
    pub fingerprint: Fingerprint,
    /// Names of tensors that the table does not know.
    pub ignored: Vec<String>,
}

/// Loads the backbone, as far as this node has it; `drafts` if something guesses tokens.
pub(super) fn backbone(
    gguf: &Gguf,
    shape: &Shape,
    (pipe, drafts): (Option<&Pipe>, bool),
    backend: &mut dyn Backend,
    arena: Arena,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Loaded<Weights>, Error> {
    let specs = tensor_specs(shape);
    let holds = |spec: &TensorSpec| pipe.is_none_or(|p| p.stages.holds(p.stage, spec, drafts));
    let file = (gguf, &specs[..], shape);
    let (mut held, fingerprint) = Held::read(file, &holds, backend, arena, progress)?;
    let range = pipe.map_or(0..shape.layers, |pipe| pipe.stages.range(pipe.stage));
    let layers = range.map(|layer| (layer, held.block(Place::Layer(layer)))).collect();
    let is_last = held.has(Place::Top, Field::Output);
    let has_embedding = held.has(Place::Top, Field::Embedding);
    let weights = Weights {
        embedding: has_embedding.then(|| held.matrix(Place::Top, Field::Embedding)),
        layers,
        head: is_last.then(|| held.head(Place::Top, Field::OutputNorm)),
        output: is_last.then(|| held.matrix(Place::Top, Field::Output)),
    };
    Ok(Loaded { weights, fingerprint, ignored: ignored(gguf, &specs) })
}

/// What a node that does not run it must know of the drafter that a file holds.
pub(super) fn drafter_print(
    gguf: &Gguf,
    shape: &Shape,
) -> Result<(Fingerprint, Option<SparkShape>), Error> {
    let Some(numbers) = SparkShape::from_gguf(gguf, shape)? else {
        return Ok((fingerprint(gguf, &drafter_specs(shape), shape)?, None));
    };
    let print = fingerprint(gguf, &numbers.specs_in(gguf, shape), shape)?;
    Ok((with_numbers(print, &numbers), Some(numbers)))
}

fn with_numbers(mut print: Fingerprint, numbers: &SparkShape) -> Fingerprint {
    print.add(format!("{numbers:?}").as_bytes());
    print
}

/// Loads the drafter that a file holds.
pub(super) fn drafter(
    gguf: &Gguf,
    shape: &Shape,
    backend: &mut dyn Backend,
    arena: Arena,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Loaded<Drafter>, Error> {
    let Some(numbers) = SparkShape::from_gguf(gguf, shape)? else {
        let Loaded { weights, fingerprint, ignored } = mtp(gguf, shape, backend, arena, progress)?;
        return Ok(Loaded { weights: Drafter::Mtp(Box::new(weights)), fingerprint, ignored });
    };
    let specs = numbers.specs_in(gguf, shape);
    let file = (gguf, &specs[..], shape);
    let (mut held, print) = Held::read(file, &|_| true, backend, arena, progress)?;
    let fingerprint = with_numbers(print, &numbers);
    let (first, last) = (Place::Spark(0), Place::Spark(numbers.stages - 1));
    let host = |field: Field| {
        let spec = specs.iter().find(|spec| (spec.place, spec.field) == (last, field));
        decoded(gguf, spec.expect("the table lists it for the last stage"))
    };
    let confidence = ConfidenceHead {
        matrix: host(Field::HeadMatrix)?,
        base: host(Field::HeadBase)?,
        scale: host(Field::HeadScale)?,
        weights: host(Field::SparkConfidence)?,
    };
    let spark = Spark {
        main_projection: held.matrix(first, Field::SparkMainProjection),
        main_norm: held.buffer(first, Field::SparkMainNorm),
        stages: (0..numbers.stages).map(|stage| held.block(Place::Spark(stage))).collect(),
        head: held.head(last, Field::DraftNorm),
        markov_embedding: held.matrix(last, Field::SparkMarkovEmbedding),
        markov_output: held.matrix(last, Field::SparkMarkovOutput),
        confidence,
        shape: numbers,
    };
    let weights = Drafter::Spark(Box::new(spark));
    Ok(Loaded { weights, fingerprint, ignored: ignored(gguf, &specs) })
}

/// Values of a float tensor, where they are wanted in our own memory.
fn decoded(gguf: &Gguf, spec: &TensorSpec) -> Result<Vec<f32>, Error> {
    let mut values = vec![0.0; spec.dims.iter().product()];
    if let Some(info) = find(gguf, spec)?
        && let TensorKind::Block(format) = info.kind
    {
        (format.info().decode)(&gguf.bytes(info)?, &mut values);
    }
    Ok(values)
}

/// Loads the MTP block.
fn mtp(
    gguf: &Gguf,
    shape: &Shape,
    backend: &mut dyn Backend,
    arena: Arena,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Loaded<Mtp>, Error> {
    let specs = drafter_specs(shape);
    let file = (gguf, &specs[..], shape);
    let (mut held, fingerprint) = Held::read(file, &|_| true, backend, arena, progress)?;
    let weights = Mtp {
        embedding_projection: held.matrix(Place::Draft, Field::DraftEmbeddingProjection),
        stream_projection: held.matrix(Place::Draft, Field::DraftStreamProjection),
        embedding_norm: held.buffer(Place::Draft, Field::DraftEmbeddingNorm),
        stream_norm: held.buffer(Place::Draft, Field::DraftStreamNorm),
        block: held.block(Place::Draft),
        head: held.head(Place::Draft, Field::DraftNorm),
    };
    Ok(Loaded { weights, fingerprint, ignored: ignored(gguf, &specs) })
}

/// Finds a tensor and checks type and dims; `None` where it is absent and may be.
pub fn find<'g>(gguf: &'g Gguf, spec: &TensorSpec) -> Result<Option<&'g TensorInfo>, Error> {
    let Some(info) = gguf.tensor(&spec.name) else {
        if spec.optional {
            return Ok(None);
        }
        return Err(Error::Missing { name: spec.name.clone(), dims: spec.dims.clone() });
    };
    let wanted: Vec<u64> =
        spec.dims.iter().map(|&d| u64::try_from(d).unwrap_or(u64::MAX)).collect();
    let trailing_ones =
        |dims: &[u64]| dims.len() - dims.iter().rev().take_while(|&&d| d == 1).count();
    if info.dims[..trailing_ones(&info.dims)] != wanted[..trailing_ones(&wanted)] {
        let (found, wanted) = (format!("dims {:?}", info.dims), format!("dims {wanted:?}"));
        return Err(Error::Tensor { name: spec.name.clone(), found, wanted });
    }
    let (fits, wanted) = match (spec.kind, info.kind) {
        (Kind::Table, kind) => (kind == TensorKind::I32, "type I32".to_owned()),
        (Kind::Vector | Kind::Float, TensorKind::Block(f)) => {
            (FLOATS.contains(&f), "type F32, F16 or BF16".to_owned())
        }
        (Kind::Dense | Kind::Routed, TensorKind::Block(f)) => (
            f.row_bytes(spec.dims[0]).is_some(),
            format!("a type whose blocks fill rows of {} columns", spec.dims[0]),
        ),
        (_, _) => (false, "a float or block type that this engine knows".to_owned()),
    };
    if !fits {
        let found = format!("type {}", info.kind.name());
        return Err(Error::Tensor { name: spec.name.clone(), found, wanted });
    }
    Ok(Some(info))
}

fn ignored(gguf: &Gguf, specs: &[TensorSpec]) -> Vec<String> {
    let known: HashSet<&str> = specs.iter().map(|s| s.name.as_str()).collect();
    let names = gguf.tensors().iter().map(|t| &t.name);
    names.filter(|name| !known.contains(name.as_str())).cloned().collect()
}

/// Hash of the shape, the table of tensors and their bytes: all of a tensor up to 1 MiB, of a
/// larger one 1,024 samples of 64 bytes at equal distances, its end among them. So a small model
/// that differs in one weight is another model, and a large one that was trained further is too;
/// what is not seen is a change of a few weights of a large tensor by hand.
fn fingerprint(gguf: &Gguf, specs: &[TensorSpec], shape: &Shape) -> Result<Fingerprint, Error> {
    Print::new(specs, shape).all(gguf)
}

/// [`fingerprint`] while a file is read: each tensor is looked at once its bytes are at hand, in
/// the order of the table.
struct Print<'s> {
    hash: Fingerprint,
    rest: std::slice::Iter<'s, TensorSpec>,
}

impl<'s> Print<'s> {
    fn new(specs: &'s [TensorSpec], shape: &Shape) -> Self {
        let mut hash = Fingerprint::default();
        hash.add(format!("{shape:?}").as_bytes());
        Print { hash, rest: specs.iter() }
    }

    /// Takes in this tensor of the table and those before it.
    fn up_to(&mut self, gguf: &Gguf, last: &TensorSpec, data: &Data) -> Result<(), Error> {
        while let Some(spec) = self.rest.next() {
            let is_last = spec.name == last.name;
            self.add(gguf, spec, is_last.then_some(data))?;
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// With those that are left.
    fn all(mut self, gguf: &Gguf) -> Result<Fingerprint, Error> {
        while let Some(spec) = self.rest.next() {
            self.add(gguf, spec, None)?;
        }
        Ok(self.hash)
    }

    /// What is hashed are blocks, however the file has them: a packed model is the same model.
    fn add(&mut self, gguf: &Gguf, spec: &TensorSpec, data: Option<&Data>) -> Result<(), Error> {
        const WHOLE: usize = 1 << 20;
        const SAMPLE: usize = 64;
        const SAMPLES: usize = 1024;
        let Some(info) = find(gguf, spec)? else { return Ok(()) };
        let about = format!("{} {} {:?}", spec.name, info.kind.name(), info.dims);
        self.hash.add(about.as_bytes());
        let data = data.map_or_else(|| Data::stored(gguf, info), |data| Ok(data.clone()))?;
        if data.len() <= WHOLE {
            let mut whole = vec![0; data.len()];
            data.read(0, &mut whole);
            self.hash.add(&whole);
            return Ok(());
        }
        let (last, mut sample) = (data.len() - SAMPLE, [0; SAMPLE]);
        for i in 0..SAMPLES {
            let start = last / (SAMPLES - 1) * i + last % (SAMPLES - 1) * i / (SAMPLES - 1);
            data.read(start, &mut sample);
            self.hash.add(&sample);
        }
        Ok(())
    }
}

enum Handle {
    Matrix(Matrix),
    Buffer(Buffer),
}

/// Everything a file gave, by place and field.
struct Held(HashMap<(Place, Field), Handle>);

impl Held {
    /// Reads the tensors of a table that are held here, and gives the fingerprint of all.
    fn read(
        (gguf, specs, shape): (&Gguf, &[TensorSpec], &Shape),
        holds: &dyn Fn(&TensorSpec) -> bool,
        backend: &mut dyn Backend,
        arena: Arena,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(Held, Fingerprint), Error> {
        let part = part_of(backend);
        check_ranks(shape, part)?;
        // All tensors are checked before the first is made resident.
        let mine = specs.iter().filter(|spec| holds(spec));
        let found = mine.map(|s| Ok((s, find(gguf, s)?))).collect::<Result<Vec<_>, Error>>()?;
        let (mut total, mut places) = (0, Places::default());
        for (spec, info) in found.iter().filter_map(|(spec, info)| Some((spec, (*info)?))) {
            check_tensor(spec, info.kind, part)?;
            let place = gguf.place(info)?;
            total += place.range.len();
            places.will_come(place);
        }
        let (mut done, mut held) = (0, HashMap::with_capacity(specs.len()));
        let mut print = Print::new(specs, shape);
        for (spec, info) in found {
            progress(Progress { tensor: &spec.name, bytes_done: done, bytes_total: total });
            let handle = match info {
                Some(info) => {
                    let place = gguf.place(info)?;
                    done += place.range.len();
                    let data = places.data(gguf, info, &place, backend.takes_planes())?;
                    let (of, at) = ((shape.experts, part), (&place, &mut places));
                    let handle = resident((spec, info, &data), of, backend, arena, at)?;
                    print.up_to(gguf, spec, &data)?;
                    let lets_go = matches!(handle, Handle::Matrix(m) if backend.lets_go(m));
                    if places.went(&place) && lets_go {
                        gguf.forget(info);
                    }
                    handle
                }
                None => {
                    let len = spec.dims.iter().product();
                    Handle::Buffer(backend.alloc(arena, Element::F32, len)?)
                }
            };
            held.insert((spec.place, spec.field), handle);
        }
        progress(Progress { tensor: "", bytes_done: done, bytes_total: total });
        Ok((Held(held), print.all(gguf)?))
    }

    fn matrix(&mut self, place: Place, field: Field) -> Matrix {
        match self.0.remove(&(place, field)) {
            Some(Handle::Matrix(matrix)) => matrix,
            _ => unreachable!("the table lists {field:?} of {place:?} once, as a matrix"),
        }
    }

    fn buffer(&mut self, place: Place, field: Field) -> Buffer {
        match self.0.remove(&(place, field)) {
            Some(Handle::Buffer(buffer)) => buffer,
            _ => unreachable!("the table lists {field:?} of {place:?} once, as a buffer"),
        }
    }

    fn has(&self, place: Place, field: Field) -> bool {
        self.0.contains_key(&(place, field))
    }

    fn hc(&mut self, place: Place, fields: [Field; 3]) -> HcWeights {
        let [matrix, base, scale] = fields;
        HcWeights {
            matrix: self.matrix(place, matrix),
            base: self.buffer(place, base),
            scale: self.buffer(place, scale),
        }
    }

    fn head(&mut self, place: Place, norm: Field) -> Head {
        let mix = self.hc(place, [Field::HeadMatrix, Field::HeadBase, Field::HeadScale]);
        Head { mix, norm: self.buffer(place, norm) }
    }

    fn ffn(&mut self, place: Place, fields: [Field; 3]) -> Ffn {
        let [gate, up, down] = fields.map(|field| self.matrix(place, field));
        Ffn { gate, up, down }
    }

    fn compressor(&mut self, place: Place, fields: [Field; 4]) -> Compressor {
        let [values, scores, positions, norm] = fields;
        Compressor {
            values: self.matrix(place, values),
            scores: self.matrix(place, scores),
            positions: self.buffer(place, positions),
            norm: self.buffer(place, norm),
        }
    }

    fn block(&mut self, place: Place) -> Block {
        use Field as F;
        let compressor = self.has(place, F::CompressorValues).then(|| {
            let fields = [
                F::CompressorValues,
                F::CompressorScores,
                F::CompressorPositions,
                F::CompressorNorm,
            ];
            self.compressor(place, fields)
        });
        let indexer = self.has(place, F::IndexQuery).then(|| Indexer {
            query: self.matrix(place, F::IndexQuery),
            weights: self.matrix(place, F::IndexWeights),
            compressor: self.compressor(
                place,
                [
                    F::IndexCompressorValues,
                    F::IndexCompressorScores,
                    F::IndexCompressorPositions,
                    F::IndexCompressorNorm,
                ],
            ),
        });
        let route_by = if self.has(place, F::RouterTable) {
            RouteBy::Token { table: self.buffer(place, F::RouterTable) }
        } else {
            RouteBy::Score { bias: self.buffer(place, F::RouterBias) }
        };
        Block {
            hc_attn: self.hc(place, [F::HcAttnMatrix, F::HcAttnBase, F::HcAttnScale]),
            attn_norm: self.buffer(place, F::AttnNorm),
            q_a: self.matrix(place, F::QueryA),
            q_norm: self.buffer(place, F::QueryNorm),
            q_b: self.matrix(place, F::QueryB),
            kv: self.matrix(place, F::KeyValue),
            kv_norm: self.buffer(place, F::KeyValueNorm),
            sinks: self.buffer(place, F::Sinks),
            output_a: self.matrix(place, F::OutputA),
            output_b: self.matrix(place, F::OutputB),
            compressor,
            indexer,
            hc_ffn: self.hc(place, [F::HcFfnMatrix, F::HcFfnBase, F::HcFfnScale]),
            ffn_norm: self.buffer(place, F::FfnNorm),
            router: self.matrix(place, F::Router),
            route_by,
            routed: self.ffn(place, [F::ExpertGate, F::ExpertUp, F::ExpertDown]),
            shared: self.ffn(place, [F::SharedGate, F::SharedUp, F::SharedDown]),
        }
    }
}

/// Which part of a model the backend holds.
pub(super) fn part_of(backend: &mut dyn Backend) -> Part {
    match backend.exchange() {
        Some(exchange) => Part { rank: exchange.rank(), ranks: exchange.ranks() },
        None => Part::WHOLE,
    }
}

/// The data of a tensor: whole blocks, or their planes.
#[derive(Clone)]
pub(super) struct Data {
    pub bytes: Bytes,
    pub planes: Option<Layout>,
}

impl Data {
    /// As it lies in the file.
    fn stored(gguf: &Gguf, info: &TensorInfo) -> Result<Self, Error> {
        Ok(Data { bytes: gguf.stored(info)?, planes: info.planes() })
    }

    /// In blocks, which are made where the file has planes.
    fn blocks(gguf: &Gguf, info: &TensorInfo) -> Result<Self, Error> {
        Ok(Data { bytes: gguf.bytes(info)?, planes: None })
    }

    /// Bytes of the blocks.
    fn len(&self) -> usize {
        let planes = self.planes.map(|planes| planes.block_bytes());
        planes.map_or(self.bytes.len(), |len| usize::try_from(len).expect("they are in memory"))
    }

    /// Bytes of the blocks from a place on.
    fn read(&self, start: usize, out: &mut [u8]) {
        match self.planes {
            Some(planes) => planes.blocks(&self.bytes, start, out),
            None => out.copy_from_slice(&self.bytes[start..start + out.len()]),
        }
    }
}

/// What is still to come of the places of a file. Tensors may share bytes; they get one handle, by
/// which a backend that has a layout of its own sees that it has made it already.
#[derive(Default)]
struct Places(HashMap<DataPlace, Coming>);

#[derive(Default)]
struct Coming {
    tensors: usize,
    /// Of what several tensors share.
    shared: bool,
    data: Option<Data>,
    handles: Vec<SharedBytes>,
}

impl Places {
    fn will_come(&mut self, place: DataPlace) {
        let coming = self.0.entry(place).or_default();
        coming.tensors += 1;
        coming.shared = coming.tensors > 1;
    }

    fn data(
        &mut self,
        gguf: &Gguf,
        info: &TensorInfo,
        at: &DataPlace,
        planes: bool,
    ) -> Result<Data, Error> {
        let read = if planes { Data::stored } else { Data::blocks };
        let Some(coming) = self.0.get_mut(at).filter(|coming| coming.shared) else {
            return read(gguf, info);
        };
        if coming.data.is_none() {
            coming.data = Some(read(gguf, info)?);
        }
        Ok(coming.data.clone().expect("it was just put there"))
    }

    /// The handle for these bytes of a place.
    fn handle(&mut self, at: &DataPlace, bytes: SharedBytes) -> SharedBytes {
        let Some(coming) = self.0.get_mut(at).filter(|coming| coming.shared) else { return bytes };
        let span = |bytes: &SharedBytes| (**bytes).as_ref().as_ptr_range();
        if let Some(own) = coming.handles.iter().find(|own| span(own) == span(&bytes)) {
            return own.clone();
        }
        coming.handles.push(bytes.clone());
        bytes
    }

    /// One has come; whether it was the last of its place.
    fn went(&mut self, at: &DataPlace) -> bool {
        let Some(coming) = self.0.get_mut(at) else { return false };
        coming.tensors -= 1;
        let is_last = coming.tensors == 0;
        if is_last {
            self.0.remove(at);
        }
        is_last
    }
}

/// Puts this rank's part of one checked tensor on the backend.
fn resident(
    (spec, info, data): (&TensorSpec, &TensorInfo, &Data),
    (experts, part): (usize, Part),
    backend: &mut dyn Backend,
    arena: Arena,
    (place, places): (&DataPlace, &mut Places),
) -> Result<Handle, Error> {
    let (piece, bytes) = (Piece::of(spec, part), &data.bytes);
    let len: usize = spec.dims.iter().product();
    match (spec.kind, info.kind) {
        (Kind::Table, _) => {
            let table = backend.alloc(arena, Element::U32, len)?;
            check_ids(spec, bytes, experts)?;
            backend.write(table, 0, bytes)?;
            Ok(Handle::Buffer(table))
        }
        (Kind::Vector, TensorKind::Block(format)) => {
            let mut values = vec![0.0; len];
            (format.info().decode)(bytes, &mut values);
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                return Err(Error::Tensor {
                    name: spec.name.clone(),
                    found: format!("{} at {at}", values[at]),
                    wanted: "numbers".into(),
                });
            }
            // Vectors of more than one dim are whole on every rank.
            let mine = if spec.dims.len() == 1 { &values[piece.columns.clone()] } else { &values };
            let buffer = backend.alloc(arena, Element::F32, mine.len())?;
            backend.write_f32(buffer, 0, mine)?;
            Ok(Handle::Buffer(buffer))
        }
        (_, TensorKind::Block(format)) => {
            let (mut bytes, strides) = cut(spec, format, &piece, data);
            // What a backend copies together is nobody else's.
            if strides.is_none() {
                bytes = places.handle(place, bytes);
            }
            let source = MatrixSource {
                name: &spec.name,
                format,
                rows: piece.rows.len(),
                columns: piece.columns.len(),
                stack: piece.stack.len(),
                bytes,
                planes: data.planes,
            };
            Ok(Handle::Matrix(
                backend.matrix_part(source, MatrixPart { shards: piece.shards, strides })?,
            ))
        }
        _ => unreachable!("`find` accepts nothing else"),
    }
}

/// Expert ids of a table, which a damaged file may have out of range.
fn check_ids(spec: &TensorSpec, bytes: &[u8], experts: usize) -> Result<(), Error> {
    let (ids, _) = bytes.as_chunks::<4>();
    for (at, &id) in ids.iter().enumerate() {
        let id = i32::from_le_bytes(id);
        if !usize::try_from(id).is_ok_and(|id| id < experts) {
            return Err(Error::Tensor {
                name: spec.name.clone(),
                found: format!("expert {id} for token {}", at / spec.dims[0]),
                wanted: format!("ids from 0 to {}", experts - 1),
            });
        }
    }
    Ok(())
}
