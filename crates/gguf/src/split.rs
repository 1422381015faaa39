//! Split models: the parts beside the first, checked to belong together.
//!
//! Every part says its number (from 0), how many there are, and how many tensors all hold; the
//! first part alone has the model's metadata. Files are named `NAME-00001-of-00003.gguf`.

use crate::bytes::map;
use crate::file::{Data, Gguf};
use crate::header::Header;
use crate::{Error, Metadata, error, header};
use std::path::Path;

/// Most parts of a split model.
pub const PARTS_MAX: u64 = 1024;

const NUMBER_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// What a part says about the split.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Split {
    /// From 0.
    number: u64,
    count: u64,
    /// Tensors of all parts.
    tensors: Option<u64>,
}

impl Split {
    /// `None` for a model in one file.
    fn read(metadata: &Metadata) -> Result<Option<Self>, Error> {
        let Some(count) = metadata.opt_u64(COUNT_KEY)?.filter(|count| *count > 1) else {
            return Ok(None);
        };
        let number = metadata.u64(NUMBER_KEY)?;
        Ok(Some(Split { number, count, tensors: metadata.opt_u64(TENSORS_KEY)? }))
    }

    fn place(self) -> String {
        let Split { number, count, tensors } = self;
        let tensors = tensors.map_or("an unknown number of".into(), |count| count.to_string());
        format!("{} of {count} ({tensors} tensors in all)", number.saturating_add(1))
    }

    fn described(self) -> String {
        format!("this is part {}", self.place())
    }
}

impl Gguf {
    /// The model, unless it is one part of several.
    pub(crate) fn whole(self) -> Result<Self, Error> {
        match Split::read(self.metadata())? {
            None => Ok(self),
            Some(split) => {
                let found = split.described();
                let wanted = "a model in memory must be whole; open the first part by its path";
                Err(error::format(&self.metadata().file, COUNT_KEY, found, wanted))
            }
        }
    }

    /// Opens the parts after the first, which is open; nothing to do for a model in one file.
    pub(crate) fn open_other_parts(&mut self, first: &Path) -> Result<(), Error> {
        let Some(split) = Split::read(self.metadata())? else { return Ok(()) };
        let file = first.display().to_string();
        let wrong = |field: &str, found: String, wanted: String| {
            Err(error::format(&file, field, found, wanted))
        };
        if split.count > PARTS_MAX {
            let wanted = format!("at most {PARTS_MAX} parts are read");
            return wrong(COUNT_KEY, split.count.to_string(), wanted);
        }
        let name = first.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let ending = |number: u64| format!("-{:05}-of-{:05}.gguf", number + 1, split.count);
        if split.number != 0 {
            let found = split.described();
            let wanted = format!("open the first part, whose name ends in '{}'", ending(0));
            return wrong(NUMBER_KEY, found, wanted);
        }
        let Some(stem) = name.strip_suffix(&ending(0)) else {
            let found = format!("the first of {} parts is called '{name}'", split.count);
            let wanted = format!("'NAME{}' is wanted, so that the others are found", ending(0));
            return wrong(COUNT_KEY, found, wanted);
        };
        for number in 1..split.count {
            let path = first.with_file_name(format!("{stem}{}", ending(number)));
            self.add_part(&path, Split { number, ..split })?;
        }
        match split.tensors {
            Some(wanted) if wanted != self.tensors().len() as u64 => wrong(
                TENSORS_KEY,
                format!("the parts hold {} tensors", self.tensors().len()),
                format!("{wanted} are announced; a part of another model may be among them"),
            ),
            _ => Ok(()),
        }
    }

    fn add_part(&mut self, path: &Path, wanted: Split) -> Result<(), Error> {
        let file = path.display().to_string();
        let store = map(path)?;
        let header = header::read(&file, &store)?;
        let found = Split::read(&header.metadata)?;
        if found != Some(wanted) {
            let found = found.map_or("this is a model in one file".into(), Split::described);
            let wanted = format!("part {} is wanted; fetch the parts again", wanted.place());
            return Err(error::format(&file, NUMBER_KEY, found, wanted));
        }
        self.same_architecture(&file, &header.metadata)?;
        let Header { data_start, alignment, is_packed, .. } = header;
        let data = Data { start: data_start, alignment, is_packed };
        self.add(file, store, header.tensors, data)
    }

    /// A part need not name its architecture; if it does, it is the first part's.
    fn same_architecture(&self, file: &str, part: &Metadata) -> Result<(), Error> {
        const KEY: &str = "general.architecture";
        match (part.opt_str(KEY)?, self.metadata().opt_str(KEY)?) {
            (Some(found), Some(wanted)) if found != wanted => {
                let wanted = format!("the first part has '{}'", error::shown(wanted));
                Err(error::format(file, KEY, format!("'{}'", error::shown(found)), wanted))
            }
            _ => Ok(()),
        }
    }
}
