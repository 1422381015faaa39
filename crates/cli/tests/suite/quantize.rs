//! `ironstar quantize` makes the bundled model, bit for bit, from the published checkpoint; a run
//! that was killed goes on.
//!
//! The checkpoint is put together again from what the project holds: the experts lie losslessly in
//! `models/`, everything else in `tests/golden/nano/dense.safetensors`.

use crate::common::{failure, folder, ironstar, project, text};
use ironstar_gguf::safetensors::{Checkpoint, Dtype};
use ironstar_gguf::{Gguf, TensorKind, Value as Data, Writer};
use ironstar_model::Shape;
use ironstar_model::deepseek_v4::{Kind, TensorSpec, drafter_specs, tensor_specs};
use ironstar_quant::Format;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};

const NAME: [&str; 4] = ["--name", "ironstar nano", "--default-temp", "0.6"];

/// Of the published experts, names and bytes (tests/golden/make/nano_experts.py).
const EXPERTS_SHA256: &str = "1b4c185ca6f9b87ccd28b417c2ee16c401164d930893d375981f4dfbc88c1c6e";

/// Header and data of a safetensors file.
#[derive(Default)]
struct Published {
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Published {
    fn add(&mut self, name: &str, dtype: &str, shape: &[u64], bytes: &[u8]) {
        let start = self.data.len();
        self.data.extend(bytes);
        let offsets = [start, self.data.len()];
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        self.header.insert(name.to_owned(), entry);
    }

    /// Experts as they are published: pairs of columns in a byte, scales apart.
    fn add_experts(&mut self, gguf: &Gguf, spec: &TensorSpec) {
        let info = gguf.tensor(&spec.name).expect("the bundled model has every tensor");
        assert_eq!(info.kind, TensorKind::Block(Format::Mxfp4), "{}", spec.name);
        let bytes = gguf.bytes(info).expect("a known type");
        let (columns, rows) = (spec.dims[0], spec.dims[1]);
        let names = spec.published_names();
        for (name, expert) in names.iter().zip(bytes.chunks(bytes.len() / names.len())) {
            let (mut codes, mut scales) = (Vec::new(), Vec::new());
            for block in expert.chunks(17) {
                scales.push(block[0]);
                let code = |i: usize| (block[1 + i % 16] >> (4 * (i / 16))) & 15;
                codes.extend((0..16).map(|pair| code(2 * pair) | code(2 * pair + 1) << 4));
            }
            let size = |n: usize| u64::try_from(n).expect("a small model");
            self.add(name, "I8", &[size(rows), size(columns / 2)], &codes);
            let scale_name = name.replace(".weight", ".scale");
            self.add(&scale_name, "F8_E8M0", &[size(rows), size(columns / 32)], &scales);
        }
    }

    /// SHA-256 of names and bytes of all tensors so far, by name.
    fn digest(&self) -> String {
        let mut hash = Sha256::new();
        let names: BTreeMap<&String, &Value> = self.header.iter().collect();
        for (name, entry) in names {
            let at = |i: usize| {
                let at = entry["data_offsets"][i].as_u64().expect("our own header");
                usize::try_from(at).expect("a small file")
            };
            hash.update(name.as_bytes());
            hash.update(&self.data[at(0)..at(1)]);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn save(&self, path: &Path) {
        let header = serde_json::to_vec(&self.header).expect("JSON");
        let mut bytes = u64::try_from(header.len()).expect("short").to_le_bytes().to_vec();
        bytes.extend(&header);
        bytes.extend(&self.data);
        std::fs::write(path, bytes).expect("room for 26 MB");
    }
}

/// The published checkpoint of the nano model in a folder.
fn checkpoint(name: &str) -> std::path::PathBuf {
    let open = |path: &str| Gguf::open(&project(path)).expect("the bundled model");
    let (model, drafter) = (open("models/nano.gguf"), open("models/nano-mtp.gguf"));
    let shape = Shape::from_metadata(model.metadata()).expect("the bundled model's shape");
    let mut published = Published::default();
    for (gguf, specs) in [(&model, tensor_specs(&shape)), (&drafter, drafter_specs(&shape))] {
        for spec in specs.iter().filter(|spec| spec.kind == Kind::Routed) {
            published.add_experts(gguf, spec);
        }
    }
    assert_eq!(published.digest(), EXPERTS_SHA256, "the bundled experts are the published ones");
    let dense =
        Checkpoint::open(&project("tests/golden/nano/dense.safetensors")).expect("a fixture");
    for name in dense.names() {
        let meta = dense.tensor(name).expect("it is listed");
        let dtype = match meta.dtype {
            Dtype::F32 => "F32",
            Dtype::Bf16 => "BF16",
            Dtype::F8E4M3 => "F8_E4M3",
            Dtype::F8E8M0 => "F8_E8M0",
            Dtype::I64 => "I64",
            other => panic!("{name}: {other:?} is not in the fixture's recipe"),
        };
        published.add(name, dtype, &meta.shape, &dense.bytes(name).expect("a fixture"));
    }
    let folder = folder(name);
    published.save(&folder.join("model.safetensors"));
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(project("models/nano").join(file), folder.join(file)).expect("a fixture");
    }
    folder
}

fn words<'a>(input: &'a Path, output: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let name = |path: &'a Path| path.to_str().expect("a name in UTF-8");
    let mut words = vec!["quantize", name(input), name(output)];
    words.extend(NAME);
    words.extend(more);
    words
}

fn assert_same_files(found: &Path, wanted: &str) {
    let (found, wanted) = (std::fs::read(found), std::fs::read(project(wanted)));
    assert!(found.expect("it was made") == wanted.expect("the bundled model"), "bytes differ");
}

#[test]
fn the_bundled_model_is_what_quantize_makes() {
    let input = checkpoint("published");
    let output = input.join("nano.gguf");
    let report = text(&words(&input, &output, &["--threads", "2"]));
    assert!(report.contains("MXFP4"), "{report}");
    assert_same_files(&output, "models/nano.gguf");
    assert_same_files(&input.join("nano-mtp.gguf"), "models/nano-mtp.gguf");

    // From one GGUF file to another: what is stored as wanted is copied.
    let again = input.join("again.gguf");
    text(&words(&output, &again, &[]));
    assert_same_files(&again, "models/nano.gguf");

    // It is not overwritten by accident, and a wish that fits nothing is refused.
    let (code, message) = failure(&words(&input, &output, &[]));
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("--force"), "{message}");
    let (code, message) = failure(&words(&input, &again, &["--tensor-type", "nothing=Q8_0"]));
    assert_eq!((code, message.contains("fits no tensor")), (2, true), "{message}");
    let (code, message) = failure(&words(&input, &again, &["--tensor-type", "attention=Q4_K"]));
    assert_eq!((code, message.contains("blocks of 256")), (2, true), "{message}");
}

