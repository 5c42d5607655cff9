"""Memory for what is computed of a block of rows and then forgotten: each thread has its own.

To allocate arrays of this size for every block costs more than what is computed in them, as the allocator gives them
back to the system at once. Whoever takes a place of a thread has it until the next one takes it.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

BLOCK_ROWS = 128 * 1024
"""Rows of a block, and numbers of a place: who asks for more gets memory of its own."""

COMPARING = 0
"""The place for comparing keys with known ones; places further on are for loading them."""

NEW_KEYS = 8
"""The place for the first rows of new keys."""


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.held: dict[int, Any] = {}


_places = _Scratch()


def scratch_buffer(place: int, count: int) -> Any:
    """A buffer for ``count`` numbers of 64 bits without a sign, of arbitrary content."""
    held = _places.held.get(place)
    if held is None or len(held) < count:
        held = np.empty(max(count, BLOCK_ROWS), dtype=np.uint64)
        if count <= BLOCK_ROWS:
            _places.held[place] = held
    return held[:count]
