//! Fields that say how tokens are drawn and when an answer ends.

use std::collections::HashMap;

use crate::json::{Fields, Kind, Node};
use crate::{ApiError, Limits, Sampling};

/// Bytes of a stop string.
const STOP_BYTES_MAX: usize = 1024;

/// Reads every setting that there is, whatever the protocol: a server that can do a thing does it
/// for all.
pub(super) fn sampling(fields: &mut Fields<'_>) -> Result<Sampling, ApiError> {
    let mut number = |name: &str, least: f64, most: f64| {
        fields.take(name).map(|node| node.number(least, most)).transpose()
    };
    let temperature = number("temperature", 0.0, 2.0)?;
    let top_p = number("top_p", 0.0, 1.0)?;
    let min_p = number("min_p", 0.0, 1.0)?;
    let presence_penalty = number("presence_penalty", -2.0, 2.0)?;
    let frequency_penalty = number("frequency_penalty", -2.0, 2.0)?;
    let repetition_penalty = number("repetition_penalty", 0.01, 10.0)?;
    // -1 is how some clients say that all are kept.
    let top_k = match fields.take("top_k") {
        None => None,
        Some(node) => Some(usize::try_from(node.whole(-1, i64::MAX)?).unwrap_or(0)),
    };
    let seed = fields.take("seed").map(|node| seed(&node)).transpose()?;
    let logit_bias = fields.take("logit_bias").map(|node| logit_bias(&node)).transpose()?;
    Ok(Sampling {
        temperature,
        top_p,
        top_k,
        min_p,
        seed,
        presence_penalty,
        frequency_penalty,
        repetition_penalty,
        logit_bias,
    })
}

/// Any whole number of 64 bits, negative ones too.
fn seed(node: &Node<'_>) -> Result<u64, ApiError> {
    let signed = || node.whole(i64::MIN, i64::MAX).map(i64::cast_unsigned);
    serde_json::from_str(node.raw())
        .or_else(|_| signed())
        .map_err(|_| node.wrong("a whole number of 64 bits"))
}

fn logit_bias(node: &Node<'_>) -> Result<Vec<(u32, f64)>, ApiError> {
    let fields = node.object()?;
    let mut biases = HashMap::new();
    for (name, value) in fields.all() {
        let token: u32 = name.parse().map_err(|_| {
            let message = "keys of `logit_bias` are token ids, as \"1234\"";
            ApiError::invalid(value.path(), message)
        })?;
        biases.insert(token, value.number(-100.0, 100.0)?);
    }
    let mut biases: Vec<(u32, f64)> = biases.into_iter().collect();
    biases.sort_unstable_by_key(|&(token, _)| token);
    Ok(biases)
}

/// A string, or an array of them.
pub(super) fn stop(node: Option<Node<'_>>, limits: &Limits) -> Result<Vec<String>, ApiError> {
    let Some(node) = node else { return Ok(Vec::new()) };
    let items =
        if node.kind() == Kind::Array { node.array(limits.stop)? } else { vec![node.clone()] };
    let string = |item: &Node<'_>| {
        let text = item.string()?;
        match text.len() {
            0 => Err(item.wrong("a string that is not empty")),
            1..=STOP_BYTES_MAX => Ok(text),
            _ => Err(item.wrong(&format!("a string of at most {STOP_BYTES_MAX} bytes"))),
        }
    };
    items.iter().map(string).collect()
}

/// The first of the fields that is there; the others are no longer unknown.
pub(super) fn max_tokens(
    fields: &mut Fields<'_>,
    names: &[&str],
    least: u32,
) -> Result<Option<usize>, ApiError> {
    let mut found = None;
    for name in names {
        if let Some(node) = fields.take(name) {
            let count = node.count(least, usize::MAX)?;
            found = found.or(Some(count));
        }
    }
    Ok(found)
}
