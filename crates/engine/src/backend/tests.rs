use super::*;

#[test]
fn what_does_not_fit_is_refused_with_both_sizes() {
    fits("a card", 5, 5).expect("it fits");
    let error = fits("a card", 81 << 30, (7 << 30) + (1 << 29)).expect_err("too large");
    let text = error.to_string();
    for word in ["a card", "7.5 GiB are free", "needs 81.0 GiB", "--backend cpu"] {
        assert!(text.contains(word), "no '{word}' in: {text}");
    }
}

/// Without a card `auto` is the processor, quietly, and `cuda` an error that says what is missing.
#[test]
fn choices_without_a_card() {
    if cuda_devices().is_ok_and(|devices| !devices.is_empty()) {
        return;
    }
    let auto = open(&EngineOptions::default(), &[]).expect("the processor is always there");
    assert_eq!((auto.backend.name(), auto.note), ("cpu", None));
    let options = EngineOptions { backend: BackendChoice::Cuda, ..EngineOptions::default() };
    let Err(error) = open(&options, &[]) else { panic!("there is no card") };
    assert!(error.to_string().contains("CUDA") || error.to_string().contains("cuda"), "{error}");
}
