#[test]
fn reads() {
    std::fs::read("/work/main/x").unwrap();
}
