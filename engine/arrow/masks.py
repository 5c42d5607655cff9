"""Columns of booleans as what numpy picks rows by. (Arrow's own way to numpy takes twenty times as long.)"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def truths(mask: pa.Array) -> npt.NDArray[np.bool_]:
    """Booleans for numpy; arbitrary where they are null."""
    if not len(mask):
        return np.zeros(0, np.bool_)
    given, spare = np.frombuffer(mask.buffers()[1], np.uint8), mask.offset % 8
    bits = np.unpackbits(given[mask.offset // 8 :], count=spare + len(mask), bitorder="little")
    found: npt.NDArray[np.bool_] = bits[spare:].view(np.bool_)
    return found


def set_bits(mask: pa.Array | None) -> npt.NDArray[np.int64]:
    """The positions that are true, neither false nor null; None: no row is."""
    if mask is None:
        return np.zeros(0, np.int64)
    return np.flatnonzero(truths(mask.fill_null(False) if mask.null_count else mask)).astype(np.int64, copy=False)
