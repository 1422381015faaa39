//! `ironstar diff`: where two dumps part.

use crate::failure::Failure;
use crate::flags::{Diff, Dumping};
use crate::print;
use ironstar_engine::Engine;
use ironstar_engine::dump::{Comparison, Difference, Dump, DumpError, Place, compare};
use serde_json::{Value, json};

/// Tensors that are listed unless all are wanted.
const LISTED: usize = 20;

/// Runs the command.
pub fn run(flags: &Diff) -> Result<(), Failure> {
    let found = compare(&flags.a, &flags.b).map_err(failure)?;
    let first = found.first_beyond(flags.tolerance);
    if flags.json {
        print(format!("{}\n", json(&found, first)).as_bytes())?;
    } else {
        print(text(&found, flags).as_bytes())?;
    }
    match first {
        None => Ok(()),
        Some(difference) => {
            let is_exact = flags.tolerance == 0.0;
            let place = if is_exact { difference.first } else { difference.largest };
            let (name, place) = (&difference.name, place.as_ref().map(where_it_is));
            let place = place.unwrap_or_default();
            Err(Failure::environment(format!("the dumps part at {name}: {place}")))
        }
    }
}

/// Begins to keep what an engine computes, if the flags want that.
pub fn begin(engine: &mut Engine, flags: &Dumping) -> Result<Option<Dump>, Failure> {
    let Some(folder) = &flags.dump else { return Ok(None) };
    if engine.model().ranks() > 1 {
        let text =
            "--dump sees this process's part only; leave --ranks, --layers and launchers out";
        return Err(Failure::caller(text));
    }
    let positions = flags.dump_positions.clone().unwrap_or(0..usize::MAX);
    let dump = Dump::create(folder, engine.model().shape(), positions).map_err(failure)?;
    engine.set_observer(Some(dump.observer()));
    Ok(Some(dump))
}

/// Completes a dump.
pub fn end(dump: Option<&Dump>) -> Result<Option<String>, Failure> {
    let Some(dump) = dump else { return Ok(None) };
    let (tensors, records) = dump.finish().map_err(failure)?;
    Ok(Some(format!("dumped {tensors} tensors, {records} rows")))
}

fn failure(error: DumpError) -> Failure {
    let is_input = error.is_input();
    let text = error.to_string();
    if is_input { Failure::caller(text) } else { Failure::environment(text) }
}

fn where_it_is(place: &Place) -> String {
    let Place { position, index, values: [a, b] } = place;
    format!("position {position}, value {index}: {a:e} and {b:e}")
}

fn text(found: &Comparison, flags: &Diff) -> String {
    let mut out = format!("{} positions, {} tensors\n", found.positions, found.tensors.len());
    if let Some(position) = found.tokens_part_at {
        out.push_str(&format!("from position {position} on the tokens are others\n"));
    }
    if let [first, others @ ..] = &found.only_one[..] {
        let more = others.len();
        out.push_str(&format!("only one of them has {first} and {more} others\n"));
    }
    let differing: Vec<&Difference> =
        found.tensors.iter().filter(|tensor| tensor.rows.1 > 0).collect();
    if differing.is_empty() {
        out.push_str("all bits are equal\n");
        return out;
    }
    let listed = if flags.all { differing.len() } else { LISTED };
    out.push_str("tensor                          rows   differ   relative  furthest apart\n");
    for tensor in differing.iter().take(listed) {
        let (rows, differ) = tensor.rows;
        let place = tensor.largest.map(|place| where_it_is(&place)).unwrap_or_default();
        let (name, relative) = (&tensor.name, tensor.relative);
        out.push_str(&format!("{name:<28} {rows:>7} {differ:>8} {relative:>10.2e}  {place}\n"));
    }
    if differing.len() > listed {
        out.push_str(&format!("and {} others (--all)\n", differing.len() - listed));
    }
    out
}

fn json(found: &Comparison, first: Option<&Difference>) -> Value {
    let place = |place: &Place| {
        let Place { position, index, values } = place;
        // What is no number has no place in JSON.
        let values = values.map(|value| value.is_finite().then_some(value));
        json!({"position": position, "index": index, "values": values})
    };
    let tensor = |d: &Difference| {
        json!({
            "name": d.name,
            "rows": d.rows.0,
            "differing": d.rows.1,
            "relative": d.relative.is_finite().then_some(d.relative),
            "first": d.first.as_ref().map(place),
            "largest": d.largest.as_ref().map(place),
        })
    };
    json!({
        "positions": found.positions,
        "tokens_part_at": found.tokens_part_at,
        "only_one": found.only_one,
        "first": first.map(|difference| &difference.name),
        "tensors": found.tensors.iter().map(tensor).collect::<Vec<_>>(),
    })
}
