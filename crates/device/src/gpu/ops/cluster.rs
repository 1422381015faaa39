//! What stands between two sublayers of one row, in one launch of groups that exchange by shared
//! memory (`fast/streams_cluster.k`).

use super::super::arguments::HcArgs;
use super::super::record::Place;
use super::super::text::pool_bytes;
use super::super::{Gpu, Pending, Shortcuts, small};
use crate::{Error, HcPre};
use ironstar_quant::Format;

/// Groups and threads of the kernels.
const GRID: [u32; 3] = [16, 1, 1];
const GROUP: u32 = 544;

/// Records the mix of one row with the spread that is pending, if they have a kernel. `places` are
/// checked: streams, base, scale, norm, row, and the coefficients of the next spread.
pub(super) fn post_and_pre(gpu: &mut Gpu, a: &HcPre, places: [Place; 7]) -> Result<bool, Error> {
    let [x, base, scale, norm, out, post, comb] = places;
    let (operation, width, matrix) = ("hc_pre", a.norm.len, a.weights.matrix);
    let own = gpu.weights(operation, matrix)?;
    let pending = |gpu: &Gpu| gpu.pending.filter(|own| own.places[1] == x);
    let name = match (a.streams, width) {
        (4, 1024) => "hc_post_pre_1024",
        (4, 4096) => "hc_post_pre_4096",
        (4, 7168) => "hc_post_pre_7168",
        _ => return Ok(false),
    };
    let facts = gpu.driver.facts();
    let takes = gpu.takes(Shortcuts::CLUSTER)
        && facts.clusters
        && facts.group_bytes >= pool_bytes(name)
        && own.format() == Format::F16;
    if pending(gpu).is_none() {
        return Ok(false);
    }
    if !takes {
        let why =
            || format!("a matrix of {:?}, a device without clusters, or disabled", own.format());
        gpu.goes_without(Shortcuts::CLUSTER, operation, why)?;
        return Ok(false);
    }
    // Memory for blocks that has to grow runs what was recorded, the spread with it.
    let [codes, scales, codes256, scales256] = gpu.prepare(out, [1, width])?;
    let Some(Pending { places: [z, _, post_before, comb_before], .. }) = pending(gpu) else {
        return Ok(false);
    };
    gpu.pending = None;
    gpu.counters.dense_bytes += own.matrix_bytes;
    let arguments = HcArgs {
        streams: small(operation, a.streams)?,
        width: small(operation, width)?,
        iterations: small(operation, a.iterations)?,
        norm_eps: a.norm_eps,
        hc_eps: a.hc_eps,
        shards: 1,
        split: 0,
    };
    let matrix = Place::At(own.address);
    let places = [
        matrix,
        z,
        x,
        post_before,
        comb_before,
        base,
        scale,
        norm,
        out,
        post,
        comb,
        codes,
        scales,
        codes256,
        scales256,
    ];
    gpu.launch(name, GRID, GROUP, &places, &arguments)?;
    Ok(true)
}
