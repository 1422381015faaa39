//! What stands between two sublayers of one row, in one launch of groups that exchange by shared
//! memory (`fast/streams_cluster.k`, `fast/streams_route.k`).
//!
//! A mix with the spread before it is put off until it is known what follows: the router and the
//! choice of experts join it, anything else lets it go by itself.

use super::super::arguments::{HcArgs, HcRouteArgs, RouteArgs};
use super::super::record::Place;
use super::super::text::pool_bytes;
use super::super::{Gpu, Pending, Shortcuts};
use super::products::{Input, Product, product};
use super::streams::hc_args;
use crate::{Error, HcPre, Matrix};
use ironstar_quant::Format;

/// Groups and threads of the kernels.
const GRID: [u32; 3] = [16, 1, 1];
const GROUP: u32 = 544;
/// The kernel that chooses, its width and experts.
const CHOICE: &str = "hc_post_route_4096";
const ROUTER: [usize; 2] = [4096, 256];

/// A mix that is put off.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Mixing {
    name: &'static str,
    places: [Place; 15],
    arguments: HcArgs,
    router: Option<Router>,
}

/// The router of its row, and where that leaves what it says.
#[derive(Clone, Copy, Debug)]
struct Router {
    matrix: Matrix,
    logits: Place,
}

impl Mixing {
    /// The row.
    fn out(&self) -> Place {
        self.places[8]
    }
}

/// Puts off the mix of one row with the spread that is pending, if they have a kernel. `places` are
/// checked: streams, base, scale, norm, row, and the coefficients of the next spread.
pub(super) fn put_off(gpu: &mut Gpu, a: &HcPre, places: [Place; 7]) -> Result<bool, Error> {
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
    // Spreads of several rows are pending too.
    if gpu.rows.len() != 1 || pending(gpu).is_none() {
        return Ok(false);
    }
    if !takes {
        let why = || format!("{:?}, a device without clusters, or it is disabled", own.format());
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
    let arguments = HcArgs { shards: 1, ..hc_args(operation, a)? };
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
    gpu.mixing = Some(Mixing { name, places, arguments, router: None });
    Ok(true)
}

/// Whether a product of one row is the router of a row whose mix is put off; then so is it.
pub(super) fn takes_router(gpu: &mut Gpu, matrix: Matrix, [x, logits]: [Place; 2]) -> bool {
    let Some(mixing) = gpu.mixing.as_mut() else { return false };
    let format = matrix.format;
    let fits = mixing.router.is_none()
        && mixing.out() == x
        && format == Format::F16
        && [matrix.columns, matrix.rows] == ROUTER
        && !gpu.config.float_products
        && gpu.driver.facts().group_bytes >= pool_bytes(CHOICE);
    if fits {
        mixing.router = Some(Router { matrix, logits });
    }
    fits
}

/// Records a mix with its router and the choice of experts; `places` are those of the choice.
pub(super) fn choose(gpu: &mut Gpu, places: [Place; 6], route: &RouteArgs) -> Result<bool, Error> {
    let [logits, bias, table, tokens, ids, weights] = places;
    let Some(Mixing { places, arguments, router: Some(router), .. }) = gpu.mixing else {
        return Ok(false);
    };
    if router.logits != logits || route.experts as usize != ROUTER[1] || route.rows != 1 {
        return Ok(false);
    }
    gpu.mixing = None;
    let matrix = Place::At(gpu.weights("route", router.matrix)?.address);
    // Products that have weights to copy first are set up at once.
    let early = u32::from(gpu.shared);
    let arguments = HcRouteArgs { hc: arguments, route: *route, early };
    let choice = [matrix, logits, bias, table, tokens, ids, weights];
    gpu.launch(CHOICE, GRID, GROUP, &[&places[..], &choice].concat(), &arguments)?;
    Ok(true)
}

/// Records a mix by itself, and its router.
pub(in super::super) fn settle(gpu: &mut Gpu, mixing: &Mixing) -> Result<(), Error> {
    gpu.launch(mixing.name, GRID, GROUP, &mixing.places, &mixing.arguments)?;
    let Some(Router { matrix, logits }) = mixing.router else { return Ok(()) };
    let outputs = [(matrix, logits)];
    let x = Input::Made([mixing.out(), Place::NONE]);
    product(gpu, &Product::plain("project", &outputs, x, 1))
}
