//! Which device a model runs on: what was asked for, or the best that is there and has room.

use crate::{EngineOptions, Error};
use ironstar_device::{
    Backend, Cpu, CpuConfig, CudaConfig, CudaDevice, Error as DeviceError, Gpu, GpuConfig,
    cuda_devices,
};
use ironstar_gguf::Gguf;

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

impl Opened {
    fn quietly(backend: Box<dyn Backend>) -> Self {
        Opened { backend, note: None }
    }
}

/// Opens the backend that the options name for these files.
pub(crate) fn open(options: &EngineOptions, files: &[&Gguf]) -> Result<Opened, Error> {
    let devices = match options.backend {
        BackendChoice::Cpu => return Ok(Opened::quietly(cpu(options)?)),
        BackendChoice::Cuda => cuda_devices()?,
        BackendChoice::Auto => cuda_devices().unwrap_or_default(),
    };
    match (options.backend, devices.first()) {
        (BackendChoice::Auto, None) => Ok(Opened::quietly(cpu(options)?)),
        (BackendChoice::Auto, Some(device)) => {
            let opened = room(device, files).and_then(|()| cuda(options));
            opened.map(Opened::quietly).or_else(|error| {
                let note = format!("runs on the processor, not on {}: {error}", device.name);
                Ok(Opened { backend: cpu(options)?, note: Some(note) })
            })
        }
        (_, device) => {
            device.map_or(Ok(()), |device| room(device, files))?;
            Ok(Opened::quietly(cuda(options)?))
        }
    }
}

fn cpu(options: &EngineOptions) -> Result<Box<dyn Backend>, Error> {
    let (threads, isa, float_products) = (options.threads, options.isa, options.float_products);
    Ok(Box::new(Cpu::new(CpuConfig { threads, isa, float_products })?))
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
    let gib = |bytes: u64| format!("{}.{} GiB", bytes >> 30, ((bytes & 0x3fff_ffff) * 10) >> 30);
    let found = format!("{name}, of which {} are free,", gib(free));
    let wanted = format!(
        "the model needs {} with the room for states; use --backend cpu, a smaller mix, or free \
         memory of the card",
        gib(bytes)
    );
    Err(DeviceError::Unsupported { found, wanted }.into())
}

#[cfg(test)]
mod tests;
