use super::*;
use std::path::Path;

/// A file that is missing in the list would never be compiled.
#[test]
fn the_list_is_the_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let names = |folder: &Path, prefix: &str| -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let names = entries.map(|e| e.expect("readable").file_name().into_string().expect("UTF-8"));
        let mut names: Vec<_> = names.filter(|name| name.ends_with(".k")).collect();
        names.sort();
        names.into_iter().map(|name| format!("{prefix}{name}")).collect()
    };
    let mut wanted = names(&folder, "");
    wanted.retain(|name| name != "common.k");
    wanted.insert(0, "common.k".into());
    wanted.extend(names(&folder.join("fast"), "fast/"));
    let found: Vec<_> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(found, wanted);
}

/// The table of grid points in the text is that of the format.
#[test]
fn grid_points() {
    use ironstar_quant::iq2_xxs::{GRID, MAGNITUDES};
    let blocks = FILES.iter().find(|(name, _)| *name == "blocks.k").expect("it is there").1;
    let table = blocks.split("IQ2_GRID, 512) = {").nth(1).expect("the table");
    let table = table.split('}').next().expect("its end");
    let words = table.split(',').map(str::trim).filter(|word| !word.is_empty());
    let found: Vec<u32> = words
        .map(|word| {
            let digits = word.trim_start_matches("0x").trim_end_matches('u');
            u32::from_str_radix(digits, 16).expect("a word")
        })
        .collect();
    let magnitude = |point: u16, j: u32| MAGNITUDES[usize::from((point >> (2 * j)) & 3)];
    let word = |point: u16, half: u32| {
        u32::from_le_bytes(std::array::from_fn(|i| {
            magnitude(point, 4 * half + u32::try_from(i).expect("below 4")).cast_unsigned()
        }))
    };
    let wanted: Vec<u32> = GRID.iter().flat_map(|p| [word(*p, 0), word(*p, 1)]).collect();
    assert_eq!(found, wanted);
}

/// Words of one API belong into its prelude.
#[test]
fn no_word_of_one_api_in_a_kernel() {
    let words = [
        "threadIdx",
        "blockIdx",
        "__",
        "threadgroup",
        "[[",
        "as_type",
        "constant ",
        "device ",
        "std::",
        "uint4(",
        "float4(",
    ];
    for (name, text) in FILES {
        for (index, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            let found = words.iter().find(|word| code.contains(*word));
            assert!(found.is_none(), "{name}:{}: {found:?} in {line}", index + 1);
        }
    }
}

/// Every kernel is made in one part, from its file, behind the files before it.
#[cfg(feature = "cuda")]
#[test]
fn parts_make_every_kernel_once() {
    let parts = cuda_parts();
    let mut made = String::new();
    for part in &parts {
        let (before, own) = part.split_once(MADE).expect("what is made");
        assert!(before.contains(LEFT_OUT) && own.starts_with("#line 1 "));
        assert_eq!(own.matches("#line 1 ").count(), 1, "one file");
        assert!(cuda().contains(own));
        made.push_str(own);
    }
    let kernels = |text: &str| text.matches("KERNEL").count();
    let prelude = kernels(CUDA_PRELUDE.1);
    assert_eq!(kernels(&made), kernels(&cuda()) - prelude);
    assert!(CUDA_PRELUDE.1.contains(MADE.trim_start_matches("#undef MADE\n")));
    assert_eq!(parts.len() + FUNCTIONS_ONLY.len(), FILES.len(), "the others have a part each");
}
