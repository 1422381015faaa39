"""Makes tests/golden/gguf/: small GGUF files by the writer of PyPI `gguf`, one whole and one split.

    pip install gguf==0.19.0 numpy && python tests/golden/make/gguf_files.py
"""
import pathlib

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

OUT = pathlib.Path(__file__).parents[1] / "gguf"
T = GGUFValueType


def small():
    writer = GGUFWriter(OUT / "small.gguf", "example")
    writer.add_custom_alignment(64)
    scalars = [
        ("a.u8", 200, T.UINT8), ("a.i8", -100, T.INT8), ("a.u16", 60000, T.UINT16), ("a.i16", -30000, T.INT16),
        ("a.u32", 4000000000, T.UINT32), ("a.i32", -2000000000, T.INT32), ("a.u64", 2**63 + 1, T.UINT64),
        ("a.i64", -(2**62), T.INT64), ("a.f32", 1.5, T.FLOAT32), ("a.f64", 0.1, T.FLOAT64), ("a.bool", True, T.BOOL),
        ("a.string", "gr\u00fc\u00df dich", T.STRING), ("a.empty", "", T.STRING),
    ]
    for key, value, kind in scalars:
        writer.add_key_value(key, value, kind)
    arrays = [
        ("b.u8", [1, 255], T.UINT8), ("b.i8", [-1], T.INT8), ("b.u16", [1, 65535], T.UINT16), ("b.i16", [-2], T.INT16),
        ("b.u32", [0, 4, 128], T.UINT32), ("b.i32", [-1, 1], T.INT32), ("b.u64", [2**40], T.UINT64),
        ("b.i64", [-(2**40)], T.INT64), ("b.f32", [0.5, -0.25], T.FLOAT32), ("b.f64", [1e300], T.FLOAT64),
        ("b.bool", [True, False, True], T.BOOL), ("b.tokens", [b"a", b"\xe2\x82", b"", b"\xc4\xa0x"], T.STRING),
    ]
    for key, value, kind in arrays:
        writer.add_key_value(key, value, T.ARRAY, sub_type=kind)
    writer.add_key_value("b.nested", [[1, 2, 3], [4]], T.ARRAY, sub_type=T.ARRAY)
    writer.add_tensor("floats", np.arange(6, dtype=np.float32).reshape(2, 3) / 4)
    writer.add_tensor("ids", np.arange(-4, 8, dtype=np.int32).reshape(2, 2, 3))
    writer.add_tensor("halves", np.array([1.0, -2.0, 0.5], np.float16))
    blocks = (np.arange(2 * 2 * 34) * 7 % 256).astype(np.uint8).reshape(2, 2 * 34)
    writer.add_tensor("blocks", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.add_tensor("doubles", np.array([[[[1.0]]], [[[-0.0]]]], np.float64))
    finish(writer)


def split():
    writer = GGUFWriter(OUT / "split.gguf", "example", split_max_tensors=2)
    writer.add_key_value("a.u32", 7, T.UINT32)
    for index in range(5):
        writer.add_tensor(f"t{index}", np.full(3 + index, index, np.float32))
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


OUT.mkdir(exist_ok=True)
small()
split()
