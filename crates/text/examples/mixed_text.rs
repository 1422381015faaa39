//! Writes the mixed and the stress texts to a folder, for the script that makes golden ids.
//!
//! usage: mixed_text FOLDER

#[path = "../tests/suite/support/mixed_text.rs"]
mod mixed_text;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: mixed_text FOLDER")?;
    let folder = std::path::Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    for index in 0..mixed_text::CHUNKS {
        std::fs::write(folder.join(format!("mixed {index}")), mixed_text::chunk(index))?;
    }
    for (name, text) in mixed_text::stress() {
        std::fs::write(folder.join(format!("stress {name}")), text)?;
    }
    Ok(())
}
