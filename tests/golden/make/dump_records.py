"""Makes tests/golden/dump/records.npy: records of a position and three values, as NumPy writes
them. Needs numpy."""

import pathlib

import numpy as np

record = np.dtype([("position", "<u4"), ("values", "<f4", (3,))])
rows = np.array([(7, [1, 2, 3]), (4_000_000_000, [0.5, -2.0, 1e-30])], dtype=record)
folder = pathlib.Path(__file__).parents[1] / "dump"
folder.mkdir(exist_ok=True)
np.save(folder / "records.npy", rows)
