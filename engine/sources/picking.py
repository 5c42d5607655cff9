"""Rows that are picked where they are read: those that the filters behind a source let through, and joins may need.

Rules:

1. A chunk is what it is without this: it stands for the same rows as they were read. Cursors, rounds, tags, quotas and
   borders of chunks count those, so neither the order nor a checkpoint tells where rows were picked.
2. The filters stay operators of the flow. They get a ``PickedBatch``, and count what has passed them.
3. Whatever goes wrong here, the chunk goes on whole: the filter itself meets the rows then, and its error says where.
4. What a join does not need is looked for last, among the rows that all filters let through.
5. A split that can do more than be read and then picked from has a method ``stream(start, pick)``: chunks as
   ``RowStream`` cuts them, of which it reads as little as it can.
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
from ..core.source import Condition
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


@dataclass(frozen=True, slots=True)
class Keys:
    """What a join needs of a source, by these of its columns. ``is_awaited``: whether readers wait for it."""

    filter: KeyFilter
    columns: tuple[str, ...]
    is_awaited: Callable[[], bool] = lambda: False


@dataclass(slots=True)
class Pick:
    """What is picked of a source with this ``schema``, by the filters that follow it, in their order, and by what joins
    need. ``window``: task barriers that the reader has passed."""

    schema: pa.Schema
    conditions: tuple[Condition, ...] = ()
    joins: tuple[Keys, ...] = ()
    window: int = 0
    #: the columns that the filters look at, those that come out of the last one, and those that joins look at
    looks_at: list[str] = field(init=False)
    columns: list[str] = field(init=False)
    keys: list[str] = field(init=False)
    _plain: PlainNulls = field(init=False)

    def __post_init__(self) -> None:
        names = self.schema.names
        seen = {name for condition in self.conditions for name in condition.columns}
        kept = set(next((each.keeps for each in reversed(self.conditions) if each.keeps is not None), names))
        self.looks_at = [name for name in names if name in seen]
        self.columns = [name for name in names if name in kept]
        self.keys = list(dict.fromkeys(name for each in self.joins for name in each.columns))
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
        for each in self.joins:
            if not each.filter.pays:
                continue
            own = [at[name] for name in each.columns]
            found = each.filter.picked(
                self.window, own if positions is None else [key.take(pa.array(positions)) for key in own]
            )
            if found is not None:
                positions = found if positions is None else positions[found]
        return None if positions is not None and len(positions) == rows else positions


class PickingStream:
    """The rows of a split that is read whole."""

    def __init__(self, rows: RowStream, pick: Pick) -> None:
        self._rows = rows
        self._pick = pick

    def chunks(self, limit: int | None) -> Iterator[Chunk]:
        """As ``RowStream`` cuts them."""
        return map(self._pick.of, self._rows.chunks(limit))
