use super::*;

fn samples() -> Vec<Given> {
    let some =
        Logits { vocabulary: 3, rows: vec![0, 5], values: vec![1.0, -2.0, 0.5, 3.0, 4.0, 9.0] };
    let none = Logits { vocabulary: 3, ..Logits::default() };
    vec![
        Given::Output(Output { logits: some.clone(), drafts: none.clone(), ..Output::default() }),
        Given::Output(Output { logits: none.clone(), drafts: none, ..Output::default() }),
        Given::Drafted(Drafted {
            tokens: vec![7, 8],
            confidence: vec![0.5, -1.0],
            logits: some.clone(),
        }),
        Given::Logits(some),
    ]
}

#[test]
fn answers_come_back_as_they_were() {
    for given in samples() {
        let bytes = given.encode(17);
        assert_eq!(Given::decode(&bytes, 17, 3).expect("our own bytes"), given);
        assert!(Given::decode(&bytes, 18, 3).is_err(), "the answer to another order");
        for end in 0..bytes.len() {
            assert!(Given::decode(&bytes[..end], 17, 3).is_err(), "{given:?} cut at {end}");
        }
        assert!(Given::decode(&[&bytes[..], &[0]].concat(), 17, 3).is_err());
    }
    let bytes = samples()[0].encode(1);
    assert!(Given::decode(&bytes, 1, 4).is_err(), "rows of another vocabulary");
}
