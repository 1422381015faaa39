//! Compiles the kernels for a card that is on another machine, so that its time is not spent on it:
//! `kernel_cache FOLDER [--nvrtc FOLDER] [--capability 90] [--driver 13000]`.
//!
//! FOLDER is what becomes `~/.cache/ironstar/kernels` there. The capability is 90 for 9.0, the
//! driver 13000 for CUDA 13.0, as `ironstar doctor` shows both; for others the folder is of no use
//! and does no harm. NVRTC is looked for where the loader looks, or in the folder of that name: a
//! run of `cargo xtask kernel-check` leaves one under `target/kernel-check/python`.
#![expect(clippy::print_stdout, reason = "a tool")]

use ironstar_device::{CudaConfig, cuda_compile};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut config, mut card) = (CudaConfig::default(), [90, 13_000]);
    let mut all = std::env::args().skip(1);
    while let Some(word) = all.next() {
        let mut value = || all.next().ok_or_else(|| format!("{word} needs a value"));
        match &*word {
            "--nvrtc" => config.nvrtc = Some(value()?.into()),
            "--capability" => card[0] = value()?.parse()?,
            "--driver" => card[1] = value()?.parse()?,
            name if name.starts_with('-') || config.cache.is_some() => {
                return Err(
                    format!("{name:?} is not understood; see the page of the example").into()
                );
            }
            name => config.cache = Some(name.into()),
        }
    }
    let folder = config.cache.clone().ok_or("name a folder")?;
    let [waits, plain, stamps] = cuda_compile(&config, card)?;
    let [capability, driver] = card;
    println!(
        "{}: kernels for {capability} and driver {driver}: {waits}, without edges {plain}, with \
         stamps {stamps} bytes",
        folder.display()
    );
    Ok(())
}
