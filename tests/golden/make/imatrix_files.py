"""Makes tests/golden/gguf/imatrix.gguf and imatrix.dat: the same importances in the layout of llama.cpp's
`llama-imatrix` (keys and tensors as its source names them, written by PyPI `gguf`) and in the older one that ds4
writes too.

    pip install gguf==0.19.0 numpy && python tests/golden/make/imatrix_files.py
"""
import pathlib
import struct

import numpy as np
from gguf import GGUFWriter

OUT = pathlib.Path(__file__).parents[1] / "gguf"

# Sums of squares, matrices by columns, and how many inputs each matrix saw.
ENTRIES = {
    "blk.0.attn_q_a.weight": (np.array([[1, 2, 4, 8]], np.float32), [4]),
    "blk.0.ffn_down_exps.weight": (np.arange(12, dtype=np.float32).reshape(3, 4) * 1.5, [3, 0, 2]),
}


def new():
    writer = GGUFWriter(OUT / "imatrix.gguf", "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["calibration.txt"])
    writer.add_uint32("imatrix.chunk_count", 5)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, (sums, counts) in ENTRIES.items():
        writer.add_tensor(name + ".in_sum2", sums)
        writer.add_tensor(name + ".counts", np.array(counts, np.float32).reshape(-1, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def old():
    """An entry has one number of calls; its values are means times that number."""
    calls = 5
    data = struct.pack("<i", len(ENTRIES))
    for name, (sums, counts) in ENTRIES.items():
        counts = np.array(counts, np.float32).reshape(-1, 1)
        values = np.where(counts > 0, sums / np.maximum(counts, 1), 0) * calls
        data += struct.pack("<i", len(name)) + name.encode()
        data += struct.pack("<ii", calls, values.size) + values.astype("<f4").tobytes()
    dataset = b"calibration.txt"
    data += struct.pack("<ii", calls, len(dataset)) + dataset
    (OUT / "imatrix.dat").write_bytes(data)


new()
old()
