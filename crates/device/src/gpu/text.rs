//! The kernel text: its files, and the order in which a target's text is put together.

/// Kernel files with their names, in order: `common.k`, the others by name, `fast/` by name.
const FILES: &[(&str, &str)] = &[
    ("common.k", include_str!("../../kernels/common.k")),
    ("attention.k", include_str!("../../kernels/attention.k")),
    ("blocks.k", include_str!("../../kernels/blocks.k")),
    ("compressor.k", include_str!("../../kernels/compressor.k")),
    ("draw.k", include_str!("../../kernels/draw.k")),
    ("experts.k", include_str!("../../kernels/experts.k")),
    ("gates.k", include_str!("../../kernels/gates.k")),
    ("heads.k", include_str!("../../kernels/heads.k")),
    ("indexer.k", include_str!("../../kernels/indexer.k")),
    ("part.k", include_str!("../../kernels/part.k")),
    ("products.k", include_str!("../../kernels/products.k")),
    ("router.k", include_str!("../../kernels/router.k")),
    ("rows.k", include_str!("../../kernels/rows.k")),
    ("streams.k", include_str!("../../kernels/streams.k")),
    ("tiles.k", include_str!("../../kernels/tiles.k")),
    ("tiles_attend.k", include_str!("../../kernels/tiles_attend.k")),
    ("tiles_big.k", include_str!("../../kernels/tiles_big.k")),
    ("tiles_direct.k", include_str!("../../kernels/tiles_direct.k")),
    ("tiles_direct_iq2_xxs.k", include_str!("../../kernels/tiles_direct_iq2_xxs.k")),
    ("tiles_float.k", include_str!("../../kernels/tiles_float.k")),
    ("tiles_flow.k", include_str!("../../kernels/tiles_flow.k")),
    ("tiles_halves.k", include_str!("../../kernels/tiles_halves.k")),
    ("tiles_halves_four.k", include_str!("../../kernels/tiles_halves_four.k")),
    ("tiles_heads.k", include_str!("../../kernels/tiles_heads.k")),
    ("tiles_heads_four.k", include_str!("../../kernels/tiles_heads_four.k")),
    ("tiles_index.k", include_str!("../../kernels/tiles_index.k")),
    ("tiles_index_four.k", include_str!("../../kernels/tiles_index_four.k")),
    ("tiles_inputs.k", include_str!("../../kernels/tiles_inputs.k")),
    ("tiles_lean.k", include_str!("../../kernels/tiles_lean.k")),
    ("tiles_mix.k", include_str!("../../kernels/tiles_mix.k")),
    ("tiles_sort.k", include_str!("../../kernels/tiles_sort.k")),
    ("tiles_wide.k", include_str!("../../kernels/tiles_wide.k")),
    ("fast/attend.k", include_str!("../../kernels/fast/attend.k")),
    ("fast/attend_row.k", include_str!("../../kernels/fast/attend_row.k")),
    ("fast/attend_some.k", include_str!("../../kernels/fast/attend_some.k")),
    ("fast/attention.k", include_str!("../../kernels/fast/attention.k")),
    ("fast/choose.k", include_str!("../../kernels/fast/choose.k")),
    ("fast/decode.k", include_str!("../../kernels/fast/decode.k")),
    ("fast/few.k", include_str!("../../kernels/fast/few.k")),
    ("fast/few_floats.k", include_str!("../../kernels/fast/few_floats.k")),
    ("fast/few_tiles.k", include_str!("../../kernels/fast/few_tiles.k")),
    ("fast/halves.k", include_str!("../../kernels/fast/halves.k")),
    ("fast/index.k", include_str!("../../kernels/fast/index.k")),
    ("fast/index_cluster.k", include_str!("../../kernels/fast/index_cluster.k")),
    ("fast/index_part.k", include_str!("../../kernels/fast/index_part.k")),
    ("fast/planes.k", include_str!("../../kernels/fast/planes.k")),
    ("fast/row_ahead.k", include_str!("../../kernels/fast/row_ahead.k")),
    ("fast/small.k", include_str!("../../kernels/fast/small.k")),
    ("fast/staged.k", include_str!("../../kernels/fast/staged.k")),
    ("fast/streams.k", include_str!("../../kernels/fast/streams.k")),
    ("fast/streams_cluster.k", include_str!("../../kernels/fast/streams_cluster.k")),
    ("fast/streams_many.k", include_str!("../../kernels/fast/streams_many.k")),
    ("fast/streams_route.k", include_str!("../../kernels/fast/streams_route.k")),
    ("fast/streams_some.k", include_str!("../../kernels/fast/streams_some.k")),
    ("fast/top_experts.k", include_str!("../../kernels/fast/top_experts.k")),
    ("fast/top_pool.k", include_str!("../../kernels/fast/top_pool.k")),
    ("fast/top_shared.k", include_str!("../../kernels/fast/top_shared.k")),
];

