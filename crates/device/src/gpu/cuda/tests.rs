//! What can be known without a card: a machine that has none is told so, and never a panic.
//! What needs one is run by `examples/gpu_check.rs` (docs/gpu.md).

use super::{Cuda, CudaConfig, cuda_devices};
use crate::Error;

/// Holds on machines with a card as well: number 4000 is on none of them.
#[test]
fn a_card_that_is_not_there_is_an_error_with_advice() {
    let config = CudaConfig { device: 4000, ..CudaConfig::default() };
    let Err(Error::Unsupported { found, wanted }) = Cuda::open(&config, "") else {
        panic!("there is no card 4000");
    };
    match cuda_devices() {
        Ok(cards) => assert!(found.contains("4000") && !cards.is_empty(), "{found}"),
        Err(error) => {
            assert!(wanted.contains("--backend cpu"), "{wanted}");
            assert!(error.to_string().contains("cuda"), "{error}");
        }
    }
}

#[test]
fn a_folder_without_the_compiler_is_an_error_with_advice() {
    let nowhere = std::env::temp_dir().join("ironstar-no-nvrtc-here");
    let Err(Error::Unsupported { found, wanted }) = super::nvrtc::Compiler::load(Some(&nowhere))
    else {
        panic!("an empty folder has no library");
    };
    assert!(found.contains("ironstar-no-nvrtc-here"), "{found}");
    assert!(wanted.contains("pip install"), "{wanted}");
}
