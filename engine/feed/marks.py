"""Rows of a feed whose batches were cut by what rows cost: they say themselves where a batch ends.

Rules:

1. One more column, ``END``, is true in the last row of each batch, and an epoch ends where one does. A batch may come
   in pieces, and a checkpoint lie between them. The column is kept and stored with the rows, and goes before ranks,
   hashes or digests see them.
2. A rank's share of a batch is a function of the batch, the rank and the number of ranks. Without ``balance`` it is as
   in any feed: contiguous, equally many rows. With it each row, the dearest first, goes to the rank that has least; of
   equal ones to the first. The rows of a share stay in their order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heapreplace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..kernels.pieces import Positions
from .measures import Given, Measure
from .messages import RankGroup

END = "__penstock_batch_end"
_REMEMBERED = 64
"""Batches of which it is known who gets which rows: all ranks ask for the same ones within a moment."""


def marked(schema: pa.Schema) -> pa.Schema:
    """With the column that tells where batches end."""
    return schema.append(pa.field(END, pa.bool_(), False))


def unmarked(schema: pa.Schema) -> pa.Schema:
    """Without it."""
    return schema.remove(schema.get_field_index(END))


class Marks:
    """See the module's rules. ``schema``: of the rows with the column."""

    def __init__(self, schema: pa.Schema, balance: Given | None) -> None:
        self._schema = unmarked(schema)
        self._end = schema.get_field_index(END)
        self._measure = None if balance is None else Measure("feed", "balance", balance, self._schema)
        self._shares: OrderedDict[tuple[int, int], list[Positions]] = OrderedDict()

    def ends(self, rows: pa.RecordBatch) -> list[int]:
        """Behind which of the rows batches end."""
        flags = rows.column(self._end).to_numpy(zero_copy_only=False)
        found: list[int] = (np.flatnonzero(flags) + 1).tolist()
        return found

    def check(self, rows: pa.RecordBatch) -> None:
        """Raises DataError for a row that cannot be balanced: shares are made for a rank, which could end no job."""
        if self._measure is not None:
            self._measure.of(self.bare(rows))

    def bare(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as ranks get them."""
        columns = [column for place, column in enumerate(rows.columns) if place != self._end]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def share(self, batch: int, pieces: Sequence[pa.RecordBatch], rank: int, ranks: int) -> tuple[pa.RecordBatch, ...]:
        """The rank's rows of a whole batch."""
        bare = [self.bare(rows) for rows in pieces]
        found = self._shares.get((batch, ranks))
        if found is None:
            found = self._shares[batch, ranks] = self.shares(bare, ranks)
            if len(self._shares) > _REMEMBERED:
                self._shares.popitem(last=False)
        mine, before, taken = found[rank], 0, []
        for rows in bare:
            low, high = np.searchsorted(mine, (before, before + rows.num_rows))
            if high > low:
                first, last = int(mine[low]), int(mine[high - 1])
                if last - first + 1 == high - low:
                    taken.append(rows.slice(first - before, high - low))
                else:
                    taken.append(rows.take(pa.array(mine[low:high] - before)))
            before += rows.num_rows
        return tuple(taken)

    def shares(self, pieces: Sequence[pa.RecordBatch], ranks: int) -> list[Positions]:
        """Which rows of a whole batch each rank gets, of bare ones."""
        if self._measure is None:
            rows = sum(each.num_rows for each in pieces)
            return [np.array(RankGroup(0, ranks, 0).share(rank, rows), np.int64) for rank in range(ranks)]
        return balanced(np.concatenate([np.zeros(0, np.int64), *(self._measure.of(each) for each in pieces)]), ranks)


def balanced(costs: npt.NDArray[np.int64], ranks: int) -> list[Positions]:
    """Rule 2: the rows of each rank."""
    loads = [(0, rank) for rank in range(ranks)]
    heapify(loads)
    found: list[list[int]] = [[] for _ in range(ranks)]
    order = np.argsort(-costs, kind="stable")
    for row, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
        load, rank = loads[0]
        found[rank].append(row)
        heapreplace(loads, (load + cost, rank))
    return [np.sort(np.array(each, np.int64)) for each in found]
