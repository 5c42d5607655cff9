"""The chunks of one lane's round, read in place or, where reading may wait for a disk or a network, ahead of time.

Rules:

1. ``take`` never waits: PENDING says that the next chunk is still being read, and that the driver will be woken.
2. One chunk is read at a time, the next one as soon as one was taken, up to the end of the lane's round. So reading
   overlaps with working, and at most one chunk more is in memory. The chunks and their order are those of the split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Final

from ..core.operator import Background
from .picking import Chunk


class PendingChunk(Enum):
    """The type of PENDING."""

    PENDING = "pending"


PENDING: Final = PendingChunk.PENDING


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
        #: the chunk that was read, or the error, or None for the end
        self._answer: deque[Chunk | BaseException | None] = deque()
        self._ask()

    def _ask(self) -> None:
        self._background(lambda: next(self._chunks, None), self._answer.append)

    def take(self) -> Chunk | PendingChunk | None:
        """The next chunk; None at the end; PENDING while it is read. Raises what reading raised."""
        if not self._answer:
            return PENDING
        found = self._answer.popleft()
        if isinstance(found, BaseException):
            raise found
        if found is not None:
            self._ask()
        return found
