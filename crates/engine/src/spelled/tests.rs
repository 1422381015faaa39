use super::*;

fn tokenizer() -> Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nano.gguf");
    let gguf = ironstar_gguf::Gguf::open(std::path::Path::new(path)).expect("nano is bundled");
    crate::tokenizer(&gguf).expect("nano has one")
}

fn spelled(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<u8> {
    Spelled::new(tokenizer, tokens).bytes
}

/// One token a byte: the same text as any other way of cutting it.
fn bytewise(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    text.bytes().flat_map(|byte| tokenizer.encode_bytes(&[byte])).collect()
}

#[test]
fn equal_texts_are_spelled_alike_and_markers_are_no_text() {
    let tokenizer = tokenizer();
    let text = "Once upon a time, there was a fox: «é».";
    let (short, long) = (tokenizer.encode(text), bytewise(&tokenizer, text));
    assert!(short.len() < long.len());
    assert_eq!(spelled(&tokenizer, &short), text.as_bytes());
    assert_eq!(spelled(&tokenizer, &long), text.as_bytes());
    let eos = tokenizer.eos().expect("nano has one");
    let written = String::from_utf8_lossy(tokenizer.token_bytes(eos)).into_owned();
    assert_ne!(
        spelled(&tokenizer, &[eos]),
        spelled(&tokenizer, &tokenizer.encode(&written)),
        "who writes a marker's text has not written the marker"
    );
    // Bytes that look like the spelling of a control token are spelled otherwise.
    let fake = [&[ESCAPE, CONTROL][..], &eos.to_le_bytes()].concat();
    let bytes = tokenizer.encode_bytes(&fake);
    assert_eq!(tokenizer.decode(&bytes), fake, "any bytes are tokens");
    assert!(!spelled(&tokenizer, &bytes).starts_with(&[ESCAPE, CONTROL]));
    assert_eq!(plain(&spelled(&tokenizer, &bytes)), fake);
    // A number that no token has stands for itself.
    assert_ne!(spelled(&tokenizer, &[u32::MAX]), spelled(&tokenizer, &[u32::MAX - 1]));
}

#[test]
fn the_rest_begins_where_the_known_part_ends() {
    let tokenizer = tokenizer();
    let eos = tokenizer.eos().expect("nano has one");
    let [first, second] = ["The little fox ran home.", "And then?"].map(|t| tokenizer.encode(t));
    let all = [&first[..], &[eos], &second].concat();
    let text = Spelled::new(&tokenizer, &all);
    for done in 0..=text.bytes.len() {
        if done > text.end_of(first.len()) && done < text.end_of(first.len() + 1) {
            continue; // Nobody's tokens end inside a control token.
        }
        let rest = rest(&tokenizer, &all, &text, done);
        assert_eq!(spelled(&tokenizer, &rest), text.bytes[done..], "after {done} bytes");
        if done <= text.end_of(first.len()) {
            assert!(rest.ends_with(&all[first.len()..]), "what follows a marker stays");
        }
    }
}
