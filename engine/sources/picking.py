"""Rows that are picked where they are read: those that the filters behind a source let through, and that what is
further down may need.

Rules:

1. A chunk is what it is without this: it stands for the same rows as they were read. Cursors, rounds, tags, quotas and
   borders of chunks count those, so neither the order nor a checkpoint tells where rows were picked.
2. The filters stay operators of the flow. They get a ``PickedBatch``, and count what has passed them.
3. Whatever goes wrong here, the chunk goes on whole: the filter itself meets the rows then, and its error says where.
4. What operators further down do not need is looked for last, among the rows that all filters let through: first what
   conditions say (``early``: they have an answer for every row), then what joins have told.
5. A split that can do more than be read and then picked from has a method ``column_stream(start, pick, compact)``:
   chunks as ``RowStream`` cuts them, of which it reads as little as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..arrow.dictionaries import PlainNulls
from ..arrow.masks import set_bits
from ..core.source import Condition, Split
from ..kernels.key_filter import KeyFilter
from ..kernels.pieces import selected
from ..plan.rounds import RowStream

Positions: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PickedRows:
    """A chunk: what is left of it, and how many rows were read, and left by each filter (``PickedBatch.counts``)."""

    records: pa.RecordBatch
    counts: tuple[int, ...]


Chunk: TypeAlias = pa.RecordBatch | PickedRows


def rows_read(chunk: Chunk) -> int:
    """How many rows a chunk stands for."""
    return chunk.counts[0] if isinstance(chunk, PickedRows) else int(chunk.num_rows)


def bytes_of(chunk: Chunk) -> int:
    """What is left of it in memory."""
    records = chunk.records if isinstance(chunk, PickedRows) else chunk
    return int(records.nbytes)


class Chunked(Protocol):
    """The rows of a split from some row on."""

    def chunks(self, limit: int | None) -> Iterator[Chunk]:
        """The next ``limit`` rows (None: all)."""


def column_stream(split: Split, start: int, pick: Pick | None, compact: bool) -> Chunked | None:
    """The rows of a split from one on, if it gives chunks by itself (rule 5); None: it is read and then picked from."""
    own = getattr(split, "column_stream", None)
    found: Chunked | None = None if own is None else own(start, pick, compact)
    return found


@dataclass(frozen=True, slots=True)
class Keys:
    """What the join with this id needs of a source, by these of its columns. ``is_awaited``: whether readers wait for
    it."""

    filter: KeyFilter
    columns: tuple[str, ...]
    is_awaited: Callable[[], bool] = lambda: False
    join: str = ""


@dataclass(slots=True)
class Passed:
    """Of so many rows that were asked for so many have passed."""

    rows: int = 0
    passed: int = 0

    def add(self, rows: int, passed: int) -> None:
        """Further ones."""
        self.rows += rows
        self.passed += passed


TRIED_ROWS = 64 * 1024
"""After so many a condition is given up that drops too few."""
MOST_PASS = 0.9
"""If a larger share of the rows passes, asking costs more than what is not decoded."""


@dataclass(slots=True)
class EarlyCondition:
    """What operators further down ask of the rows. They ask again, so nothing depends on whether that is done here;
    rows are counted for one reader."""

    condition: Condition
    by: str = ""
    passed: Passed = field(default_factory=Passed)

    @property
    def pays(self) -> bool:
        """Whether it has left out enough of the rows so far to go on with it."""
        return self.passed.rows < TRIED_ROWS or self.passed.passed <= MOST_PASS * self.passed.rows

    def passing(self, records: pa.RecordBatch) -> Positions | None:
        """The positions of the rows for which it holds; None: all. ``records`` has its columns, or more."""
        found = set_bits(self.condition.mask(records.select(list(self.condition.columns))))
        self.passed.add(records.num_rows, len(found))
        return None if len(found) == records.num_rows else found


@dataclass(slots=True)
class Skipped:
    """What was left out by what files tell, for people: of so many row groups so many, so many of them only by bloom
    filters or dictionaries (of so many that were looked through), of so many pages within the others so many, and rows
    of all these."""

    groups: int = 0
    groups_left_out: int = 0
    by_bloom: int = 0
    by_dictionary: int = 0
    dictionaries: int = 0
    pages: int = 0
    pages_left_out: int = 0
    rows: int = 0


@dataclass(slots=True)
class Pick:
    """What is picked of a source with this ``schema``, by the filters that follow it, in their order, and by what
    operators further down and joins need. ``window``: task barriers that the reader has passed."""

    schema: pa.Schema
    conditions: tuple[Condition, ...] = ()
    joins: tuple[Keys, ...] = ()
    window: int = 0
    early: tuple[EarlyCondition, ...] = ()
    #: the columns that come out of the last filter, and those that joins look at
    columns: list[str] = field(init=False)
    keys: list[str] = field(init=False)
    skipped: Skipped = field(init=False, default_factory=Skipped)
    #: what all filters together let through, and each of the joins of the rows that those before it left, once it had
    #: told its keys
    filtered: Passed = field(init=False, default_factory=Passed)
    met: list[Passed] = field(init=False)
    _plain: PlainNulls = field(init=False)

    def __post_init__(self) -> None:
        names = self.schema.names
        kept = set(next((each.keeps for each in reversed(self.conditions) if each.keeps is not None), names))
        self.columns = [name for name in names if name in kept]
        self.keys = list(dict.fromkeys(name for each in self.joins for name in each.columns))
        self.met = [Passed() for _ in self.joins]
        self._plain = PlainNulls(self.schema)

    def of(self, records: pa.RecordBatch) -> Chunk:
        """What is picked of a chunk that was read whole."""
        if not records.schema.equals(self.schema):
            return records  # whoever takes it says so
        whole = self._plain.of(records)
        found = self.passing(whole)
        if found is None:
            return records
        counts, positions = found
        kept = whole.select(self.columns)
        kept = kept if positions is None else selected(kept, positions)
        for each in self.early:
            passed = each.passing(kept) if each.pays else None
            kept = kept if passed is None else selected(kept, passed)
        needed = self.needed([kept.column(name) for name in self.keys], kept.num_rows)
        return PickedRows(kept if needed is None else selected(kept, needed), counts)

    def passing(self, records: pa.RecordBatch) -> tuple[tuple[int, ...], Positions | None] | None:
        """The counts, and the positions of the rows that pass all filters (None: all), which are asked on the columns
        that they look at; None if one of them fails (rule 3)."""
        counts, positions = [records.num_rows], None
        for condition in self.conditions:
            seen = records.select(list(condition.columns))
            try:
                mask = condition.mask(seen if positions is None else selected(seen, positions))
            except Exception:
                return None
            passed = set_bits(mask)
            if len(passed) < counts[-1]:
                positions = passed if positions is None else positions[passed]
            counts.append(len(passed))
        return tuple(counts), positions

    def needed(self, columns: Sequence[pa.Array], rows: int) -> Positions | None:
        """Which of so many rows joins may need; None: all. ``columns``: the ``keys`` of these rows."""
        positions: Positions | None = None
        at = dict(zip(self.keys, columns, strict=True))
        for each, met in zip(self.joins, self.met, strict=True):
            before = rows if positions is None else len(positions)
            if each.filter.pays:
                own = [at[name] for name in each.columns]
                found = each.filter.picked(
                    self.window, own if positions is None else [key.take(pa.array(positions)) for key in own]
                )
                if found is not None:
                    positions = found if positions is None else positions[found]
            if each.filter.test(self.window) is not None:
                met.add(before, rows if positions is None else len(positions))
        return None if positions is not None and len(positions) == rows else positions


class PickingStream:
    """The rows of a split that is read whole."""

    def __init__(self, rows: RowStream, pick: Pick) -> None:
        self._rows = rows
        self._pick = pick

    def chunks(self, limit: int | None) -> Iterator[Chunk]:
        """As ``RowStream`` cuts them."""
        return map(self._pick.of, self._rows.chunks(limit))
