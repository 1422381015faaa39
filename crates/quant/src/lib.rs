//! Block formats of weights and activations: how a row of numbers is stored, read back, written
//! and multiplied.
//!
//! One file a format (`q8_0.rs`, `q4_k.rs`, ...) with its layout, size assertion, decode, encode,
//! and scalar dot; one table, [`FORMATS`], from which loader, quantizer, inspector and memory
//! planner derive everything. Beside them: int8 activation blocks ([`activation`]), the cut of K
//! into shards ([`shards`]), the FP8 and FP4 number formats with the model's round trips
//! ([`fp8`], [`fp4`]), and the Hadamard rotation ([`mod@hadamard`]).
//!
//! **Must not know**: files, tensors' names, models, threads, instruction sets. The code here is
//! the definition that faster kernels (crate `device`) equal bit for bit; it favours readers.
//!
//! **Start reading** at [`format`](mod@format), then `q8_0.rs` as the smallest integer format, then
//! [`shards`].
//!
//! ```
//! use ironstar_quant::{Format, Int8Blocks, Row, dot, quantize_int8};
//! let (mut weights, x) = ([0u8; 34], [0.5f32; 32]);
//! Format::Q8_0.info().encode.expect("Q8_0 has an encoder")(&[1.0; 32], None, &mut weights);
//! let (mut codes, mut scales) = ([0i8; 32], [0f32; 1]);
//! quantize_int8(&x, 32, &mut codes, &mut scales);
//! let y = dot(Format::Q8_0, &weights, Row::Int8(Int8Blocks { codes: &codes, scales: &scales }));
//! assert!((y - 16.0).abs() < 0.01);
//! ```

pub mod activation;
pub mod bf16;
pub mod block;
pub mod f16;
pub mod f32;
mod fit;
pub mod format;
pub mod fp4;
pub mod fp8;
pub mod hadamard;
pub mod iq2_xxs;
mod k_blocks;
pub mod mxfp4;
pub mod planes;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_k;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
pub mod shards;

pub use activation::{Int8Blocks, quantize_int8};
pub use bf16::{bf16_to_f32, f32_to_bf16};
pub use f16::{f16_to_f32, f32_to_f16};
pub use format::{Activation, Dot, FORMATS, Format, FormatInfo};
pub use hadamard::hadamard;
pub use shards::{
    Row, SHARDS, dot, dot_part, dot_shards, part_blocks, shard_blocks, subtree, tree4, tree8,
};
