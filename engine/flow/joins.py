"""The methods of a stream that join it with another one, or with an index.

Rules:

1. A hash join needs rows with equal keys in one subtask. They are already if both streams are gathered, or divided into
   parts alike by (some of) the keys; or if the right one is broadcast. Otherwise both are gathered, or, with
   ``exchange="key"``, partitioned by the keys.
2. What a join emits under one lane of its subtask is put back under the lanes of its parts (``Regroup``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import pyarrow.compute as pc

from ..core.arguments import checked
from ..core.operator import OperatorConfig
from ..operators import HashJoin, LookupJoin, MergeJoin
from ..operators.join.join_shape import RIGHT_STAYS
from ..operators.join.lookup_join import PREFETCH
from ..operators.join.replicated_join import MarkPart, ReplicatedJoin
from ..operators.sequence.regroup import Regroup
from ..plan.partitioning import HashPartitioning
from ..planner.placement import Placement
from .index import Between, Index, InList
from .relations import FLUSH, GATHER, AtBarrier, Relation, Through, check_exchange


class Joins(Relation):
    """The methods; what they are built on is the stream's."""

    def _with(self, other: Self, config: OperatorConfig, name: str | None, at_barrier: AtBarrier = FLUSH) -> Self:
        raise NotImplementedError

    @checked()
    def merge_join(
        self,
        other: Self,
        on: Sequence[str],
        *,
        how: str = "inner",
        right_on: Sequence[str] | None = None,
        filter: pc.Expression | str | None = None,
        suffix: str = "_right",
        name: str | None = None,
    ) -> Self:
        """Join with ``other`` by merging. Both sides consist of the same number of splits, hold equal keys in splits
        of equal position, and are sorted by the keys within each split.

        ``how``: inner, left, right, full, left semi, right semi, anti. ``right_on``: the keys of ``other``, if they
        have other names. ``filter``: what rows with equal keys must fulfil besides, over the joined row.
        """
        keys = None if right_on is None else tuple(right_on)
        return self._with(other, MergeJoin(tuple(on), how=how, suffix=suffix, right_on=keys, filter=filter), name)

    @checked()
    def hash_join(
        self,
        other: Self,
        on: Sequence[str],
        *,
        how: str = "inner",
        right_on: Sequence[str] | None = None,
        filter: pc.Expression | str | None = None,
        suffix: str = "_right",
        exchange: Through = GATHER,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Self:
        """Join with ``other``, both in any order; ``other`` is held in memory, as far as there is some.

        It runs in every subtask if both streams are partitioned alike by keys of the join, or ``other`` is broadcast;
        ``exchange="key"`` partitions them so. Otherwise both are gathered. Options as for ``merge_join``.
        """
        check_exchange("hash join", exchange)
        keys = None if right_on is None else tuple(right_on)
        join = HashJoin(tuple(on), how=how, suffix=suffix, right_on=keys, filter=filter)
        if other.placement.place == "every":
            marked = self._then(MarkPart())
            return marked._with(other, ReplicatedJoin(join), name, at_barrier)._then(Regroup())
        left, right = (self, other) if exchange == GATHER else (self._keyed(join.keys[0]), other._keyed(join.keys[1]))
        if _is_local(join, left.placement, right.placement):
            return left._with(right, join, name, at_barrier)._regrouped()
        return self._gathered()._with(other._gathered(), join, name, at_barrier)

    def _keyed(self, keys: tuple[str, ...]) -> Self:
        """Partitioned by just these keys."""
        known = self.placement.partitioning
        return self if isinstance(known, HashPartitioning) and known.keys == keys else self.partition_by(*keys)

    @checked()
    def lookup_join(
        self,
        index: Index,
        on: Sequence[str],
        *,
        how: str = "inner",
        suffix: str = "_right",
        with_key: bool = False,
        conditions: Sequence[Between | InList] = (),
        filter: pc.Expression | str | None = None,
        marker: str | None = None,
        prefetch: int = PREFETCH,
        split_output: bool = True,
        name: str | None = None,
    ) -> Self:
        """Join with an index (``ps.index.memory(table, key=…)``), in the order of this stream; ``how``: inner or left.

        Options as for :class:`LookupJoin`; ``conditions``: ``ps.index.Between``, ``InList``.
        """
        config = LookupJoin(
            index,
            tuple(on),
            how=how,
            suffix=suffix,
            with_key=with_key,
            conditions=tuple(conditions),
            filter=filter,
            marker=marker,
            prefetch=prefetch,
            split_output=split_output,
        )
        return self._then(config, name)


def _is_local(join: HashJoin, left: Placement, right: Placement) -> bool:
    """Whether rows that may match are in the same part, and the rows that come out can be told theirs."""
    if not left.matches(right, *join.keys):
        return False
    return join.how not in RIGHT_STAYS or join.right_on is None