/// Files without kernels, of which others take functions: no part of the text is made for them.
#[cfg(feature = "cuda")]
const FUNCTIONS_ONLY: [&str; 2] = ["common.k", "blocks.k"];

/// Bytes of the pools (`POOL`) of the kernels that have one.
pub(crate) const POOLS: &[(&str, u32)] = &[
    ("ahead_normed_q8_0", 99_712),
    ("ahead_q8_0_4096", 103_168),
    ("ahead_q8_0_8192", 107_776),
    ("attend_tiles", 92_480),
    ("attend_heads", 207_104),
    ("attend_four", 214_272),
    ("attend_few_scores", 91_136),
    ("attend_few_mix", 65_280),
    ("attend_few_mix_long", 108_800),
    ("attend_row", 145_424),
    ("attend_some_scores", 91_136),
    ("attend_some_mix", 189_440),
    ("decode_f16_short", 25_856),
    ("decode_bf16_short", 25_856),
    ("chosen_iq2_xxs", 65_536),
    ("chosen_iq2_xxs_pooled", 200_704),
    ("chosen_iq2_xxs_shared", 226_816),
    ("chosen_q2_k_pooled", 153_600),
    ("chosen_q2_k_shared", 73_728),
    ("chosen_mxfp4_pooled", 139_264),
    ("chosen_mxfp4_last_pooled", 139_264),
    ("few_q4_0", 43_520),
    ("few_q8_0", 43_520),
    ("few_mxfp4", 43_520),
    ("few_q2_k", 43_520),
    ("few_q4_k", 43_520),
    ("few_iq2_xxs", 43_520),
    ("few_f16", 107_008),
    ("few_bf16", 107_008),
    ("few_f16_low", 76_288),
    ("few_bf16_low", 76_288),
    ("few_tiles_q8_0", 231_424),
    ("post_shards_some_f16", 106_880),
    ("post_shards_some_bf16", 106_880),
    ("big_q8_0", 90_896),
    ("big_q2_k", 90_896),
    ("big_q4_k", 90_896),
    ("big_iq2_xxs", 90_896),
    ("big_mxfp4", 90_896),
    ("big_q8_0_pooled", 221_968),
    ("big_q4_k_pooled", 226_320),
    ("big_mxfp4_pooled", 221_968),
    ("flow_q2_k", 105_472),
    ("flow_iq2_xxs", 94_720),
    ("slim_q2_k", 114_432),
    ("slim_iq2_xxs", 103_680),
    ("direct_q2_k", 230_432),
    ("direct_iq2_xxs", 228_640),
    ("lean_q2_k", 227_520),
    ("lean_iq2_xxs", 231_872),
    ("wide_q8_0", 231_488),
    ("index_scores_four", 66_688),
    ("spread_mix_f16", 223_744),
    ("big_f16", 57_344),
    ("big_bf16", 57_344),
    ("big_f16_tall", 147_456),
    ("big_bf16_tall", 147_456),
    ("big_f16_pairs", 147_456),
    ("big_bf16_pairs", 147_456),
    ("big_f16_few", 73_728),
    ("big_bf16_few", 73_728),
    ("halves_ring", 98_304),
    ("halves_low", 50_192),
    ("halves_apart", 50_192),
    ("halves_tall", 231_424),
    ("halves_four", 231_440),
    ("halves_four_low", 149_520),
    ("hc_post_pre_1024", 14_872),
    ("hc_post_pre_4096", 57_880),
    ("hc_post_pre_7168", 100_888),
    ("hc_post_route_4096", 221_728),
    ("index_cluster", 16),
];

