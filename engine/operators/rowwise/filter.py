"""Filter: the rows for which a predicate is true. Null counts as false. Batches keep their tags.

Columns of the predicate that nobody else needs are not copied: the planner uses a :class:`NarrowedFilter` then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...arrow.masks import set_bits
from ...core.elements import Batch, PickedBatch
from ...core.errors import FlowError
from ...core.operator import OperatorContext, Output, Stateless
from ...core.schemas import check_inputs, check_movable
from ...core.traits import Columns, Lineage, Traits
from ...expressions.bounds import has_answers
from ...expressions.evaluator import Evaluator, types_of
from ...expressions.expressions import as_expression, same_expression
from ...expressions.kernel_calls import columns_read
from ...kernels.pieces import selected


@dataclass(frozen=True, eq=False)
class Filter:
    """Keeps the rows for which ``predicate``, an expression or SQL text, is true (neither false nor null)."""

    predicate: pc.Expression | str
    kind: str = "filter"

    @property
    def traits(self) -> Traits:
        """It looks at the predicate's columns; all come out, or fewer."""
        return replace(Traits.row_wise(self._columns, self._narrowed), **self._further)

    @property
    def _further(self) -> dict[str, Any]:
        return {
            "takes_compact": True,
            "picks": True,
            "may_miss_rows": lambda inputs: [self._has_answers(inputs)],
            "asks": lambda inputs: [self._condition(inputs) if self._has_answers(inputs) else None],
            "condition": self._condition,
        }

    def _condition(self, inputs: Sequence[pa.Schema]) -> pc.Expression:
        return as_expression(self.kind, self.predicate, inputs[0])

    def _has_answers(self, inputs: Sequence[pa.Schema]) -> bool:
        return has_answers(self._condition(inputs), inputs[0])

    def _columns(self, inputs: Sequence[pa.Schema]) -> list[Columns]:
        predicate = as_expression(self.kind, self.predicate, inputs[0])
        return [Columns.passed_on(inputs[0], columns_read([predicate], inputs[0]))]

    def _narrowed(self, names: Collection[str]) -> Filter:
        return NarrowedFilter(self.predicate, self.kind, frozenset(names))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The schema of the input."""
        check_inputs(self.kind, inputs, 1)
        check_movable(self.kind, inputs[0])
        predicate = as_expression(self.kind, self.predicate, inputs[0])
        (found,) = types_of(self.kind, inputs[0], [("predicate", predicate)])
        if not (pa.types.is_boolean(found) or pa.types.is_null(found)):
            raise FlowError(f"filter: {self.predicate} is {found}, not a condition", "compare it with something")
        return inputs[0]

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningFilter:
        """A running filter."""
        return RunningFilter(as_expression(self.kind, self.predicate, inputs[0]), self.predicate, inputs[0])

    def describe(self) -> str:
        """The predicate."""
        return str(self.predicate)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and same_expression(self.predicate, other.predicate)

    def __hash__(self) -> int:
        return hash(str(self.predicate))


@dataclass(frozen=True, eq=False)
class NarrowedFilter(Filter):
    """A filter that gives the columns ``keeps`` of its input only. Its constants are those of the whole one."""

    keeps: frozenset[str] = frozenset()

    @property
    def traits(self) -> Traits:
        """Those of the whole one; a further column is kept, too."""
        lineage = Lineage(0, lambda column, _: replace(self, keeps=self.keeps | {column}))
        return replace(Traits.row_wise(self._columns, self._narrowed, lineage), **self._further)

    def _columns(self, inputs: Sequence[pa.Schema]) -> list[Columns]:
        (whole,) = super()._columns(inputs)
        return [Columns(whole.reads, {name: name for name in self._names(inputs[0])})]

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The fields that are kept."""
        whole = super().output_schema(inputs)
        return pa.schema([whole.field(name) for name in self._names(whole)], whole.metadata)

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningFilter:
        """A running filter."""
        predicate = as_expression(self.kind, self.predicate, inputs[0])
        return RunningFilter(predicate, self.predicate, inputs[0], self._names(inputs[0]))

    def _names(self, schema: pa.Schema) -> list[str]:
        return [name for name in schema.names if name in self.keeps]

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and self.keeps == getattr(other, "keeps", None)

    __hash__ = Filter.__hash__


class RunningFilter(Stateless):
    """Filters batch by batch. ``keeps``: the columns that come out; None: all."""

    def __init__(
        self, predicate: pc.Expression, text: object, schema: pa.Schema, keeps: Sequence[str] | None = None
    ) -> None:
        self._evaluator = Evaluator([("predicate", predicate)], [text], schema)
        self._predicate = predicate
        self._keeps = None if keeps is None else list(keeps)

    def condition(self, schema: pa.Schema) -> FilterCondition:
        """What it lets through, for the reader of the source that it stands behind, which has this schema."""
        read = columns_read([self._predicate], schema)
        columns = [name for name in schema.names if name in read]
        return FilterCondition(self._predicate, schema, columns, self._keeps)

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Emit the rows that pass, under the batch's own tag."""
        if isinstance(batch, PickedBatch) and len(batch.counts) > 1:
            if (passed := batch.counted()).matters:
                out.emit(passed)
            return
        (mask,) = self._evaluator.evaluate(batch.records)
        if pa.types.is_null(mask.type):
            return
        passing = mask.true_count
        if not passing:
            return
        whole = passing == batch.records.num_rows
        if whole and self._keeps is None:
            out.emit(batch)
            return
        kept = batch.records if self._keeps is None else batch.records.select(self._keeps)
        out.emit(Batch(kept if whole else selected(kept, set_bits(mask)), batch.tag))


class FilterCondition:
    """A filter's condition (``core.source.Condition``): evaluated where rows are read, on another thread."""

    def __init__(
        self, predicate: pc.Expression, schema: pa.Schema, columns: Sequence[str], keeps: Sequence[str] | None
    ) -> None:
        self.expression = predicate
        self.columns = columns
        self.keeps = keeps
        self._evaluator = Evaluator(
            [("predicate", predicate)], schema=pa.schema([schema.field(each) for each in columns])
        )

    def mask(self, records: pa.RecordBatch) -> pa.Array | None:
        """For each row whether it passes; None: none does."""
        (found,) = self._evaluator.evaluate(records)
        return None if pa.types.is_null(found.type) else found
