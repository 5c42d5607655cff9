"""Counts the batches that pass a place, for the ledger of a driver (``ledger``)."""

from __future__ import annotations

from ..core.elements import Batch
from ..core.identity import Tally
from .checksums import number_checksum


class RunningTally:
    """A tally in the making."""

    __slots__ = ("batches", "checksum", "rows")

    def __init__(self) -> None:
        self.rows = self.batches = self.checksum = 0

    def add(self, batch: Batch) -> None:
        """One more batch."""
        rows, tag = batch.rows, batch.tag
        self.rows += rows
        self.batches += 1
        self.checksum = (self.checksum + number_checksum(tag.round, tag.lane, tag.sequence, rows)) % 2**64

    @property
    def tally(self) -> Tally:
        """What has passed so far."""
        return Tally(self.rows, self.batches, self.checksum)


def tally_of(batches: list[Batch]) -> Tally:
    """The tally of these batches."""
    count = RunningTally()
    for batch in batches:
        count.add(batch)
    return count.tally
