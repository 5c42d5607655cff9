"""Strings of bytes with numbers, found by compiled kernels: what grouping and joining by text share.

Rules:

1. Strings are numbered 0, 1, 2, … in the order in which they come, and are kept, each once.
2. ``place`` changes nothing: several threads may look strings up at once, as long as none is added.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .growable_array import GrowableBytes
from .native import Kernels
from .pieces import Positions
from .short_strings import layout
from .slots import Slots

_ROWS = 128 * 1024
"""Rows that are added at once: each time there must be room for as many new strings."""


class StringTable:
    """See the module's rules."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._held = GrowableBytes()
        self._slots = Slots()

    def __len__(self) -> int:
        return self._slots.count

    @property
    def nbytes(self) -> int:
        """The size of the strings, and of what finds them."""
        return self._slots.bytes + self._held.bytes

    def numbers(self, strings: pa.Array) -> Positions:
        """The number of each, which it gets now if it is new; arbitrary where it is null."""
        if not len(strings):  # Arrow allows it no bounds at all
            return np.zeros(0, dtype=np.int64)
        parts = [
            self._slots.number_strings(self._kernels, *layout(strings.slice(start, _ROWS)), self._held)[0]
            for start in range(0, len(strings), _ROWS)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def place(self, strings: pa.Array) -> Positions:
        """The number of each, or -1."""
        if not len(strings):
            return np.zeros(0, dtype=np.int64)
        return self._slots.find_strings(self._kernels, *layout(strings), self._held)
