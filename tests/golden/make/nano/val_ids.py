#!/usr/bin/env python3
"""Cuts the sequences on which the nano model's validation loss is measured: 16 windows of 2049 tokens.

Draws them as evaluate.py of the training code does (seed 3), so that both losses are of the same tokens.
usage: val_ids.py VAL.bin.xz OUT.ids      (needs numpy)
"""
import lzma
import sys

import numpy as np

IDS = 0x3FFF
a = np.frombuffer(lzma.open(sys.argv[1]).read(), "<u2")
starts = np.flatnonzero((a & IDS) == 0)
rng = np.random.default_rng(3)
T = 2049


def take():
    for _ in range(20):
        s = starts[rng.integers(len(starts))]
        if s + T <= len(a):
            return a[s:s + T]
    return a[:T]


with open(sys.argv[2], "w") as out:
    for _ in range(16):
        out.write(" ".join(str(i & IDS) for i in take().tolist()) + "\n")
