"""The methods of a stream that group, order and cut it: each becomes the operators that give one answer in all.

Rules:

1. What must see all rows happens in one subtask: rows are gathered there, in the order of their tags, unless they are
   already. What must see all rows of a key happens in every subtask, if the stream is partitioned by (some of) these
   columns, or with ``exchange="key"``. So the result does not depend on parallelism.
2. What can be done before an exchange does not wait for it: partial aggregates, the first rows of every lane, the
   distinct rows of every lane. It is done per lane, so that how lanes are spread over subtasks cannot be seen in the
   result.
3. ``name`` names the operator that gives the rows. What it emits under one lane of its subtask is put back under the
   lanes of its parts (``Regroup``).
4. ``at_barrier``: at a task barrier an operator emits what it holds and forgets it ("flush"), or goes on with it
   ("hold"). It holds for all operators that a method becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal, Self, TypeAlias

import pyarrow as pa

from ..core.arguments import checked
from ..core.errors import FlowError
from ..core.operator import OperatorConfig
from ..kernels.sorting import as_sort_keys
from ..operators import (
    Aggregate,
    Distinct,
    HashAggregate,
    Limit,
    MarkDistinct,
    Sort,
    SortKey,
    StreamAggregate,
    TopN,
    Window,
    WindowFunction,
)
from ..operators.sequence.limit import Per
from ..operators.sequence.regroup import Regroup
from ..planner.placement import Placement

Asked: TypeAlias = tuple[str, str] | str | Aggregate
"""An aggregate as a flow asks for it: (column, function), a function of the rows, or all of it."""

AtBarrier: TypeAlias = Literal["flush", "hold"]
FLUSH: Final = "flush"

Through: TypeAlias = Literal["gather", "key"]
"""The exchange that brings rows of one key together, where they are not yet."""
GATHER: Final = "gather"


def check_exchange(kind: str, through: str, keys: Sequence[str] = ("a key",)) -> None:
    """``through`` is an exchange, and possible."""
    if through not in ("gather", "key"):
        raise FlowError(f"{kind}: exchange is {through!r}", "choose 'gather' or 'key'")
    if through == "key" and not keys:
        raise FlowError(f"{kind}: there is no key to partition by", "leave out exchange='key', or name a key")


def as_aggregates(asked: dict[str, Asked]) -> tuple[Aggregate, ...]:
    """What the keyword arguments of an aggregation ask for; the keyword is the output column."""
    return tuple(_as_aggregate(label, each) for label, each in asked.items())


def _as_aggregate(label: str, asked: Asked) -> Aggregate:
    if isinstance(asked, Aggregate):
        return replace(asked, name=label)
    return Aggregate(label, None, asked) if isinstance(asked, str) else Aggregate(label, asked[0], asked[1])


class Relation:
    """The methods; what they are built on is the stream's."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        raise NotImplementedError

    @property
    def is_gathered(self) -> bool:
        """Whether all rows pass through one subtask."""
        raise NotImplementedError

    @property
    def placement(self) -> Placement:
        """Where the rows are."""
        raise NotImplementedError

    def gather(self, *, name: str | None = None) -> Self:
        """All rows in one subtask, in the order of their tags: the same sequence at any parallelism."""
        raise NotImplementedError

    def partition_by(self, *keys: str | Sequence[str], name: str | None = None) -> Self:
        """Rows with equal ``keys`` in one part."""
        raise NotImplementedError

    def _then(self, config: OperatorConfig, name: str | None = None, at_barrier: AtBarrier = FLUSH) -> Self:
        raise NotImplementedError

    def _gathered(self) -> Self:
        return self if self.is_gathered else self.gather()

    def _grouped(self, by: Sequence[str], exchange: Through) -> Self:
        """With all rows of a group in one subtask."""
        if self.placement.holds_groups(by):
            return self
        return self.gather() if exchange == GATHER else self.partition_by(*by)

    def _regrouped(self) -> Self:
        """With rows under the lanes of their parts, which an operator has emitted under one lane of its subtask."""
        known = self.placement.partitioning
        return self if known is None else self._then(Regroup(known))

    @checked()
    def aggregate(
        self,
        by: Sequence[str] = (),
        *,
        ignore_null_keys: bool = False,
        exchange: Through = GATHER,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
        **aggregates: Asked,
    ) -> Self:
        """One row per distinct key, or one in all if there is no key. ``total=("delay", "sum")``, ``n="count"``,
        ``late=ps.Aggregate("", "delay", "count", where="is_late")``.

        Functions: count, sum, min, max, mean, variance, stddev, count_distinct, first, last, collect_list. Rows come
        when the input ends. Functions whose value depends on the order of rows see all rows of a key in order; the
        others are computed per lane first, and then their groups come lane by lane. That happens in one subtask, or in
        every one if the stream is partitioned by keys of the aggregation; ``exchange="key"`` partitions it so.
        """
        by = tuple(by)
        check_exchange("hash aggregate", exchange, by)
        single = HashAggregate(by, as_aggregates(aggregates), ignore_null_keys=ignore_null_keys)
        if self.placement.holds_groups(by) or any(each.resolved.ordered for each in single.aggregates):
            return self._grouped(by, exchange)._then(single, name, at_barrier)._regrouped()
        partial = self._then(replace(single, step="partial"), None, at_barrier)
        brought = partial._grouped(by, exchange)
        return brought._then(replace(single, step="partial").final(self.schema), name, at_barrier)._regrouped()

    @checked()
    def stream_aggregate(
        self, by: Sequence[str], *, at_barrier: AtBarrier = FLUSH, name: str | None = None, **aggregates: Asked
    ) -> Self:
        """Aggregate rows whose equal keys stand next to each other. ``total=("delay", "sum")``, ``n="count"``.

        Functions as for ``aggregate``. A group may span batches and splits of one lane.
        """
        return self._then(StreamAggregate(tuple(by), as_aggregates(aggregates)), name, at_barrier)

    @checked()
    def distinct(
        self, *by: str, exchange: Through = GATHER, at_barrier: AtBarrier = FLUSH, name: str | None = None
    ) -> Self:
        """The first row for each value of the columns ``by`` (none: of all columns), in the order of the stream."""
        keys = by or tuple(self.schema.names)
        check_exchange("distinct", exchange, keys)
        if self.placement.holds_groups(keys):
            return self._then(Distinct(by), name, at_barrier)
        first = self._then(Distinct(by, per_lane=True), None, at_barrier)._grouped(keys, exchange)
        return first._then(Distinct(by), name, at_barrier)

    @checked()
    def mark_distinct(
        self,
        *by: str,
        marker: str,
        masks: dict[str, str] | None = None,
        exchange: Through = GATHER,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Self:
        """A boolean column ``marker``: whether the row is the first one with its values of ``by``. ``masks``: boolean
        columns, each with the name of a column that marks the first row of a key in which the mask is true."""
        check_exchange("mark distinct", exchange)
        config = MarkDistinct(by, marker, tuple((masks or {}).items()))
        return self._grouped(by, exchange)._then(config, name, at_barrier)

    @checked()
    def sort(self, *keys: str | SortKey, at_barrier: AtBarrier = FLUSH, name: str | None = None) -> Self:
        """All rows in the order of ``keys``: ``ps.SortKey`` or a name. Equal ones stay as they came."""
        return self._gathered()._then(Sort(as_sort_keys(keys)), name, at_barrier)

    @checked()
    def top_n(self, count: int, *keys: str | SortKey, at_barrier: AtBarrier = FLUSH, name: str | None = None) -> Self:
        """The first ``count`` rows in the order of ``keys``."""
        top = TopN(as_sort_keys(keys), count)
        first = self if self.is_gathered else self._then(replace(top, per_lane=True), None, at_barrier).gather()
        return first._then(top, name, at_barrier)

    @checked()
    def limit(
        self,
        count: int,
        *,
        offset: int = 0,
        per: Per = "task",
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Self:
        """``count`` rows after the first ``offset``, in the order of the stream; of each window between barriers with
        ``per="window"``."""
        return self._gathered()._then(Limit(count, offset, per), name, at_barrier)

    @checked()
    def window(
        self,
        by: Sequence[str],
        order_by: Sequence[str | SortKey] = (),
        *,
        is_sorted: bool = False,
        exchange: Through = GATHER,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
        **functions: tuple[str, str] | str | WindowFunction,
    ) -> Self:
        """A column for each function of the rows around: ``place="row_number"``, ``before=("delay", "lag")``,
        ``sofar=("delay", "sum")``, ``next=ps.WindowFunction("", "lead", "delay", offset=2)``.

        Functions: row_number, rank, dense_rank, lag, lead, and running count, sum, min, max. Rows come sorted by the
        keys ``by``, then ``order_by``; part by part if the stream is partitioned by some of ``by``, as it is with
        ``exchange="key"``. ``is_sorted``: they already are, in each lane.
        """
        check_exchange("window", exchange, by)
        # within a partition its own key orders nothing
        keys = tuple(key for key in as_sort_keys(order_by) if key.column not in by)
        asked = tuple(_as_function(label, each) for label, each in functions.items())
        config = Window(tuple(by), keys, asked)
        sorting = (*as_sort_keys(by), *keys)
        ordered = self if is_sorted else self._grouped(by, exchange)
        if sorting and not is_sorted:
            ordered = ordered._then(Sort(sorting), None, at_barrier)._regrouped()
        return ordered._then(config, name, at_barrier)


def _as_function(label: str, asked: tuple[str, str] | str | WindowFunction) -> WindowFunction:
    if isinstance(asked, WindowFunction):
        return replace(asked, name=label)
    return WindowFunction(label, asked) if isinstance(asked, str) else WindowFunction(label, asked[1], asked[0])
