#!/usr/bin/env python3
"""Cuts the published nano checkpoint to the tensors that models/nano.gguf does not hold losslessly.

The routed experts lie bit for bit in models/nano.gguf and models/nano-mtp.gguf (FP4 as MXFP4), so the tests
take those from there and everything else, in its published storage, from the file that this makes. Together
they are the whole published checkpoint. Standard library only.
usage: dense_weights.py WEIGHTS_FOLDER OUT.safetensors
"""
import glob
import json
import struct
import sys

tensors = {}
for path in sorted(glob.glob(sys.argv[1] + "/*.safetensors")):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    for name, info in json.loads(data[8:8 + size]).items():
        if name != "__metadata__" and ".experts." not in name:
            start, end = info["data_offsets"]
            tensors[name] = (info["dtype"], info["shape"], data[8 + size + start:8 + size + end])
header, offset = {}, 0
for name, (dtype, shape, raw) in sorted(tensors.items()):
    header[name] = dict(dtype=dtype, shape=shape, data_offsets=[offset, offset + len(raw)])
    offset += len(raw)
text = json.dumps(header, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
with open(sys.argv[2], "wb") as out:
    out.write(struct.pack("<Q", len(text)) + text)
    for name in sorted(tensors):
        out.write(tensors[name][2])
print(len(tensors), "tensors", offset, "bytes")
