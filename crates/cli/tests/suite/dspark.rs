//! A DSpark drafter beside a model: quantized with it, found, shown, and run.

use crate::common::{failure, folder, project, text};
use ironstar_gguf::Gguf;
use ironstar_model::Shape;
use ironstar_model::deepseek_v4::spark_specs;
use ironstar_model::deepseek_v4::{Kind, SparkShape, TensorSpec};
use ironstar_model::testing::{Encoded, Tiny, encode, file_bytes};
use ironstar_quant::Format;
use serde_json::Value;
use std::path::Path;

/// Small formats, so that the file of a random drafter for nano is not large.
fn stored(spec: &TensorSpec, values: &[f32]) -> Encoded {
    match spec.kind {
        Kind::Routed => encode(Format::Q4_0, values),
        Kind::Dense => encode(Format::Q8_0, values),
        Kind::Float => encode(Format::F16, values),
        Kind::Vector | Kind::Table => encode(Format::F32, values),
    }
}

fn name(path: &Path) -> &str {
    path.to_str().expect("a name in UTF-8")
}

#[test]
fn a_drafter_beside_a_model_is_quantized_shown_and_run() {
    let folder = folder("dspark");
    let model = folder.join("nano.gguf");
    std::fs::copy(project("models/nano.gguf"), &model).expect("the bundled model");
    let gguf = Gguf::open(&model).expect("the bundled model");
    let shape = Shape::from_metadata(gguf.metadata()).expect("the bundled model's shape");
    let last = shape.layers;
    let targets = vec![last - 3, last - 2, last - 1];
    let spark = SparkShape { stages: 3, block: 5, rank: 32, noise: 1, targets };
    let tiny = Tiny { seed: 5, shape: shape.clone() };
    let specs = spark_specs(&shape, &spark);
    let tensors = specs.iter().map(|spec| (spec, stored(spec, &tiny.values(spec))));
    let bytes = file_bytes(&spark.to_metadata(&shape), tensors);
    std::fs::write(folder.join("nano-dspark.gguf"), bytes).expect("room for 30 MB");

    let output = folder.join("out.gguf");
    let report = text(&["quantize", name(&model), name(&output), "--name", "nano"]);
    assert!(report.contains("out-dspark.gguf: 81 tensors"), "{report}");
    assert!(!folder.join("out-mtp.gguf").exists());
    let made = Gguf::open(&folder.join("out-dspark.gguf")).expect("it was made");
    assert_eq!(SparkShape::from_gguf(&made, &shape).expect("it fits"), Some(spark));

    let shown = text(&["inspect", name(&output)]);
    assert!(shown.contains("DSpark drafter"), "{shown}");

    let ask = |how: &str| -> Value {
        let words = ["run", "-m", name(&output), "--raw", "-p", "Once upon a time", "-n", "30"];
        let more = ["--temp", "0", "--json", "--speculate", how];
        serde_json::from_str(&text(&[&words[..], &more].concat())).expect("JSON")
    };
    let (plain, guessed, auto) = (ask("off"), ask("dspark"), ask("auto"));
    assert_eq!(plain["content"], guessed["content"]);
    assert_eq!(plain["content"], auto["content"]);
    let report = &guessed["speculation"];
    assert!(report["drafting_seconds"].as_f64() > Some(0.0), "{report}");
    assert!(report["steps"].as_u64() > Some(0) && report["depths"].is_array(), "{report}");

    // It is no next-token block.
    let (code, message) = failure(&["run", "-m", name(&output), "-p", "x", "--speculate", "mtp"]);
    assert_eq!((code, message.contains("next-token block")), (2, true), "{message}");
}