/// Groups along x of the kernels that need them at the same time (`CLUSTERS`).
pub(crate) const CLUSTERS: &[(&str, u32)] = &[
    ("attend_row", 16),
    ("hc_post_pre_1024", 16),
    ("hc_post_pre_4096", 16),
    ("hc_post_pre_7168", 16),
    ("hc_post_route_4096", 16),
    ("index_cluster", 16),
];

/// Groups of a cluster of a kernel, 1 without.
pub(crate) fn cluster_of(kernel: &str) -> u32 {
    CLUSTERS.iter().find(|(name, _)| *name == kernel).map_or(1, |(_, groups)| *groups)
}

/// Bytes of the pool of a kernel.
pub(crate) fn pool_bytes(kernel: &str) -> u32 {
    POOLS.iter().find(|(name, _)| *name == kernel).map_or(0, |(_, bytes)| *bytes)
}

/// A file as a part of a text; compilers name file and line in their messages.
fn section((name, text): (&str, &str)) -> String {
    format!("#line 1 \"{name}\"\n{text}\n")
}

/// Puts a prelude before the kernels.
fn assemble(prelude: (&str, &str)) -> String {
    std::iter::once(&prelude).chain(FILES).map(|file| section(*file)).collect()
}

#[cfg(feature = "cuda")]
const CUDA_PRELUDE: (&str, &str) = ("prelude_cuda.h", include_str!("../../kernels/prelude_cuda.h"));
/// What a kernel is, as the prelude has it.
#[cfg(feature = "cuda")]
const MADE: &str = "#undef MADE\n#define MADE extern \"C\" __global__\n";
/// What a kernel is of which no code is made.
#[cfg(feature = "cuda")]
const LEFT_OUT: &str = "#undef MADE\n#define MADE template <int> static __global__\n";

/// Text for CUDA.
#[cfg(feature = "cuda")]
pub(crate) fn cuda() -> String {
    assemble(CUDA_PRELUDE)
}

/// The same in parts that are compiled apart, and give the same code: each makes the kernels of one
/// file, and has the files before it for their functions. To read a text costs a hundredth of
/// what it costs to make code of it.
#[cfg(feature = "cuda")]
pub(crate) fn cuda_parts() -> Vec<String> {
    let mut before = section(CUDA_PRELUDE) + LEFT_OUT;
    let mut parts = Vec::new();
    for file in FILES {
        let own = section(*file);
        if !FUNCTIONS_ONLY.contains(&file.0) {
            parts.push(format!("{before}{MADE}{own}"));
        }
        before.push_str(&own);
    }
    parts
}

/// Text for the host, `more` kernels behind the others, without the scheduler.
#[cfg(feature = "host-driver")]
pub(crate) fn host(more: &str) -> String {
    let text = assemble(("prelude_host.h", include_str!("../../kernels/prelude_host.h")));
    format!("{text}#line 1 \"more.k\"\n{more}\n")
}

/// The scheduler of the host driver.
#[cfg(feature = "host-driver")]
pub(crate) const HOST_RUNTIME: &str = include_str!("../../kernels/host_rt.cpp");

#[cfg(test)]
mod tests;