const DOWN: &str = "blk.1.ffn_down_exps.weight";

/// A file of importances of one tensor, where one column in eight matters a hundred times as much,
/// and the second expert saw nothing.
fn importances(path: &Path, name: &str, columns: usize, experts: usize) {
    let file = std::fs::File::create(path).expect("a file");
    let mut writer = Writer::new(file);
    let float = TensorKind::Block(Format::F32);
    let size = |n: usize| u64::try_from(n).expect("a small model");
    writer.metadata("general.type", Data::String("imatrix".into())).expect("a key");
    let (sums, counts) = (format!("{name}.in_sum2"), format!("{name}.counts"));
    writer.tensor(&sums, float, &[size(columns), size(experts)]).expect("a tensor");
    writer.tensor(&counts, float, &[1, size(experts)]).expect("a tensor");
    let values = (0..columns * experts).flat_map(|i| importance(i % columns).to_le_bytes());
    writer.data(&sums, &values.collect::<Vec<u8>>()).expect("its data");
    let seen = (0..experts).flat_map(|expert| (if expert == 1 { 0f32 } else { 5.0 }).to_le_bytes());
    writer.data(&counts, &seen.collect::<Vec<u8>>()).expect("its data");
    writer.finish().expect("all was written");
}

fn importance(column: usize) -> f32 {
    if column.is_multiple_of(8) { 500.0 } else { 5.0 }
}

