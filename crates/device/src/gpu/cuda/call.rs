//! Calls of the driver API: results as errors that say what to do.

use crate::Error;
use cudarc::driver::result::DriverError;
use cudarc::driver::sys::{self, CUresult};

/// Turns a status into an error that names what was being done.
pub(super) fn check(doing: &'static str, status: CUresult) -> Result<(), Error> {
    match status {
        CUresult::CUDA_SUCCESS => Ok(()),
        _ => Err(failure(doing, status)),
    }
}

/// The error of a status that is not success.
pub(super) fn failure(doing: &'static str, status: CUresult) -> Error {
    Error::Device { device: "cuda".into(), doing, found: describe(status), advice: advice(status) }
}

/// Name and sentence of a status, as the driver has them.
pub(super) fn describe(status: CUresult) -> String {
    let error = DriverError(status);
    let text = |found: Result<&std::ffi::CStr, DriverError>| {
        found.map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
    };
    match (text(error.error_name()), text(error.error_string())) {
        (name, sentence) if name.is_empty() => format!("status {status:?} {sentence}"),
        (name, sentence) => format!("{name} ({sentence})"),
    }
}

fn advice(status: CUresult) -> &'static str {
    use CUresult as S;
    match status {
        S::CUDA_ERROR_NO_DEVICE => {
            "no card is visible: see whether `nvidia-smi` lists it and whether \
             CUDA_VISIBLE_DEVICES hides it"
        }
        S::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | S::CUDA_ERROR_SYSTEM_NOT_READY => {
            "kernel module and library differ or are not ready: restart the machine"
        }
        S::CUDA_ERROR_OUT_OF_MEMORY => {
            "free memory on the card (`nvidia-smi` shows who holds it), or use a smaller context \
             or model"
        }
        S::CUDA_ERROR_ILLEGAL_ADDRESS
        | S::CUDA_ERROR_LAUNCH_FAILED
        | S::CUDA_ERROR_MISALIGNED_ADDRESS
        | S::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | S::CUDA_ERROR_ASSERT => {
            "a kernel broke, which is a bug of ours; the process must be started again"
        }
        S::CUDA_ERROR_ECC_UNCORRECTABLE => "the card's memory is damaged: see `nvidia-smi -q`",
        S::CUDA_ERROR_LAUNCH_TIMEOUT => {
            "the display's watchdog stopped a kernel: use a card without a display"
        }
        _ => "see `ironstar doctor` and the driver's log",
    }
}

/// Whether the driver's library is on this machine; asking cudarc without it would panic.
pub(super) fn library_present() -> bool {
    // SAFETY: it only tries to load the library, whose initialiser is NVIDIA's.
    unsafe { sys::is_culib_present() }
}
