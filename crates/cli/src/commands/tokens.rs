//! `ironstar tokens`: text to ids and pieces, and back.

use crate::failure::Failure;
use crate::flags::Tokens;
use crate::{asking, loading, print};
use ironstar_text::Tokenizer;
use ironstar_text::chat::Thinking;
use std::fmt::Write as _;

/// Runs the command.
pub fn run(flags: &Tokens) -> Result<(), Failure> {
    let opened = loading::open(flags.model.as_deref(), None)?;
    let tokenizer = loading::tokenizer(&opened.gguf)?;
    let text = super::input_text(flags.text.as_deref(), flags.prompt_file.as_deref())?;
    if flags.decode {
        return decode(&tokenizer, &text, flags.json);
    }
    let ids = if flags.chat {
        asking::question(&tokenizer, None, &text, Thinking::Off)?
    } else if flags.raw {
        tokenizer.encode_rendered(&text)
    } else {
        tokenizer.encode(&text)
    };
    print(listing(&tokenizer, &ids, flags.json).as_bytes())
}

fn decode(tokenizer: &Tokenizer, text: &str, json: bool) -> Result<(), Failure> {
    let ids = super::parse_ids(text, tokenizer.vocab_size())
        .map_err(|wrong| Failure::caller(format!("the input: {wrong}")))?;
    if json {
        return print(listing(tokenizer, &ids, true).as_bytes());
    }
    print(&tokenizer.decode(&ids))
}

/// One line a token, or one JSON object.
fn listing(tokenizer: &Tokenizer, ids: &[u32], json: bool) -> String {
    let piece = |id: u32| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
    if json {
        let pieces: Vec<String> = ids.iter().map(|id| piece(*id)).collect();
        let text = String::from_utf8_lossy(&tokenizer.decode(ids)).into_owned();
        let object = serde_json::json!({
            "count": ids.len(), "ids": ids, "pieces": pieces, "text": text
        });
        return format!("{object}\n");
    }
    let mut out = String::new();
    for id in ids {
        let mark = if tokenizer.is_control(*id) { " control" } else { "" };
        let _ = writeln!(out, "{id:>7} {:?}{mark}", piece(*id));
    }
    let _ = writeln!(out, "{} tokens", ids.len());
    out
}
