"""Makes tests/golden/gguf/published.safetensors: matrices in the storage of the published checkpoints
(spec/deepseek_v4.md 7.1), and for each tensor NAME its values as floats, `NAME@values` (F32).

    pip install ml_dtypes==0.6.0 numpy && python tests/golden/make/published_layout.py

Codes are decoded by `ml_dtypes`, scales are spread by numpy. All codes occur, NaN and subnormals too.
"""
import json
import pathlib
import struct

import ml_dtypes
import numpy as np

OUT = pathlib.Path(__file__).parents[1] / "gguf" / "published.safetensors"
rng = np.random.default_rng(20261129)
E4M3, E8M0, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn
parts = {}


def put(name, dtype, array):
    parts[name] = (dtype, list(array.shape), array.tobytes())


def put_values(name, values):
    put(f"{name}@values", "F32", np.ascontiguousarray(values, np.float32))


def codes(*shape):
    """Every byte at least once where there is room, in random order."""
    count = int(np.prod(shape))
    return rng.permutation(np.resize(np.arange(256, dtype=np.uint8), count)).reshape(shape)


def spread(scales, block, shape):
    """Scales in f32, each repeated over its block and cut at the matrix's edge."""
    return np.kron(scales.astype(np.float32), np.ones(block, np.float32))[: shape[0], : shape[1]]


def fp8(name, scale_name, scale_dtype, shape, block, scales):
    raw = codes(*shape)
    put(name, "F8_E4M3", raw)
    put(scale_name, scale_dtype, scales)
    put_values(name, raw.view(E4M3).astype(np.float32) * spread(scales, block, shape))


def fp4(name, rows, columns):
    raw, scales = codes(rows, columns // 2), codes(rows, columns // 32)
    put(name, "I8", raw)
    put(name.replace(".weight", ".scale"), "F8_E8M0", scales)
    low, high = raw & 15, raw >> 4
    values = np.stack([low, high], axis=2).reshape(rows, columns).view(E2M1).astype(np.float32)
    put_values(name, values * spread(scales.view(E8M0), (1, 32), (rows, columns)))


with np.errstate(all="ignore"):
    power = lambda *shape: rng.integers(118, 132, shape, dtype=np.uint8).view(E8M0)
    fp8("layers.0.attn.wkv.weight", "layers.0.attn.wkv.scale", "F8_E8M0", (130, 200), (128, 128), power(2, 2))
    extremes = np.array([[0, 1, 254, 255]], np.uint8).view(E8M0)
    fp8("layers.0.attn.wo_a.weight", "layers.0.attn.wo_a.scale", "F8_E8M0", (8, 512), (128, 128), extremes)
    # the older names, scales in f32, the smaller blocks of V4.1
    floats = rng.standard_normal((2, 3)).astype(np.float32)
    older = "model.layers.0.self_attn.wq_a.weight"
    fp8(older, f"{older}_scale_inv", "F32", (64, 96), (32, 32), floats)
    fp4("layers.0.ffn.experts.0.w1.weight", 64, 128)
    put("layers.0.ffn.gate.e_score_correction_bias", "F32", np.array([1.5, -2.0], np.float32))
    put_values("layers.0.ffn.gate.e_score_correction_bias", np.array([1.5, -2.0]))
    for name, dtype, array in [
        ("bf16", "BF16", np.arange(0, 65536, 37, dtype=np.uint16).view(ml_dtypes.bfloat16)),
        ("f16", "F16", np.arange(0, 65536, 37, dtype=np.uint16).view(np.float16)),
        ("f64", "F64", np.array([0.1, -1e-45, 3.5e38, 1 + 2**-24, 1 + 3 * 2**-24])),
        ("i64", "I64", np.array([0, -7, 2**24 + 1, 2**53 + 1, -(2**63)])),
        ("i32", "I32", np.array([2**31 - 1, -5], np.int32)),
        ("i16", "I16", np.array([-32768, 77], np.int16)),
        ("i8", "I8", np.array([-128, 127], np.int8)),
        ("u8", "U8", np.array([0, 255], np.uint8)),
    ]:
        put(name, dtype, array)
        put_values(name, array.astype(np.float32))

header, data = {"__metadata__": {"format": "pt"}}, b""
for name, (dtype, shape, raw) in parts.items():
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw
text = json.dumps(header, separators=(",", ":")).encode()
OUT.parent.mkdir(exist_ok=True)
OUT.write_bytes(struct.pack("<Q", len(text)) + text + data)
