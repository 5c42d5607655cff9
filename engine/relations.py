"""The methods of a stream that group, order and cut it: each becomes the operators that give one answer in all.

Rules:

1. What must see all rows happens in one subtask: rows are gathered there, in the order of their tags, unless they are
   already. So the result does not depend on parallelism.
2. What can be done before does not wait for that: partial aggregates, the first rows of every lane, the distinct rows
   of every lane. It is done per lane, so that how lanes are spread over subtasks cannot be seen in the result.
3. ``name`` names the last operator, whose rows the stream has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self, TypeAlias

import pyarrow as pa

from .operators import (
    Aggregate,
    Distinct,
    HashAggregate,
    Limit,
    Sort,
    SortKey,
    TopN,
    Window,
    WindowFunction,
)
from .operators.limit import Per
from .operators.protocol import OperatorConfig
from .operators.sorting import as_sort_keys

Asked: TypeAlias = tuple[str, str] | str | Aggregate
"""An aggregate as a flow asks for it: (column, function), a function of the rows, or all of it."""


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

    def gather(self, *, name: str | None = None) -> Self:
        """All rows in one subtask, in the order of their tags: the same sequence at any parallelism."""
        raise NotImplementedError

    def _then(self, config: OperatorConfig, name: str | None) -> Self:
        raise NotImplementedError

    def _gathered(self) -> Self:
        return self if self.is_gathered else self.gather()

    def aggregate(
        self, by: Sequence[str] = (), *, ignore_null_keys: bool = False, name: str | None = None, **aggregates: Asked
    ) -> Self:
        """One row per distinct key, or one in all if there is no key. ``total=("delay", "sum")``, ``n="count"``,
        ``late=ps.Aggregate("", "delay", "count", where="is_late")``.

        Functions: count, sum, min, max, mean, variance, stddev, count_distinct, first, last, collect_list. Rows come
        when the input ends. Functions whose value depends on the order of rows are computed in one subtask; the
        others are computed per lane first, and then their groups come lane by lane.
        """
        single = HashAggregate(tuple(by), as_aggregates(aggregates), ignore_null_keys=ignore_null_keys)
        if self.is_gathered or any(each.resolved.ordered for each in single.aggregates):
            return self._gathered()._then(single, name)
        partial = replace(single, step="partial")
        return self._then(partial, None).gather()._then(partial.final(self.schema), name)

    def distinct(self, *by: str, name: str | None = None) -> Self:
        """The first row for each value of the columns ``by`` (none: of all columns), in the order of the stream."""
        first = self if self.is_gathered else self._then(Distinct(by, per_lane=True), None).gather()
        return first._then(Distinct(by), name)

    def sort(self, *keys: str | SortKey, name: str | None = None) -> Self:
        """All rows in the order of ``keys``: ``ps.SortKey`` or a name. Equal ones stay as they came."""
        return self._gathered()._then(Sort(as_sort_keys(keys)), name)

    def top_n(self, count: int, *keys: str | SortKey, name: str | None = None) -> Self:
        """The first ``count`` rows in the order of ``keys``."""
        top = TopN(as_sort_keys(keys), count)
        first = self if self.is_gathered else self._then(replace(top, per_lane=True), None).gather()
        return first._then(top, name)

    def limit(self, count: int, *, offset: int = 0, per: Per = "task", name: str | None = None) -> Self:
        """``count`` rows after the first ``offset``, in the order of the stream; of each window between barriers with
        ``per="window"``."""
        return self._gathered()._then(Limit(count, offset, per), name)

    def window(
        self,
        by: Sequence[str],
        order_by: Sequence[str | SortKey] = (),
        *,
        is_sorted: bool = False,
        name: str | None = None,
        **functions: tuple[str, str] | str | WindowFunction,
    ) -> Self:
        """A column for each function of the rows around: ``place="row_number"``, ``before=("delay", "lag")``,
        ``sofar=("delay", "sum")``, ``next=ps.WindowFunction("", "lead", "delay", offset=2)``.

        Functions: row_number, rank, dense_rank, lag, lead, and running count, sum, min, max. Rows come sorted by the
        keys ``by``, then ``order_by``. ``is_sorted``: they already are, in each lane.
        """
        keys = as_sort_keys(order_by)
        asked = tuple(_as_function(label, each) for label, each in functions.items())
        config = Window(tuple(by), keys, asked)
        sorting = (*as_sort_keys(by), *keys)
        ordered = self if is_sorted else self.sort(*sorting) if sorting else self._gathered()
        return ordered._then(config, name)


def _as_function(label: str, asked: tuple[str, str] | str | WindowFunction) -> WindowFunction:
    if isinstance(asked, WindowFunction):
        return replace(asked, name=label)
    return WindowFunction(label, asked) if isinstance(asked, str) else WindowFunction(label, asked[1], asked[0])
