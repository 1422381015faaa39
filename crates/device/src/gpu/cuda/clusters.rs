//! What launches ask for beside their grid: to begin early, and clusters, groups that run at the
//! same time and reach each other's shared memory (compute capability 9.0 and later).

use super::call::check;
use super::{Cuda, text};
use crate::Error;
use crate::gpu::driver::Driver;
use cudarc::driver::sys::{self, CUresult};

/// Threads of a group that are asked for when clusters are looked for.
const THREADS: u32 = 544;

/// Lets a kernel have clusters of more than eight groups.
pub(super) fn allow(function: sys::CUfunction) -> Result<(), Error> {
    let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
    // SAFETY: the function is of the loaded module.
    let status = unsafe { sys::cuFuncSetAttribute(function, which, 1) };
    check("asking for a cluster", status)
}

/// The attribute of a launch with so many groups along x in a cluster.
pub(super) fn attribute(groups: u32) -> sys::CUlaunchAttribute {
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    value.clusterDim.x = groups;
    value.clusterDim.y = 1;
    value.clusterDim.z = 1;
    let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    sys::CUlaunchAttribute { id, pad: [0; 4], value }
}

/// What a launch asks for: to begin while the one before ends, a cluster.
pub(super) fn attributes(overlaps: bool, cluster: u32) -> Vec<sys::CUlaunchAttribute> {
    let overlap = overlaps.then(overlap);
    let cluster = (cluster > 1).then(|| attribute(cluster));
    overlap.into_iter().chain(cluster).collect()
}

/// The attribute of a launch that may begin while the one before ends.
fn overlap() -> sys::CUlaunchAttribute {
    sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    }
}

impl Cuda {
    /// Whether the card has room for every cluster of the text.
    pub(super) fn has_clusters(&mut self) -> bool {
        text::CLUSTERS.iter().all(|(name, groups)| self.has_cluster(name, *groups))
    }

    fn has_cluster(&mut self, name: &'static str, groups: u32) -> bool {
        let Ok(kernel) = self.kernel(name) else { return false };
        let Some(loaded) = self.kernels.get(kernel.0 as usize) else { return false };
        let mut attribute = attribute(groups);
        let config = sys::CUlaunchConfig {
            gridDimX: groups,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: THREADS,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: loaded.pool,
            hStream: self.main.raw(),
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        let (mut count, function) = (0, loaded.function);
        // SAFETY: the function is of the loaded module; attribute and out-parameter live here.
        let status = unsafe {
            sys::cuOccupancyMaxActiveClusters(&raw mut count, function, &raw const config)
        };
        status == CUresult::CUDA_SUCCESS && count > 0
    }
}
