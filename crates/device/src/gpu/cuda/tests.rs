//! What can be known without a card: a machine that has none is told so, and never a panic.
//! What needs one is run by `examples/gpu_check.rs` (docs/gpu.md).

use super::context::with_pages;
use super::{
    Cuda, CudaConfig, OPTIONS, cache, compiled, cuda_compile, cuda_count, cuda_device, cuda_devices,
};
use crate::{Error, HostMemory};
use std::collections::BTreeSet;
use std::path::Path;

/// Functions that the driver for CUDA 12.0 has: a call of one that is missing is a panic.
const OLDEST_HAS: &str = "cuCtxEnablePeerAccess cuCtxGetStreamPriorityRange cuCtxSetCurrent \
    cuCtxSynchronize cuDeviceCanAccessPeer cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount \
    cuDeviceGetName cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRetain cuDriverGetVersion \
    cuEventCreate cuEventDestroy_v2 cuEventElapsedTime cuEventRecord cuEventSynchronize \
    cuFuncSetAttribute cuGraphDestroy cuGraphExecDestroy cuGraphInstantiateWithFlags cuGraphLaunch \
    cuGraphUpload cuInit cuIpcCloseMemHandle cuIpcGetMemHandle cuIpcOpenMemHandle_v2 \
    cuLaunchKernelEx cuMemAlloc_v2 cuMemFreeHost cuMemFree_v2 cuMemGetAddressRange_v2 \
    cuMemGetInfo_v2 cuMemHostAlloc cuMemHostGetDevicePointer_v2 cuMemHostRegister_v2 \
    cuMemHostUnregister cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2 cuMemcpyHtoDAsync_v2 cuMemcpyHtoD_v2 \
    cuMemsetD32_v2 cuMemsetD8Async cuMemsetD8_v2 cuModuleGetFunction cuModuleGetGlobal_v2 \
    cuModuleLoadData cuModuleUnload cuOccupancyMaxActiveClusters cuStreamBeginCapture_v2 \
    cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamEndCapture \
    cuStreamSynchronize cuStreamWaitEvent";

/// Whoever calls another function looks up since when it is there, and asks for the driver's
/// version where that is later, as `Context::tells_parameters` does.
#[test]
fn the_oldest_driver_has_what_is_called() {
    let mut called = BTreeSet::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gpu/cuda");
    for file in std::fs::read_dir(folder).expect("this folder") {
        let path = file.expect("readable").path();
        let text = std::fs::read_to_string(path).expect("a text");
        let calls = text.split("sys::cu").skip(1);
        let names = calls.filter_map(|rest| rest.split(|c| !is_of_a_name(c)).next());
        let names = names.filter(|name| name.starts_with(char::is_uppercase));
        called.extend(names.map(|name| format!("cu{name}")));
    }
    assert!(called.len() > 40, "{called:?}");
    let has: BTreeSet<String> = OLDEST_HAS.split_whitespace().map(str::to_owned).collect();
    let later: Vec<_> = called.difference(&has).collect();
    assert_eq!(later, ["cuFuncGetParamInfo"]);
}

fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// What was compiled for another machine is found there, by what it was made from alone, and no
/// compiler is looked for.
#[test]
fn kernels_that_were_brought_along_are_found() {
    let folder = std::env::temp_dir().join(format!("ironstar-brought-{}", std::process::id()));
    let nowhere = Some(folder.join("no-nvrtc"));
    let config =
        CudaConfig { cache: Some(folder.clone()), nvrtc: nowhere, ..CudaConfig::default() };
    cache::Entry::new(Some(&folder), &["text", OPTIONS, "90", "13000"]).store(b"code");
    let text = ["text".to_owned()];
    let found = compiled(&config, [90, 13_000], &text).map_err(|error| error.to_string());
    let others = [[90, 12_080], [100, 13_000]].map(|card| compiled(&config, card, &text).is_err());
    let error = cuda_compile(&config, [90, 13_000]).map_err(|error| error.to_string());
    let _ = std::fs::remove_dir_all(&folder);
    assert_eq!(found, Ok(vec![b"code".to_vec()]));
    assert_eq!(others, [true; 2], "another driver, another card");
    assert!(error.is_err_and(|text| text.contains("no-nvrtc")));
}

/// Holds on machines with a card as well: number 4000 is on none of them.
#[test]
fn a_card_that_is_not_there_is_an_error_with_advice() {
    let config = CudaConfig { device: 4000, ..CudaConfig::default() };
    let Err(Error::Unsupported { found, wanted }) = Cuda::open(&config, &[]) else {
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

/// A card by its number is asked for alone; without a driver both say what all would.
#[test]
fn one_card_is_asked_for_alone() {
    let wanted = match (cuda_count(), cuda_devices()) {
        (Ok(count), Ok(cards)) => {
            assert_eq!(usize::try_from(count), Ok(cards.len()));
            format!("one of the {count}")
        }
        (Err(one), Err(all)) => {
            assert_eq!(one.to_string(), all.to_string());
            "--backend cpu".to_owned()
        }
        (count, cards) => panic!("{count:?} and {cards:?}"),
    };
    let error = cuda_device(4000).expect_err("there is no card 4000").to_string();
    assert!(error.contains(&wanted), "{error}");
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

/// A part whose driver says what lies bare: pages of files that the system would give back are
/// room too, as far as there is any.
#[test]
fn pages_that_are_given_back_are_free() {
    let host = |now| Some(HostMemory { most: 128, now });
    assert_eq!(with_pages(3, 120, host(Some(117))), 117);
    assert_eq!(with_pages(3, 120, host(Some(125))), 120);
    assert_eq!(with_pages(90, 120, host(Some(80))), 90);
    assert_eq!([with_pages(3, 120, host(None)), with_pages(3, 120, None)], [3, 3]);
}
