"""One number that stands for a sequence of rows: equal sequences, equal numbers, however they were cut into batches.

Rules:

1. Rolling: a polynomial over the rows' hashes, modulo 2^64; adding rows costs what hashing them costs.
2. It depends on the order: two rows that have changed places change it. It is no protection against malice.
3. What is stored is the number and the count of rows; from these one can go on.
4. ``content`` is the sum of the rows' hashes: it does not depend on the order, only on which rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_BASE = np.uint64(0x5851F42D4C957F2D)
"""Odd, so that no row's part fades away, and with bits everywhere."""
_BLOCK = 4096


def powers(count: int) -> npt.NDArray[np.uint64]:
    """The base to the powers ``count - 1`` down to 0."""
    rising = np.full(count, _BASE, dtype=np.uint64)
    rising[:1] = 1
    return np.multiply.accumulate(rising)[::-1]


_FALLING = powers(_BLOCK)


@dataclass(frozen=True, slots=True)
class OrderHash:
    """Of the rows so far."""

    value: int = 0
    rows: int = 0
    content: int = 0

    def extended(self, hashes: npt.NDArray[np.uint64]) -> OrderHash:
        """With these rows' hashes added at the end."""
        value, step = np.uint64(self.value), _FALLING[:1]
        for start in range(0, len(hashes), _BLOCK):
            block = hashes[start : start + _BLOCK]
            step = _FALLING[_BLOCK - len(block) :]
            shift = np.multiply(step[:1], _BASE)[0]
            # arrays wrap around silently, scalars warn
            value = (np.array([value]) * np.array([shift]) + (block * step).sum(dtype=np.uint64))[0]
        content = (self.content + int(hashes.sum(dtype=np.uint64))) % 2**64
        return OrderHash(int(value), self.rows + len(hashes), content)
