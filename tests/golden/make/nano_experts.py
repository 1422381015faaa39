"""SHA-256 of the nano model's published experts: name and bytes of each tensor, by name.

    python tests/golden/make/nano_experts.py CHECKPOINT

prints what `EXPERTS_SHA256` in crates/cli/tests/suite/quantize.rs says. The test puts the experts together
again from models/nano.gguf, where they lie without loss, and compares.
"""
import hashlib
import json
import pathlib
import struct
import sys

folder = pathlib.Path(sys.argv[1])
places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
files = {}
for file in set(places.values()):
    data = (folder / file).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    files[file] = json.loads(data[8 : 8 + size]), data[8 + size :]
digest = hashlib.sha256()
for name in sorted(name for name in places if ".ffn.experts." in name):
    header, data = files[places[name]]
    start, end = header[name]["data_offsets"]
    digest.update(name.encode() + data[start:end])
print(digest.hexdigest())
