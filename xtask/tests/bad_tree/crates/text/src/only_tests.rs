#[test]
fn in_a_test() {
    Some(1).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
}

#[test]
#[ignore]
fn never() {}
