"""Small summaries of many values: codes of values, each with a count, of which a group keeps few.

Rules:

1. What a group keeps depends on the values that it has had, not on their order, on batches, or on how lanes met: a
   summary of two parts is that of the whole. (Sketches that draw random numbers, as KLL does, give other results each
   time; those that cluster what has come so far, as t-digest does, depend on what came first.)
2. Nulls have no code. ``most``: a group keeps so many codes, the smallest ones.
3. Codes wait until they are as many as those kept; then both are sorted together. So a row costs a part of a sort,
   whatever the number of groups is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .accumulators import GroupRows
from .aggregate_protocol import State
from .growable_array import GrowableArray
from .keys import validity
from .pieces import Positions
from .radix_order import Part, radix_order

Codes = npt.NDArray[np.int64]

WAITING = 64 * 1024
"""Codes that wait at least before they are sorted."""


class CodeCounts:
    """The codes of all groups. Its state: a list of codes, and unless ``most`` bounds them one of their counts."""

    in_place = True
    takes_compact = False

    def __init__(self, coded: Callable[[pa.Array], Codes], most: int | None = None) -> None:
        self._coded, self._most = coded, most
        self._groups = 0
        #: group, code and count, sorted by group and code
        self._kept: tuple[Positions, Codes, Positions] = _NOTHING
        #: the same of what has come since, as it came
        self._new: list[tuple[Positions, Codes, Positions]] = []
        self._waiting = 0
        #: with ``most``: for each group the code from which on none is kept
        self._ends = GrowableArray(np.int64, np.iinfo(np.int64).max)

    @property
    def bytes(self) -> int:
        return 24 * (len(self._kept[0]) + self._waiting) + 8 * self._groups + self._ends.bytes

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        assert values is not None
        self._groups, ids = rows.groups, rows.ids
        if values.null_count:
            ids, values = ids[validity(values)], values.drop_null()
        self._put(ids, self._coded(values), np.ones(len(ids), dtype=np.int64))

    def merge(self, state: State, rows: GroupRows) -> None:
        self._groups = rows.groups
        ids = np.repeat(rows.ids, pc.list_value_length(state[0]).to_numpy())
        codes, *counts = (part.flatten().to_numpy() for part in state)
        self._put(ids, codes, counts[0] if counts else np.ones(len(ids), dtype=np.int64))

    def state(self) -> State:
        self._settle()
        ids, codes, counts = self._kept
        offsets = pa.array(np.append(0, np.cumsum(np.bincount(ids, minlength=self._groups))).astype(np.int64))
        parts = (codes,) if self._most is not None else (codes, counts)
        return tuple(pa.LargeListArray.from_arrays(offsets, pa.array(part), type=CODES) for part in parts)

    def _put(self, ids: Positions, codes: Codes, counts: Positions) -> None:
        if self._most is not None:
            fresh = np.flatnonzero(codes < self._ends.to(self._groups)[ids])
            ids, codes, counts = ids[fresh], codes[fresh], counts[fresh]
        if len(ids):
            self._new.append((ids, codes, counts))
            self._waiting += len(ids)
        if self._waiting > max(len(self._kept[0]), WAITING):
            self._settle()

    def _settle(self) -> None:
        if not self._new:
            return
        ids, codes, counts = (np.concatenate(column) for column in zip(self._kept, *self._new, strict=True))
        order = radix_order([Part.of(ids), Part.of(codes)], len(ids))
        ids, codes, counts = ids[order], codes[order], counts[order]
        firsts = np.append(0, np.flatnonzero((np.diff(ids) != 0) | (np.diff(codes) != 0)) + 1)
        ids, codes, counts = ids[firsts], codes[firsts], np.add.reduceat(counts, firsts)
        if self._most is not None:
            places = np.arange(len(ids)) - np.searchsorted(ids, ids)
            last = np.flatnonzero(places == self._most - 1)
            self._ends.to(self._groups)[ids[last]] = codes[last]
            kept = places < self._most
            ids, codes, counts = ids[kept], codes[kept], counts[kept]
        self._kept, self._new, self._waiting = (ids, codes, counts), [], 0


CODES = pa.large_list(pa.int64())
_NONE: Codes = np.zeros(0, dtype=np.int64)
_NOTHING = _NONE, _NONE, _NONE
