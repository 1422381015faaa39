//! Encodes a file and prints the speed; with a third argument, writes the ids (little-endian u32).
//!
//! usage: encode TOKENIZER.json TEXT [IDS]

#![expect(clippy::print_stdout, reason = "a measuring tool, not part of the library")]

use std::error::Error;
use std::time::Instant;

use ironstar_text::Tokenizer;

const ROUNDS: u32 = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (tokenizer, text, ids_out) = match arguments.as_slice() {
        [tokenizer, text] => (tokenizer, text, None),
        [tokenizer, text, ids] => (tokenizer, text, Some(ids)),
        _ => return Err("usage: encode TOKENIZER.json TEXT [IDS]".into()),
    };
    let json = std::fs::read(tokenizer)?;
    let start = Instant::now();
    let tokenizer = Tokenizer::from_json(&json)?;
    println!("loaded {} tokens in {:.0?}", tokenizer.vocab_size(), start.elapsed());
    let text = std::fs::read(text)?;
    let mut ids = Vec::new();
    let mut fastest = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        ids = tokenizer.encode_bytes(&text);
        fastest = fastest.min(start.elapsed().as_secs_f64());
    }
    let megabytes = text.len() as f64 / 1e6;
    println!(
        "{megabytes:.1} MB, {} tokens, {:.1} MB/s (fastest of {ROUNDS})",
        ids.len(),
        megabytes / fastest
    );
    if tokenizer.decode(&ids) != text {
        return Err("decoding the ids does not give the text back".into());
    }
    if let Some(path) = ids_out {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        std::fs::write(path, bytes)?;
    }
    Ok(())
}
