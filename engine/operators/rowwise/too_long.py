"""Too long: what becomes of rows that fit into no batch of a feed.

A row costs as many as its first list has elements, or what an expression says. "drop" leaves dear rows out. "truncate"
and "split" cut lists: all of ``lists`` alike, which must be equally long in each row, and values of the other columns
stay as they are, in each part of a row that is split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrow.list_layouts import lists_of
from ...core.elements import Batch
from ...core.errors import DataError, FlowError
from ...core.operator import Emitter, OperatorContext, Output, Stateless
from ...core.schemas import check_columns, check_distinct, check_inputs
from ...core.traits import Traits
from ...expressions.expressions import same_expression
from ...feed.measures import Given, Measure, check_measure
from ...kernels.pieces import Bound, Positions, cut, selected, taken

How: TypeAlias = Literal["drop", "truncate", "split"]


@dataclass(frozen=True, eq=False)
class TooLong:
    """Rows that cost more than ``most`` are left out, or their ``lists`` cut. ``cost``: of a row."""

    most: int
    how: How
    cost: Given
    lists: tuple[str, ...] = ()
    kind: str = "too_long"

    @property
    def traits(self) -> Traits:
        """It works row by row."""
        return Traits.row_wise()

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's."""
        check_inputs(self.kind, inputs, 1)
        (schema,) = inputs
        check_measure(self.kind, "cost", self.cost, schema)
        if self.how not in ("drop", "truncate", "split"):
            raise FlowError(f"too_long is {self.how!r}", "choose 'raise', 'truncate', 'drop' or 'split'")
        if self.how == "drop":
            return schema
        if not isinstance(self.cost, str) or self.lists[:1] != (self.cost,):
            raise FlowError(f"too_long={self.how!r} of rows whose cost is no list", "give length=, or too_long='drop'")
        check_distinct(self.kind, "column", self.lists)
        check_columns(self.kind, schema, self.lists)
        for name in self.lists:
            type = schema.field(name).type
            if not (pa.types.is_list(type) or pa.types.is_large_list(type)):
                raise FlowError(f"too_long={self.how!r}: column {name!r} is {type}", "only lists can be cut")
        return schema

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningTooLong:
        """A running operator."""
        return RunningTooLong(self, inputs[0], Bound(context.output_rows, context.output_bytes))

    def describe(self) -> str:
        """What is too long, and what becomes of it."""
        lists = f", {', '.join(self.lists)} alike" if self.lists[1:] else ""
        return f"{self.how} rows of more than {self.most:,} by {self.cost}{lists}"

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is type(self)
            and (self.most, self.how, self.lists) == (other.most, other.how, other.lists)
            and same_expression(self.cost, other.cost)
        )

    def __hash__(self) -> int:
        return hash((self.most, self.how, self.lists))


class RunningTooLong(Stateless):
    """Works batch by batch."""

    def __init__(self, config: TooLong, schema: pa.Schema, bound: Bound) -> None:
        self._config, self._schema, self._bound = config, schema, bound
        self._cost = Measure(config.kind, "cost", config.cost, schema)
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> Iterator[None]:
        """Emit the rows, those that were too long as they have become."""
        yield from self._emitter.emit_each(self._made(batch.records), batch.tag.round, batch.tag.lane, out)

    def _made(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        costs, most = self._cost.of(records), self._config.most
        if not (costs > most).any():
            yield records
        elif self._config.how == "drop":
            yield selected(records, np.flatnonzero(costs <= most))
        elif self._config.how == "truncate":
            lists = {name: self._alike(records, name, costs) for name in self._config.lists}
            columns = [pc.list_slice(lists[name], 0, most).cast(column.type) if name in lists else column
                       for name, column in zip(records.schema.names, records.columns, strict=True)]  # fmt: skip
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
        else:
            yield from self._split(records, costs)

    def _split(self, records: pa.RecordBatch, costs: Positions) -> Iterator[pa.RecordBatch]:
        """Lists are one behind the other: cutting them changes where they begin, and no element."""
        most = self._config.most
        parts = np.maximum(-(-costs // most), 1)
        rows = np.repeat(np.arange(len(costs)), parts)
        before = np.arange(len(rows)) - np.repeat(np.cumsum(parts) - parts, parts)
        lengths = np.minimum(costs[rows] - before * most, most)
        lists = {name: self._cut(self._alike(records, name, costs), rows, lengths) for name in self._config.lists}
        others = [name for name in records.schema.names if name not in lists]
        at = 0
        for piece in taken(records.select(others), rows, self._bound) if others else (None,):
            count = len(rows) if piece is None else piece.num_rows
            columns = [lists[name].slice(at, count) if piece is None or name in lists else piece.column(name)
                       for name in records.schema.names]  # fmt: skip
            at += count
            yield from cut(
                pa.RecordBatch.from_arrays(columns, schema=self._schema), self._bound.rows, self._bound.bytes
            )

    def _alike(self, records: pa.RecordBatch, name: str, costs: Positions) -> pa.Array:
        column = records.column(name)
        lengths = pc.list_value_length(column).fill_null(0).to_numpy()
        if (lengths != costs).any():
            row = int(np.argmax(lengths != costs))
            raise DataError(
                f"too_long: a row has {costs[row]:,} elements in {self._config.lists[0]!r} and {lengths[row]:,} in "
                f"{name!r}, which are to be cut alike",
                "make them equally long, or leave one out",
            )
        return column

    def _cut(self, column: pa.Array, rows: Positions, lengths: Positions) -> pa.Array:
        mask = column.is_null().take(pa.array(rows)) if column.null_count else None
        return lists_of(lengths, column.flatten(), column.type, mask)
