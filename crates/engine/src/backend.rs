//! Which device a model runs on: what was asked for, or the best that is there and has room.

use crate::{EngineOptions, Error};
use ironstar_device::{
    Backend, Cpu, CpuConfig, CudaConfig, CudaDevice, Error as DeviceError, Gpu, GpuConfig,
    HostMemory, Shortcuts, cuda_devices, host_memory,
};
use ironstar_gguf::Gguf;
use std::collections::HashSet;

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The best that is there: a card with room for the model, else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// An NVIDIA card ([`EngineOptions::card`]).
    Cuda,
}

/// Room that is kept beside the weights for states, scratch and the driver.
pub const RESERVE_BYTES: u64 = 2 << 30;

/// Bytes of weights: what the processor needs, which counts what tensors share once, and a card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    host: u64,
    card: u64,
}

impl Need {
    /// A part of a model that takes so many bytes.
    pub fn of_bytes(bytes: u64) -> Need {
        Need { host: bytes, card: bytes.saturating_add(RESERVE_BYTES) }
    }
}

/// What all weights of these files need.
pub(crate) fn needs(files: &[&Gguf]) -> Result<Need, Error> {
    let mut card = RESERVE_BYTES;
    for file in files {
        for tensor in file.tensors() {
            card = card.saturating_add(file.place(tensor)?.range.len() as u64);
        }
    }
    Ok(Need { host: weight_bytes(files)?, card })
}

/// A backend, and why it is not a better one where that is worth saying.
pub(crate) struct Opened {
    pub backend: Box<dyn Backend>,
    pub note: Option<String>,
}

/// The backend that the options name, for a part of a model that takes so many bytes; and why it is
/// not a better one, where that is worth saying.
pub fn open_backend(
    options: &EngineOptions,
    weight_bytes: u64,
) -> Result<(Box<dyn Backend>, Option<String>), Error> {
    let Opened { backend, note } = open(options, Need::of_bytes(weight_bytes))?;
    Ok((backend, note))
}

/// Opens the backend that the options name for such weights.
pub(crate) fn open(options: &EngineOptions, need: Need) -> Result<Opened, Error> {
    let devices = match (options.backend, &options.cards) {
        (BackendChoice::Cpu, _) => return cpu(options, need),
        (_, Some(cards)) => cards.clone(),
        (BackendChoice::Cuda, None) => cuda_devices()?,
        (BackendChoice::Auto, None) => cuda_devices().unwrap_or_default(),
    };
    let device = usize::try_from(options.card).ok().and_then(|card| devices.get(card));
    let on_card = || Ok(Opened { backend: cuda(options)?, note: None });
    match (options.backend, device) {
        (BackendChoice::Auto, None) => cpu(options, need),
        (BackendChoice::Auto, Some(device)) => {
            room(device, need).and_then(|()| on_card()).or_else(|error| {
                let why = format!("runs on the processor, not on {}: {error}", device.name);
                let opened = cpu(options, need)?;
                let note = [Some(why), opened.note].into_iter().flatten().collect::<Vec<_>>();
                Ok(Opened { note: Some(note.join("; ")), ..opened })
            })
        }
        (_, device) => {
            device.map_or(Ok(()), |device| room(device, need))?;
            on_card()
        }
    }
}

fn cpu(options: &EngineOptions, need: Need) -> Result<Opened, Error> {
    if options.shortcuts != [Shortcuts::NONE; 2] {
        let [disabled, required] = options.shortcuts;
        return Err(DeviceError::Unsupported {
            found: format!(
                "shortcuts on the processor (disabled: {disabled}; required: {required})"
            ),
            wanted: "only a GPU has them: --backend cuda".into(),
        }
        .into());
    }
    let note = check_host(need.host)?;
    let (threads, isa, float_products) = (options.threads, options.isa, options.float_products);
    let backend = Box::new(Cpu::new(CpuConfig { threads, isa, float_products })?);
    Ok(Opened { backend, note })
}

/// Refuses so many bytes of weights if this machine cannot hold them, before anything is loaded;
/// gives a warning where something else must be pushed out for them.
pub fn check_host(weight_bytes: u64) -> Result<Option<String>, Error> {
    host_memory().map_or(Ok(None), |memory| host_room(memory, weight_bytes))
}

fn host_room(memory: HostMemory, wanted: u64) -> Result<Option<String>, Error> {
    if wanted > memory.most {
        let found = format!("a processor with {} of memory", gib(memory.most));
        let needed = gib(wanted);
        let wanted =
            format!("the weights alone need {needed}; use a smaller mix (`ironstar doctor`)");
        return Err(DeviceError::Unsupported { found, wanted }.into());
    }
    let now = memory.now.filter(|now| wanted > *now);
    Ok(now.map(|now| {
        format!(
            "the weights need {}, but only {} of memory are free: the system may be slow; end \
             other programs or use a smaller mix",
            gib(wanted),
            gib(now)
        )
    }))
}

/// Bytes of all weights; what tensors share is counted once.
fn weight_bytes(files: &[&Gguf]) -> Result<u64, Error> {
    let mut seen = HashSet::new();
    let mut sum = 0u64;
    for file in files {
        for tensor in file.tensors() {
            let place = file.place(tensor)?;
            let bytes = place.range.len() as u64;
            if seen.insert((std::ptr::from_ref(*file), place)) {
                sum = sum.saturating_add(bytes);
            }
        }
    }
    Ok(sum)
}

/// Settings of a GPU from an engine's options.
pub(crate) fn gpu_config(options: &EngineOptions) -> GpuConfig {
    let [disabled, required] = options.shortcuts;
    let float_products = options.float_products;
    GpuConfig { float_products, disabled, required, ..GpuConfig::default() }
}

/// A card, and how its kernels are made.
pub(crate) fn cuda_config(options: &EngineOptions, device: u32) -> CudaConfig {
    let (cache, compiling) = (options.kernel_cache.clone(), options.compiling.clone());
    CudaConfig { device, cache, compiling, ..CudaConfig::default() }
}

fn cuda(options: &EngineOptions) -> Result<Box<dyn Backend>, Error> {
    let (device, config) = (cuda_config(options, options.card), gpu_config(options));
    Ok(Box::new(Gpu::cuda(&device, config)?))
}

/// Refuses models that do not fit, before anything is loaded.
fn room(device: &CudaDevice, need: Need) -> Result<(), Error> {
    fits(&device.name, need.card, device.memory_free)
}

pub(crate) fn fits(name: &str, bytes: u64, free: u64) -> Result<(), Error> {
    if bytes <= free {
        return Ok(());
    }
    let found = format!("{name}, of which {} are free,", gib(free));
    let wanted = format!(
        "the model needs {} with the room for states; share it between cards (--ranks 2), use \
         --backend cpu, a smaller mix, or free memory of the card",
        gib(bytes)
    );
    Err(DeviceError::Unsupported { found, wanted }.into())
}

pub(crate) fn gib(bytes: u64) -> String {
    format!("{}.{} GiB", bytes >> 30, ((bytes & 0x3fff_ffff) * 10) >> 30)
}

#[cfg(test)]
mod tests;
