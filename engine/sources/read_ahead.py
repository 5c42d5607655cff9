"""The chunks of one lane's round, read in place or, where reading may wait for a disk or a network, ahead of time.

Rules:

1. ``take`` never waits: PENDING says that the next chunk is still being read, and that the driver will be woken.
2. One chunk is read at a time, the next one as soon as one was taken, up to the end of the lane's round. So reading
   overlaps with working, and at most one chunk more is in memory. The chunks and their order are those of the split.
3. Behind a chunk of few rows, which is mostly the last one, the next is looked for at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Final

from ..core.operator import Background
from .picking import Chunk, bytes_of, rows_read


class PendingChunk(Enum):
    """The type of PENDING."""

    PENDING = "pending"


PENDING: Final = PendingChunk.PENDING
FEW_ROWS, FEW_BYTES = 8 * 1024, 1024 * 1024
"""Rule 3."""


class ReadInPlace:
    """Reads when asked."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks

    def take(self) -> Chunk | PendingChunk | None:
        """The next chunk; None at the end."""
        return next(self._chunks, None)


class ReadAhead:
    """Reads in the background. See the module's rules."""

    def __init__(self, chunks: Iterator[Chunk], background: Background) -> None:
        self._chunks = chunks
        self._background = background
        #: chunks that were read, or the error, or None for the end
        self._answers: deque[Chunk | BaseException | None] = deque()
        self._ask()

    def _ask(self) -> None:
        self._background(self._read, self._answered)

    def _read(self) -> list[Chunk | BaseException | None]:
        chunk = next(self._chunks, None)
        if chunk is None or rows_read(chunk) >= FEW_ROWS or bytes_of(chunk) >= FEW_BYTES:
            return [chunk]
        try:
            return [chunk, next(self._chunks, None)]
        except BaseException as error:
            return [chunk, error]

    def _answered(self, found: list[Chunk | BaseException | None] | BaseException) -> None:
        self._answers.extend([found] if isinstance(found, BaseException) else found)

    def take(self) -> Chunk | PendingChunk | None:
        """The next chunk; None at the end; PENDING while it is read. Raises what reading raised."""
        if not self._answers:
            return PENDING
        found = self._answers.popleft()
        if isinstance(found, BaseException):
            raise found
        if found is not None and not self._answers:
            self._ask()
        return found
