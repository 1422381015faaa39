//! `ironstar pack`: the same weights in the order in which cards read them, and back.

use crate::failure::Failure;
use crate::flags::Pack;
use crate::progress::Progress;
use crate::{loading, outfile, print};
use ironstar_gguf::{Gguf, TensorInfo};
use std::fs::{File, OpenOptions};
use std::io::Seek;
use std::path::Path;

/// Runs the command.
pub fn run(flags: &Pack) -> Result<(), Failure> {
    let model = Gguf::open(&flags.input).map_err(|error| loading::from_gguf(&error))?;
    outfile::check(&flags.output, &[&flags.input], flags.force)?;
    write(flags, &model)?;
    // What was written is read back before anybody relies on it.
    let made = Gguf::open(&flags.output).map_err(|error| loading::from_gguf(&error))?;
    report(flags, &model, &made)
}

/// Writes beside the output, which gets its name once it is complete. Nothing is left of a run that
/// fails.
fn write(flags: &Pack, model: &Gguf) -> Result<(), Failure> {
    let partial = outfile::with_ending(&flags.output, ".partial");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file =
        options.open(&partial).map_err(|error| Failure::file("creating", &partial, &error))?;
    outfile::lock(&file, &partial)?;
    let written = file
        .set_len(0)
        .map_err(|error| Failure::file("emptying", &partial, &error))
        .and_then(|()| fill(flags, model, &file, &partial));
    if written.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    written
}

fn fill(flags: &Pack, model: &Gguf, mut file: &File, partial: &Path) -> Result<(), Failure> {
    let bytes = |tensor: &TensorInfo| tensor.byte_count().unwrap_or(0);
    let (what, total) = (if flags.undo { "unpacking" } else { "packing" }, model.tensors());
    let progress = Progress::new(what, total.iter().map(bytes).sum(), "bytes");
    let mut done = 0;
    let mut step = |tensor: &TensorInfo| {
        progress.message(&tensor.name);
        progress.at(done);
        done += bytes(tensor);
    };
    let make = if flags.undo { ironstar_gguf::unpack } else { ironstar_gguf::pack };
    file.rewind().map_err(|error| Failure::file("writing", partial, &error))?;
    make(model, file, &mut step).map_err(|error| loading::from_gguf(&error))?;
    file.sync_all()
        .and_then(|()| std::fs::rename(partial, &flags.output))
        .map_err(|error| Failure::file("finishing", &flags.output, &error))
}

fn report(flags: &Pack, model: &Gguf, made: &Gguf) -> Result<(), Failure> {
    let file = flags.output.display().to_string();
    let packed = if flags.undo { model } else { made };
    let tensors = packed.tensors().len();
    let planes = packed.tensors().iter().filter(|tensor| tensor.planes().is_some()).count();
    let bytes = std::fs::metadata(&flags.output).map_or(0, |about| about.len());
    let same = model.is_plain();
    if flags.json {
        let undo = if flags.undo { None } else { Some(same) };
        let object = serde_json::json!({
            "file": file, "bytes": bytes, "tensors": tensors, "in_planes": planes,
            "undo_gives_equal_bytes": undo,
        });
        return print(format!("{object}\n").as_bytes());
    }
    let mut text = if flags.undo {
        format!("{file}: {tensors} tensors, {bytes} bytes, {planes} tensors were in planes\n")
    } else {
        format!("{file}: {tensors} tensors, {bytes} bytes, {planes} tensors in planes\n")
    };
    if !flags.undo && !same {
        text += "--undo will give a file of the same keys and weights, and not the same bytes: \
                 this one has parts, gaps or an order that are not kept\n";
    }
    print(text.as_bytes())
}