/// Weighted square error of each expert of a tensor of two files.
fn weighted_errors(exact: &Gguf, coarse: &Gguf, name: &str) -> Vec<f64> {
    let values = |gguf: &Gguf| {
        let info = gguf.tensor(name).expect("a tensor of the model");
        let TensorKind::Block(format) = info.kind else { panic!("floats are wanted") };
        let mut values = vec![0f32; usize::try_from(info.element_count()).expect("a small model")];
        (format.info().decode)(&gguf.bytes(info).expect("its data"), &mut values);
        values
    };
    let dims = &exact.tensor(name).expect("a tensor").dims;
    let columns = usize::try_from(dims[0]).expect("few");
    let expert = columns * usize::try_from(dims[1]).expect("few");
    let (exact, coarse) = (values(exact), values(coarse));
    let misses = exact.iter().zip(&coarse).enumerate().map(|(i, (a, b))| {
        f64::from(importance(i % columns)) * (f64::from(*a) - f64::from(*b)).powi(2)
    });
    misses.collect::<Vec<_>>().chunks(expert).map(|all| all.iter().sum()).collect()
}

#[test]
fn importances_lower_the_errors_that_they_weigh() {
    let folder = folder("importances");
    let input = project("models/nano.gguf");
    let [plain, weighed, imatrix] =
        ["plain.gguf", "weighed.gguf", "imatrix.gguf"].map(|name| folder.join(name));
    let exact = Gguf::open(&input).expect("the bundled model");
    let dims = exact.tensor(DOWN).expect("the second layer has experts").dims.clone();
    let [columns, experts] = [dims[0], dims[2]].map(|n| usize::try_from(n).expect("few"));
    importances(&imatrix, DOWN, columns, experts);
    let rule = format!("{DOWN}=Q4_0");
    let path = imatrix.to_str().expect("UTF-8");
    text(&words(&input, &plain, &["--tensor-type", &rule]));
    let more = ["--tensor-type", &rule, "--imatrix", path, "--imatrix-strict"];
    let report = text(&words(&input, &weighed, &more));
    assert!(report.contains("1 tensors are weighed, 0 have none"), "{report}");
    let [plain, weighed] = [plain, weighed].map(|path| Gguf::open(&path).expect("it was made"));
    let file = weighed.metadata().str("quantize.imatrix.file").expect("where it is from");
    assert_eq!(file, "imatrix.gguf");
    let errors = [&plain, &weighed].map(|coarse| weighted_errors(&exact, coarse, DOWN));
    for (expert, (plain, weighed)) in errors[0].iter().zip(&errors[1]).enumerate() {
        if expert == 1 {
            assert_eq!(plain, weighed, "nothing is known of it");
        } else {
            assert!(*weighed < plain * 0.9, "expert {expert}: {weighed} of {plain}");
        }
    }
    // Every other tensor is what it was.
    for info in plain.tensors().iter().filter(|info| info.name != DOWN) {
        let other = weighed.tensor(&info.name).expect("the same tensors");
        let bytes = [plain.bytes(info), weighed.bytes(other)].map(|bytes| bytes.expect("its data"));
        assert!(*bytes[0] == *bytes[1], "{}", info.name);
    }

    // Of another model, of nothing, and of too little.
    let output = folder.join("refused.gguf");
    let refused = |more: &[&str], part: &str| {
        let (code, message) = failure(&words(&input, &output, more));
        assert_eq!(code, 2, "{message}");
        assert!(message.contains(part), "{message}");
        assert!(!output.exists());
    };
    importances(&imatrix, DOWN, columns * 2, experts);
    refused(&["--imatrix", path], "collected with another model");
    importances(&imatrix, "blk.1.other.weight", columns, experts);
    refused(&["--imatrix", path], "none of its 1 tensors");
    importances(&imatrix, DOWN, columns, experts);
    refused(
        &["--mix", "q4", "--tensor-type", "experts=Q4_0", "--imatrix", path, "--imatrix-strict"],
        "says nothing of",
    );
    refused(&["--imatrix", input.to_str().expect("UTF-8")], "importances and not a model");
}

/// Starts a run, and waits until this file of it is there, or was.
fn begun(words: &[&str], file: &Path) -> Child {
    let mut child =
        ironstar(words).stdout(Stdio::null()).spawn().expect("the binary was built for this test");
    while !file.exists() && child.try_wait().expect("a child").is_none() {
        std::thread::yield_now();
    }
    child
}

/// Removes what runs have written beside their checkpoint, whole or not.
fn remove_written(folder: &Path) {
    for entry in std::fs::read_dir(folder).expect("a folder of this test").flatten() {
        if entry.file_name().to_string_lossy().starts_with("nano") {
            std::fs::remove_file(entry.path()).expect("nobody writes any more");
        }
    }
}

