//! Shapes of the published models, for plans and synthetic files; a loaded model's own numbers
//! always come from its file.

use super::shape::Shape;

/// V4 Flash: 284 billion parameters.
#[must_use]
pub fn flash() -> Shape {
    Shape {
        layers: 43,
        vocabulary: 129_280,
        width: 4096,
        streams: 4,
        sinkhorn_iterations: 20,
        hc_eps: 1e-6,
        heads: 64,
        head_width: 512,
        rope_width: 64,
        q_rank: 1024,
        output_groups: 8,
        output_rank: 1024,
        window: 128,
        ratios: ratios(43, 0),
        index_heads: 64,
        index_width: 128,
        index_top_k: 512,
        experts: 256,
        experts_used: 6,
        expert_width: 2048,
        hash_layers: 3,
        expert_scale: 1.5,
        swiglu_limits: vec![10.0; 43],
        norm_eps: 1e-6,
        rope_base: 10_000.0,
        compress_rope_base: 160_000.0,
        yarn_factor: 16.0,
        yarn_beta_fast: 32.0,
        yarn_beta_slow: 1.0,
        yarn_original_context: 65_536,
        context: 1_048_576,
    }
}

/// V4 PRO: 1,573 billion parameters.
#[must_use]
pub fn pro() -> Shape {
    Shape {
        layers: 61,
        width: 7168,
        heads: 128,
        q_rank: 1536,
        output_groups: 16,
        ratios: ratios(61, 128),
        index_top_k: 1024,
        experts: 384,
        expert_width: 3072,
        expert_scale: 2.5,
        swiglu_limits: vec![10.0; 61],
        ..flash()
    }
}

/// Flash in small: every kind of layer, rows of whole blocks of 256, a few hundred megabytes.
#[must_use]
pub fn reduced() -> Shape {
    Shape {
        layers: 6,
        vocabulary: 4096,
        width: 1024,
        heads: 16,
        q_rank: 512,
        output_groups: 4,
        output_rank: 256,
        ratios: ratios(6, 0),
        index_heads: 16,
        index_top_k: 128,
        experts: 32,
        expert_width: 512,
        swiglu_limits: vec![10.0; 6],
        context: 65_536,
        ..flash()
    }
}

/// A layer of each kind with a few experts, a few megabytes: for tools that slow a device down a
/// thousandfold. Rows are wide enough for every kernel that Flash's take.
#[must_use]
pub fn tiny() -> Shape {
    Shape {
        layers: 3,
        vocabulary: 1024,
        width: 1024,
        heads: 4,
        head_width: 128,
        q_rank: 256,
        output_groups: 2,
        output_rank: 512,
        window: 32,
        ratios: vec![0, 4, 128],
        index_heads: 4,
        index_top_k: 16,
        experts: 8,
        experts_used: 2,
        expert_width: 256,
        hash_layers: 1,
        swiglu_limits: vec![10.0; 3],
        context: 65_536,
        ..flash()
    }
}

/// The first layers of a shape.
///
/// # Panics
/// If there are fewer.
#[must_use]
pub fn first_layers(mut shape: Shape, layers: usize) -> Shape {
    assert!((1..=shape.layers).contains(&layers), "a shape has its own layers and no more");
    shape.layers = layers;
    shape.ratios.truncate(layers);
    shape.swiglu_limits.truncate(layers);
    shape.hash_layers = shape.hash_layers.min(layers);
    shape
}

/// Two layers of one ratio, then 4 and 128 by turns.
fn ratios(layers: usize, first: usize) -> Vec<usize> {
    (0..layers).map(|layer| if layer < 2 { first } else { [4, 128][layer % 2] }).collect()
}

#[cfg(test)]
mod tests {
    use super::{first_layers, flash, pro, reduced, tiny};
    use crate::deepseek_v4::{Kind, Shape, TensorSpec, tensor_specs};

    /// Parameters in billions, to the nearest (spec 1).
    #[test]
    fn parameters_are_those_that_are_published() {
        for (shape, billions) in [(flash(), 284), (pro(), 1573)] {
            let specs = tensor_specs(&shape);
            let weights = specs.iter().filter(|spec| spec.kind != Kind::Table);
            let size = |spec: &TensorSpec| spec.dims.iter().product::<usize>();
            let all: usize = weights.map(size).sum();
            assert_eq!((all + 500_000_000) / 1_000_000_000, billions);
        }
    }

    #[test]
    fn layers_have_the_published_kinds() {
        let count = |shape: &Shape, ratio| shape.ratios.iter().filter(|r| **r == ratio).count();
        let kinds = |shape: &Shape| [0, 4, 128].map(|ratio| count(shape, ratio));
        assert_eq!(kinds(&flash()), [2, 21, 20]);
        assert_eq!(kinds(&pro()), [0, 30, 31]);
        assert_eq!(kinds(&reduced()), [2, 2, 2]);
        assert_eq!(kinds(&tiny()), [1, 1, 1]);
        assert_eq!(kinds(&first_layers(flash(), 3)), [2, 1, 0]);
    }

    #[test]
    fn a_file_may_say_them() {
        for shape in [flash(), pro(), reduced(), tiny(), first_layers(pro(), 1)] {
            let metadata = shape.to_metadata();
            let bytes = crate::testing::file_bytes(&metadata, std::iter::empty());
            let gguf = ironstar_gguf::Gguf::from_bytes(bytes).expect("our own file");
            let read = Shape::from_metadata(gguf.metadata()).expect("a shape that is checked");
            assert_eq!(read, shape);
        }
    }
}
