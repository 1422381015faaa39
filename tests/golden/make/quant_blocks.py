"""Makes tests/golden/quant/blocks.safetensors: blocks of any bytes and what PyPI `gguf` decodes them to.

    pip install gguf==0.19.0 numpy && python tests/golden/make/quant_blocks.py

For each format NAME: `NAME.bytes` (U8) and `NAME.values` (F32). Three quarters of the blocks are random bytes
throughout; the rest have their scales replaced by awkward ones (NaN, infinities, subnormals, zeros, extremes).
"""
import json
import pathlib
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

BLOCKS = 64
# name: offsets of the f16 scales in a block (an e8m0 byte for MXFP4)
SCALES = {
    "F32": [], "F16": [], "BF16": [], "Q4_0": [0], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "IQ2_XXS": [0], "MXFP4": [0],
}
AWKWARD = [0x7E01, 0x7C00, 0xFC00, 0x0001, 0x83FF, 0x0000, 0x8000, 0x7BFF, 0xFBFF, 0x0400, 0x3C00, 0xBC00]
AWKWARD_E8M0 = [0, 1, 2, 3, 126, 127, 128, 252, 253, 254, 255]

rng = np.random.default_rng(20261129)
parts = {}
for name, offsets in SCALES.items():
    kind = GGMLQuantizationType[name]
    _, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (BLOCKS if offsets else 32 * BLOCKS, size), dtype=np.uint8)
    for i in range(3 * BLOCKS // 4, BLOCKS):
        for offset in offsets:
            if name == "MXFP4":
                blocks[i, offset] = AWKWARD_E8M0[i % len(AWKWARD_E8M0)]
            else:
                scale = AWKWARD[rng.integers(len(AWKWARD))]
                blocks[i, offset:offset + 2] = np.frombuffer(struct.pack("<H", scale), np.uint8)
    with np.errstate(all="ignore"):
        values = dequantize(blocks.reshape(-1) if name == "F32" else blocks, kind).reshape(-1).astype(np.float32)
    parts[f"{name}.bytes"] = ("U8", blocks.reshape(-1).tobytes(), blocks.size)
    parts[f"{name}.values"] = ("F32", values.tobytes(), values.size)

header, offset = {}, 0
for key, (dtype, data, count) in parts.items():
    header[key] = {"dtype": dtype, "shape": [count], "data_offsets": [offset, offset + len(data)]}
    offset += len(data)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
path = pathlib.Path(__file__).parents[1] / "quant" / "blocks.safetensors"
path.parent.mkdir(exist_ok=True)
path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, data, _ in parts.values()))
print(path, path.stat().st_size, "bytes")