/// How often a run may be through before this test has come to what it does in the middle of it:
/// any thread may be stopped for seconds.
const TRIES: usize = 20;

/// Two runs never write one output together: one is refused, and what comes out is the other's.
#[test]
fn a_second_run_is_refused() {
    let input = checkpoint("twice");
    let output = input.join("nano.gguf");
    let partial = input.join("nano.gguf.partial");
    for attempt in 1.. {
        let mut first = begun(&words(&input, &output, &["--threads", "1"]), &partial);
        let second = ironstar(&words(&input, &output, &["--mix", "q2"])).output();
        let second = second.expect("the binary was built for this test");
        let message = String::from_utf8_lossy(&second.stderr);
        let is_refused = second.status.code() == Some(1) && message.contains("another run");
        let was_through = !partial.exists();
        assert!(first.wait().expect("it ends").success());
        if is_refused {
            break;
        }
        assert!(was_through && attempt < TRIES, "{:?}: {message}", second.status);
        remove_written(&input);
    }
    assert_same_files(&output, "models/nano.gguf");
}

/// Neither devices nor the input are written over, and weights that are no numbers are found.
#[test]
fn what_must_not_be_written_is_refused() {
    let bundled = project("models/nano.gguf");
    let copy = folder("refused").join("copy.gguf");
    std::fs::copy(&bundled, &copy).expect("room for 22 MB");
    let (code, message) = failure(&words(&copy, &copy, &["--force"]));
    assert_eq!((code, message.contains("is what is read")), (2, true), "{message}");
    let ids = project("tests/golden/nano/val.ids");
    let (ids, copy) = (ids.to_str().expect("UTF-8"), copy.to_str().expect("UTF-8"));
    let save = ["perplexity", "--ids", ids, "-m", copy, "--save-logits"];
    let (code, message) = failure(&[&save[..], &[copy, "--force"]].concat());
    assert_eq!((code, message.contains("is what is read")), (2, true), "{message}");
    #[cfg(unix)]
    {
        let pipe = std::os::unix::net::UnixListener::bind(folder("refused-pipe").join("socket"));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("refused-pipe").join("socket");
        let path = path.to_str().expect("UTF-8");
        pipe.expect("a socket in a folder of ours");
        let (code, message) = failure(&["quantize", copy, path, "--force"]);
        assert_eq!((code, message.contains("regular file")), (2, true), "{message}");
        let (code, message) = failure(&[&save[..], &[path, "--force"]].concat());
        assert_eq!((code, message.contains("regular file")), (2, true), "{message}");
    }
}

/// What a disk or another program did to a tensor that was complete.
fn flip_a_byte_of_the_first_tensor(partial: &Path) {
    let bundled = std::fs::read(project("models/nano.gguf")).expect("the bundled model");
    let gguf = Gguf::from_bytes(bundled.clone()).expect("the bundled model");
    let first = gguf.bytes(&gguf.tensors()[0]).expect("a known type");
    let at = bundled.windows(64).position(|part| part == &first[..64]).expect("it is in there");
    let mut bytes = std::fs::read(partial).expect("it was being written");
    assert_eq!(bytes[at..at + 64], first[..64], "the partial file has the header of the whole one");
    bytes[at + 9] ^= 4;
    std::fs::write(partial, bytes).expect("room for as much as before");
}

/// What was complete is kept if it still is what was written, and made again if not.
#[test]
fn a_killed_run_goes_on_where_it_was() {
    let input = checkpoint("killed");
    let output = input.join("nano.gguf");
    let journal = input.join("nano.gguf.partial.json");
    for attempt in 1.. {
        let mut child = begun(&words(&input, &output, &["--threads", "1"]), &journal);
        // One that has ended meanwhile cannot be killed.
        let _killed = child.kill();
        child.wait().expect("it ended");
        if journal.exists() && !output.exists() {
            break;
        }
        assert!(attempt < TRIES, "it is always through before it is killed");
        remove_written(&input);
    }
    assert!(!output.exists(), "the file appears only when it is complete");
    assert!(journal.exists(), "tensors were finished before the kill");
    flip_a_byte_of_the_first_tensor(&input.join("nano.gguf.partial"));
    text(&words(&input, &output, &[]));
    assert_same_files(&output, "models/nano.gguf");
    assert_same_files(&input.join("nano-mtp.gguf"), "models/nano-mtp.gguf");
    assert!(!journal.exists());
}
