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

/// More than the machine has is refused, more than is free is said; tensors that share data take it
/// once.
#[test]
fn weights_must_fit_the_machine() {
    let gguf = ironstar_model::testing::Tiny::small(7).gguf();
    let bytes = weight_bytes(&[&gguf]).expect("known types");
    let sum: u64 = gguf.tensors().iter().filter_map(|tensor| tensor.byte_count()).sum();
    assert_eq!(bytes, sum);
    assert_eq!(weight_bytes(&[&gguf, &gguf]).expect("known types"), sum, "the same data again");

    let room = |most, now| host_room(HostMemory { most, now }, bytes);
    assert_eq!(room(bytes, Some(bytes)).expect("it fits"), None);
    assert_eq!(room(bytes, None).expect("it fits"), None);
    let note = room(bytes, Some(bytes - 1)).expect("it fits").expect("little is free");
    assert!(note.contains("are free"), "{note}");
    let error = room(bytes - 1, None).expect_err("too large").to_string();
    assert!(error.contains("smaller mix"), "{error}");
}

/// Without a card `auto` is the processor, quietly, and `cuda` an error that says what is missing.
#[test]
fn choices_without_a_card() {
    if cuda_devices().is_ok_and(|devices| !devices.is_empty()) {
        return;
    }
    let auto =
        open(&EngineOptions::default(), Need::of_bytes(0)).expect("the processor is always there");
    assert_eq!((auto.backend.name(), auto.note), ("cpu", None));
    let options = EngineOptions { backend: BackendChoice::Cuda, ..EngineOptions::default() };
    let Err(error) = open(&options, Need::of_bytes(0)) else { panic!("there is no card") };
    assert!(error.to_string().contains("CUDA") || error.to_string().contains("cuda"), "{error}");
}
