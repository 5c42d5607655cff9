"""What travels on an edge: batches and control elements, in order.

Rules:

1. A batch is never empty, and carries the order tag that its rows were given at the source. Tags on a channel are
   strictly increasing.
2. ``EndOfRound(r)`` follows the last batch of round ``r`` on every channel, even when a filter dropped all of them:
   nobody starves waiting for a round that was empty.
3. A barrier stands directly after an ``EndOfRound``, or after ``EndOfData``: at the same round in every channel, so
   that alignment and whoever goes through the rounds in step cannot wait for each other. One at which whole tasks are
   cut (``unaligned``) may stand anywhere: no driver sees it.
4. After ``EndOfData`` come no more batches, only barriers; ``EndOfPartition`` closes the channel.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import pyarrow as pa

from .identity import FINAL_ROUND as FINAL_ROUND  # noqa: PLC0414 an element's round, re-exported
from .identity import BarrierKind, CheckpointId


class Tag(msgspec.Struct, frozen=True, order=True):
    """Where a batch stands in the order: round, then order lane, then position within the two."""

    round: int
    lane: int
    sequence: int


class Batch(msgspec.Struct, frozen=True, eq=False):
    """Rows with the order tag of their source. Never empty. Unhashable (so is ``RecordBatch``): key by tag."""

    records: pa.RecordBatch
    tag: Tag
    _size: int = -1

    @property
    def rows(self) -> int:
        """How many rows of its source or operator it stands for."""
        return int(self.records.num_rows)

    @property
    def matters(self) -> bool:
        """Whether an operator has anything to do with it."""
        return True

    @property
    def plain(self) -> Batch:
        """Its rows, and nothing of where they were picked."""
        return self

    @property
    def size(self) -> int:
        """Bytes of the rows; those of a slice, not of the buffers that it shares. Measured once: that takes longer
        than handing the batch on."""
        if self._size < 0:
            msgspec.structs.force_setattr(self, "_size", int(self.records.nbytes))
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self.tag == other.tag and bool(self.records == other.records)

    __hash__ = None  # type: ignore[assignment]


class PickedBatch(Batch, frozen=True, eq=False):
    """A batch of which rows were picked where it was read; it never leaves a task.

    ``counts``: the rows that were read, and then those that each of the filters that the reader has applied let
    through; these filters, the first ones of the chain, have only to count. ``records`` may be empty, or have fewer
    rows than the last count: others are needless.
    """

    counts: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return self.counts[0]

    @property
    def matters(self) -> bool:
        return bool(self.records.num_rows or (len(self.counts) > 1 and self.counts[0]))

    @property
    def plain(self) -> Batch:
        return Batch(self.records, self.tag, self._size)

    def counted(self) -> PickedBatch:
        """As it comes out of the first of these filters."""
        return PickedBatch(self.records, self.tag, self._size, self.counts[1:])


def divided(batch: Batch, rows: int) -> tuple[Batch, Batch]:
    """The first ``rows`` of a batch that has more, and the others; under its tag both."""
    first, rest = batch.records.slice(0, rows), batch.records.slice(rows)
    if isinstance(batch, PickedBatch):
        counts = (batch.counts[0] - rows, *batch.counts[1:])
        return Batch(first, batch.tag), PickedBatch(rest, batch.tag, counts=counts)
    return Batch(first, batch.tag), Batch(rest, batch.tag)


class EndOfRound(msgspec.Struct, frozen=True):
    """No further batch of this round, or of an earlier one, follows on this channel."""

    round: int


class Watermark(msgspec.Struct, frozen=True):
    """No later row on this channel has an event time below ``time`` (microseconds since the epoch)."""

    time: int


class Barrier(msgspec.Struct, frozen=True):
    """The line that cuts a channel into before and after ``checkpoint``. ``timestamp``: when it was triggered.

    ``unaligned``: it passes what waits, and whole tasks are cut at it; else it keeps its place among the elements.
    """

    checkpoint: CheckpointId
    kind: BarrierKind
    timestamp: float
    unaligned: bool = False


class CancelBarrier(msgspec.Struct, frozen=True):
    """The checkpoint was given up upstream; whoever waits for its barrier stops waiting."""

    checkpoint: CheckpointId


class EndOfData(msgspec.Struct, frozen=True):
    """No further batch follows; barriers may. ``drain``: operators emit what they still hold."""

    drain: bool = True


class EndOfPartition(msgspec.Struct, frozen=True):
    """The channel is closed."""


Element: TypeAlias = Batch | EndOfRound | Watermark | Barrier | CancelBarrier | EndOfData | EndOfPartition


def is_task_barrier(element: Element) -> bool:
    """Whether it is a barrier that ends a window."""
    return isinstance(element, Barrier) and element.kind is BarrierKind.DRAIN


def ends_window(element: Element) -> bool:
    """Whether no batch behind the element belongs to its window: it is a task barrier, or the end of the data."""
    return isinstance(element, EndOfData) or is_task_barrier(element)


def size_of(element: Element) -> int:
    """Bytes that the element counts for against a channel's credit; control elements count nothing.

    Of a slice only its own rows count, not the buffers that it shares with others.
    """
    return element.size if isinstance(element, Batch) else 0
