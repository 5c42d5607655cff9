"""A gate that puts aside what its port does not want yet, so that whoever sends it can go on sending to others.

Where a stream is forked and its branches meet again in one driver (a join of a stream with itself), back-pressure could
close a circle: the join wants the rows of one branch first, but the fork cannot send them before the other branch has
room. Such a port (``PortPlan.spooled``) is read by a :class:`SpoolingGate`. Rules, after DuckDB's buffered results:

1. Only batches and ends of rounds are put aside, in the order in which the gate gives them out, and only when the port
   refuses the batch that comes next. Barriers and ends wait where they are, as they would without a spool: what is
   before them must be processed first, so nothing is put aside when a snapshot is taken.
2. Up to ``MEMORY_BYTES`` are kept in memory, the rest goes to files of that size, and comes back one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

import pyarrow as pa

from ..core.elements import Batch, Element, EndOfRound, Tag, size_of
from ..core.errors import InternalError
from ..core.operator import Memory, SpillFile
from .gate import PUT_ASIDE, REFUSED, Delivered, Gate, PutAside, Refused, Starved

MEMORY_BYTES = 16 * 1024 * 1024
"""Bytes put aside before the next file is begun: as much as a channel may have in flight."""


class _File:
    """Elements of which the rows of the batches are in a file."""

    def __init__(self, file: SpillFile, elements: list[Batch | EndOfRound]) -> None:
        self._file = file
        self._elements: deque[Tag | EndOfRound] = deque()
        for element in elements:
            if isinstance(element, Batch):
                file.write(element.records)
                self._elements.append(element.tag)
            else:
                self._elements.append(element)
        self._rows: Iterator[pa.RecordBatch] = iter(file.read())

    def read(self) -> Iterator[Batch | EndOfRound]:
        """The elements, once."""
        for found in self._elements:
            yield Batch(next(self._rows), found) if isinstance(found, Tag) else found
        self._file.delete()


class SpoolingGate(Gate):
    """See the module's rules. ``inner``: the gate whose elements are put aside."""

    def __init__(self, inner: Gate, memory: Memory) -> None:
        super().__init__(inner.feeds)
        self._inner = inner
        self._memory = memory
        #: put aside, oldest first: what was read back, what is in files, and what came last
        self._front: deque[Batch | EndOfRound] = deque()
        self._files: deque[_File] = deque()
        self._back: list[Batch | EndOfRound] = []
        self._back_bytes = 0

    def poll(
        self, blocked: Collection[int], accepts: bool = True, controls: bool = True
    ) -> Delivered | Starved | Refused | PutAside:
        """As ``Gate.poll``; PutAside if a batch that is not wanted has made room for others."""
        if not self._refill():
            found = self._inner.poll(blocked, accepts, controls)
            return self._put_aside(blocked) if isinstance(found, Refused) and not accepts else found
        head = self._front[0]
        if accepts if isinstance(head, Batch) else controls:
            return Delivered(0, self._front.popleft())
        return self._put_aside(blocked)

    def _put_aside(self, blocked: Collection[int]) -> PutAside | Refused:
        found = self._inner.poll(blocked, True, False)
        if isinstance(found, Refused):
            # the next one is no batch: an end of a round may be put aside, too, if there is anything before it
            ended = bool(self._front) and self._inner.at_end_of_round(blocked)
            found = self._inner.poll(blocked) if ended else found
        if not isinstance(found, Delivered):
            return REFUSED
        element: Element = found.element
        if not isinstance(element, Batch | EndOfRound):
            raise InternalError(f"{type(element).__name__} cannot be put aside")
        self._back.append(element)
        self._back_bytes += size_of(element)
        if self._back_bytes >= MEMORY_BYTES:
            batches = [each for each in self._back if isinstance(each, Batch)]
            self._files.append(_File(self._memory.spill(batches[0].records.schema), self._back))
            self._back, self._back_bytes = [], 0
        return PUT_ASIDE

    def _refill(self) -> bool:
        """Whether anything was put aside; the oldest of it is in front."""
        if not self._front:
            if self._files:
                self._front.extend(self._files.popleft().read())
            else:
                self._front.extend(self._back)
                self._back, self._back_bytes = [], 0
        return bool(self._front)
