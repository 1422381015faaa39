//! Which device a model runs on: what was asked for, or the best that is there and has room.

use crate::{EngineOptions, Error};
use ironstar_device::{
    Backend, Cpu, CpuConfig, CudaConfig, CudaDevice, Error as DeviceError, Gpu, GpuConfig,
    HostMemory, cuda_devices, host_memory,
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
    /// The first NVIDIA card.
    Cuda,
}

/// Room that is kept beside the weights for states, scratch and the driver.
const RESERVE_BYTES: u64 = 2 << 30;

/// A backend, and why it is not a better one where that is worth saying.
pub(crate) struct Opened {
    pub backend: Box<dyn Backend>,
    pub note: Option<String>,
}

/// Opens the backend that the options name for these files.
pub(crate) fn open(options: &EngineOptions, files: &[&Gguf]) -> Result<Opened, Error> {
    let devices = match options.backend {
        BackendChoice::Cpu => return cpu(options, files),
        BackendChoice::Cuda => cuda_devices()?,
        BackendChoice::Auto => cuda_devices().unwrap_or_default(),
    };
    let on_card = || Ok(Opened { backend: cuda(options)?, note: None });
    match (options.backend, devices.first()) {
        (BackendChoice::Auto, None) => cpu(options, files),
        (BackendChoice::Auto, Some(device)) => {
            room(device, files).and_then(|()| on_card()).or_else(|error| {
                let why = format!("runs on the processor, not on {}: {error}", device.name);
                let opened = cpu(options, files)?;
                let note = [Some(why), opened.note].into_iter().flatten().collect::<Vec<_>>();
                Ok(Opened { note: Some(note.join("; ")), ..opened })
            })
        }
        (_, device) => {
            device.map_or(Ok(()), |device| room(device, files))?;
            on_card()
        }
    }
}

fn cpu(options: &EngineOptions, files: &[&Gguf]) -> Result<Opened, Error> {
    let note = host_memory().map_or(Ok(None), |memory| host_room(memory, files))?;
    let (threads, isa, float_products) = (options.threads, options.isa, options.float_products);
    let backend = Box::new(Cpu::new(CpuConfig { threads, isa, float_products })?);
    Ok(Opened { backend, note })
}

/// Refuses weights that the machine cannot hold, before anything is loaded, and warns of those for
/// which something else must be pushed out.
fn host_room(memory: HostMemory, files: &[&Gguf]) -> Result<Option<String>, Error> {
    let wanted = weight_bytes(files)?;
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
            let bytes = file.bytes(tensor)?;
            if seen.insert((bytes.as_ptr(), bytes.len())) {
                sum = sum.saturating_add(bytes.len() as u64);
            }
        }
    }
    Ok(sum)
}

fn cuda(options: &EngineOptions) -> Result<Box<dyn Backend>, Error> {
    let device = CudaConfig { cache: options.kernel_cache.clone(), ..CudaConfig::default() };
    let config = GpuConfig { float_products: options.float_products, ..GpuConfig::default() };
    Ok(Box::new(Gpu::cuda(&device, config)?))
}

/// Refuses models that do not fit, before anything is loaded.
fn room(device: &CudaDevice, files: &[&Gguf]) -> Result<(), Error> {
    let mut bytes = RESERVE_BYTES;
    for file in files {
        for tensor in file.tensors() {
            bytes = bytes.saturating_add(file.bytes(tensor)?.len() as u64);
        }
    }
    fits(&device.name, bytes, device.memory_free)
}

fn fits(name: &str, bytes: u64, free: u64) -> Result<(), Error> {
    if bytes <= free {
        return Ok(());
    }
    let found = format!("{name}, of which {} are free,", gib(free));
    let wanted = format!(
        "the model needs {} with the room for states; use --backend cpu, a smaller mix, or free \
         memory of the card",
        gib(bytes)
    );
    Err(DeviceError::Unsupported { found, wanted }.into())
}

fn gib(bytes: u64) -> String {
    format!("{}.{} GiB", bytes >> 30, ((bytes & 0x3fff_ffff) * 10) >> 30)
}

#[cfg(test)]
mod tests;
