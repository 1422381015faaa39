//! What the last node of a pipeline gives rank 0, as bytes: logits and guesses.

use super::orders::{Reader, put, put_list, put_size, wide, wrong};
use crate::{Drafted, Error, Logits, Output};

/// What a step or a draft gave.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Given {
    Output(Output),
    Drafted(Drafted),
    Logits(Logits),
}

impl Given {
    /// Behind the number of the order that it answers.
    pub fn encode(&self, number: u64) -> Vec<u8> {
        let mut to = Vec::new();
        put(&mut to, number);
        match self {
            Given::Output(output) => {
                to.push(0);
                put_logits(&mut to, &output.logits);
                put_logits(&mut to, &output.drafts);
            }
            Given::Drafted(drafted) => {
                to.push(1);
                put_list(&mut to, drafted.tokens.iter().map(|token| u64::from(*token)));
                put_floats(&mut to, &drafted.confidence);
                put_logits(&mut to, &drafted.logits);
            }
            Given::Logits(logits) => {
                to.push(2);
                put_logits(&mut to, logits);
            }
        }
        to
    }

    /// The answer to an order.
    pub fn decode(bytes: &[u8], number: u64, vocabulary: usize) -> Result<Given, Error> {
        let mut from = Reader(bytes);
        let found = from.number()?;
        if found != number {
            return wrong(format!("the answer to order {found}"), &format!("that to {number}"));
        }
        let given = match from.byte()? {
            0 => Given::Output(Output {
                logits: logits(&mut from, vocabulary)?,
                drafts: logits(&mut from, vocabulary)?,
                drawn: Vec::new(),
            }),
            1 => Given::Drafted(Drafted {
                tokens: from.list(Reader::id)?,
                confidence: from.floats()?,
                logits: logits(&mut from, vocabulary)?,
            }),
            2 => Given::Logits(logits(&mut from, vocabulary)?),
            kind => return wrong(format!("an answer of kind {kind}"), "kinds 0 to 2 are known"),
        };
        if !from.0.is_empty() {
            return wrong(format!("{} bytes behind an answer", from.0.len()), "none are due");
        }
        Ok(given)
    }
}

fn put_floats(to: &mut Vec<u8>, values: &[f32]) {
    put_size(to, values.len());
    to.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn put_logits(to: &mut Vec<u8>, logits: &Logits) {
    put_list(to, logits.rows.iter().map(|row| wide(*row)));
    put_floats(to, &logits.values);
}

fn logits(from: &mut Reader<'_>, vocabulary: usize) -> Result<Logits, Error> {
    let (rows, values) = (from.list(Reader::size)?, from.floats()?);
    if rows.len().checked_mul(vocabulary) != Some(values.len()) {
        let found = format!("{} logits of {} rows", values.len(), rows.len());
        return wrong(found, &format!("{vocabulary} a row"));
    }
    Ok(Logits { vocabulary, rows, values })
}

#[cfg(test)]
mod tests;
