"""The chunks of one lane's round, read in place or, where reading may wait for a disk or a network, ahead of time.

Rules:

1. ``take`` never waits: PENDING says that the next chunk is still being read, and that the driver will be woken.
2. One chunk is read at a time, the next one as soon as one was taken, up to the end of the lane's round. So reading
   overlaps with working, and at most one chunk more is in memory. The chunks and their order are those of the split.
3. Behind a chunk of few rows, which is mostly the last one, the next is looked for at once.
4. Small splits are read several in one go, in the order in which lanes come to them: to ask another thread for each
   would cost as much as to read it. What goes wrong with one is told when it is its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

from ..core.operator import Background
from .picking import Chunk, bytes_of, rows_read


class PendingChunk(Enum):
    """The type of PENDING."""

    PENDING = "pending"


PENDING: Final = PendingChunk.PENDING
FEW_ROWS, FEW_BYTES = 8 * 1024, 1024 * 1024
"""Rule 3. A small split has at most so many rows, and a go ends when it has read so many bytes."""


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


class SmallSplits:
    """The chunks of several splits, read in one go (rule 4)."""

    def __init__(self, splits: Sequence[Iterator[Chunk]], background: Background) -> None:
        self._splits = splits
        self._background = background
        #: the answers of each split that was read; None before the go is over
        self._read: list[deque[Chunk | BaseException | None]] | None = None
        background(self._go, self._gone)

    def _go(self) -> list[deque[Chunk | BaseException | None]]:
        read: list[deque[Chunk | BaseException | None]] = []
        bytes = 0
        for split in self._splits:
            answers: deque[Chunk | BaseException | None] = deque()
            read.append(answers)
            try:
                for chunk in split:
                    answers.append(chunk)
                    bytes += bytes_of(chunk)
                    if bytes >= FEW_BYTES:
                        return read  # rows may be wide: the rest of this split is read as of any other
            except BaseException as error:
                answers.append(error)
                break
            answers.append(None)
        return read

    def _gone(self, found: list[deque[Chunk | BaseException | None]] | BaseException) -> None:
        self._read = [deque([found])] if isinstance(found, BaseException) else found

    @property
    def is_over(self) -> bool:
        """Whether the go is over."""
        return self._read is not None

    def answers(self, place: int) -> deque[Chunk | BaseException | None] | None:
        """What came of the split at a place, of which the end may be missing; None: it was not read, or not yet."""
        return None if self._read is None or place >= len(self._read) else self._read[place]

    def alone(self, place: int) -> ReadAhead:
        """The split at a place, or what is left of it, by itself."""
        return ReadAhead(self._splits[place], self._background)


class OneOfSeveral:
    """The chunks of one of these splits."""

    def __init__(self, splits: SmallSplits, place: int) -> None:
        self._splits = splits
        self._place = place
        self._alone: ReadAhead | None = None

    def take(self) -> Chunk | PendingChunk | None:
        """The next chunk; None at the end; PENDING while it is read. Raises what reading raised."""
        if self._alone is not None:
            return self._alone.take()
        if not self._splits.is_over:
            return PENDING
        answers = self._splits.answers(self._place)
        if not answers:
            self._alone = self._splits.alone(self._place)
            return PENDING
        found = answers.popleft()
        if isinstance(found, BaseException):
            raise found
        return found
