//! One form for names of published tensors.
//!
//! Spec 7.1 lists an optional prefix `model.` and older words; all are brought to its table's form,
//! so that `model.layers.3.self_attn.wkv.weight_scale_inv` is `layers.3.attn.wkv.scale`.

const PREFIX: &str = "model";

/// Older words between dots, and what the table says.
const OLDER: [(&str, &str); 4] = [
    ("self_attn", "attn"),
    ("mlp", "ffn"),
    ("weight_scale_inv", "scale"),
    ("e_score_correction_bias", "bias"),
];

/// The form in which names are kept; of a kept name, itself.
pub(crate) fn canonical(name: &str) -> String {
    let words = name.split('.').skip_while(|word| *word == PREFIX);
    words.map(newer).collect::<Vec<_>>().join(".")
}

fn newer(word: &str) -> &str {
    OLDER.iter().find(|(older, _)| *older == word).map_or(word, |(_, newer)| newer)
}

/// The name of the scales that belong to a matrix.
pub(crate) fn scales_of(name: &str) -> String {
    let name = canonical(name);
    format!("{}.scale", name.strip_suffix(".weight").unwrap_or(&name))
}
