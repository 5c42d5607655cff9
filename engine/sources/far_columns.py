"""Columns of a file that lies afar: what is wanted of them is fetched together, as each request takes its time.

Rules:

1. What is expected is asked for at once: ranges that are near each other as one, long ones in several pieces.
2. It is held until its row group is over, so that a reader has the wanted columns of one row group, as they lie in the
   file. What was not expected is asked for as it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ..files.paths import DataFile

NEAR_BYTES = 256 * 1024
"""To ask again takes as long as to fetch so much more."""
PIECE_BYTES = 8 * 1024 * 1024


class FarBytes:
    """Of a file that is open."""

    def __init__(self, file: DataFile, opened: pa.NativeFile) -> None:
        self._file = file
        self._opened = opened
        #: what is held, by the row group that it is of: where it begins, and the bytes
        self._held: dict[int, list[tuple[int, Any]]] = {}

    def expect(self, group: int, ranges: Iterable[tuple[int, int]]) -> None:
        """These parts of a row group will be read."""
        missing = [part for begin, end in ranges for part in self._missing(group, begin, min(end, self._file.size))]
        pieces = list(_pieces(sorted(missing)))
        if pieces:
            found = self._file.parts(self._opened, pieces)
            self._held.setdefault(group, []).extend(
                (begin, np.frombuffer(bytes, dtype=np.uint8)) for (begin, _), bytes in zip(pieces, found, strict=True)
            )

    def forget(self, group: int) -> None:
        """Nothing of a row group is read any more."""
        self._held.pop(group, None)

    def copy(self, offset: int, memory: Any) -> bool:
        """Copy a part of the file, if it is held."""
        done, size = 0, len(memory)
        while done < size:
            part = self._part(offset + done)
            if part is None:
                return False
            now = min(size - done, len(part))
            memory[done : done + now] = part[:now]
            done += now
        return True

    def _part(self, at: int) -> Any:
        """What is held from a byte on; None: that byte is not."""
        for parts in self._held.values():
            for begin, bytes in parts:
                if begin <= at < begin + len(bytes):
                    return bytes[at - begin :]
        return None

    def _missing(self, group: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """What of a range is not held: all, or what is behind its beginning."""
        while begin < end and (part := self._part(begin)) is not None:
            begin += len(part)
        if begin < end:
            yield begin, end


def _pieces(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Rule 1, of ascending ranges."""
    joined: list[tuple[int, int]] = []
    for begin, end in ranges:
        if joined and begin - joined[-1][1] <= NEAR_BYTES:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    for begin, end in joined:
        for start in range(begin, end, PIECE_BYTES):
            yield start, min(end, start + PIECE_BYTES)
