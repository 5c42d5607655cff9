"""What a source promises: an ordered, fixed list of splits, each readable from any row on.

Rules:

1. The list of splits and the rows and row order within each are the same every time they are read. A restore reads
   again from a cursor (split, row), so a source that cannot promise this cannot take part in a checkpoint.
2. ``splits`` is called once, when the job is planned, in the process that plans it; the splits travel to the tasks.
3. A split knows its length where that costs nothing (``rows``); the audit compares it with what was read.
4. A source that can tell whether its data are still the same has a method ``fingerprint() -> str``: equal for equal
   splits with equal rows, otherwise another one, as far as that is cheap to know. It is recorded when the job begins; a
   job that goes on is refused if it is another one then. Without it nobody notices that such a source has changed.
   (Sources of files need none: each file is recorded, see ``listing``.)
5. With ``audit="content"`` all splits are read once more when the job is over. A source of which that cannot or shall
   not be (its rows are gone by then, reading would wait for ever, or costs too much) says so with an attribute
   ``reads_once`` that is true; it is read in one epoch only, too.
6. A source that can leave columns out says ``prunable = True``; each of its splits then has ``narrowed(columns)``, with
   the same rows under the same id, in these columns alone.
7. A source that knows how many bytes reading takes at once, the batch that it gives included, says so with an attribute
   ``reads_at_once``; without it ``explain`` says that its batches have no bound. They are cut anyway (``RowStream``).
8. A source that can guess cheaply between which values columns lie has a method ``bounds(columns)``, which gives pairs
   (least, largest) by name, of those that it knows. Plans go by it, rows do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc


class Split(Protocol):
    """One unit of source work, picklable. One whose reading may wait for a disk or a network says so with an attribute
    ``blocking`` that is true; it is then opened and read on other threads, one at a time, unless another one,
    ``is_at_hand``, says that just now it need not wait. One whose rows somebody else
    still makes says ``may_be_poison = False``: an error is then no fault of the split's, and it is never skipped. One
    that holds much memory while it is open, beside the batches that it gives, says how much: ``open_bytes``; one that
    has its rows in memory before it is opened: ``held_bytes``."""

    @property
    def id(self) -> str:
        """Unique within the source and stable from run to run."""

    @property
    def rows(self) -> int | None:
        """The number of rows, if known without reading."""

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        """The rows from row ``start`` on, in order, in batches of any size."""


class Condition(Protocol):
    """What a filter that stands directly behind a source lets through, for the reader (``sources.picking``)."""

    @property
    def columns(self) -> Sequence[str]:
        """Those that it looks at."""

    @property
    def keeps(self) -> Sequence[str] | None:
        """Those that come out of the filter; None: all that it gets."""

    @property
    def expression(self) -> pc.Expression:
        """The condition."""

    def mask(self, records: pa.RecordBatch) -> pa.Array | None:
        """For each row whether it passes: true, or not; None: no row does. ``records`` has its ``columns``, or more."""


class SourceConfig(Protocol):
    """The immutable description of a source."""

    @property
    def kind(self) -> str:
        """The source's noun for ``explain``: "parquet", "memory"."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of every split."""

    def splits(self) -> Sequence[Split]:
        """All splits in their fixed order. May do I/O; raises ConfigurationError or StorageError."""

    def describe(self) -> str:
        """One line for ``explain`` and the flow's fingerprint."""
