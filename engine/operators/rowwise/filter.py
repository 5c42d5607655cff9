"""Filter: the rows for which a predicate is true. Null counts as false. Batches keep their tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ...core.elements import Batch
from ...core.errors import FlowError
from ...core.operator import OperatorContext, Output, Stateless
from ...core.schemas import check_inputs, check_movable
from ...core.traits import Columns, Traits
from ...expressions.evaluator import Evaluator, types_of
from ...expressions.expressions import as_expression, same_expression
from ...expressions.kernel_calls import columns_read


@dataclass(frozen=True, eq=False)
class Filter:
    """Keeps the rows for which ``predicate``, an expression or SQL text, is true (neither false nor null)."""

    predicate: pc.Expression | str
    kind: str = "filter"

    @property
    def traits(self) -> Traits:
        """It looks at the predicate's columns; all come out."""
        return Traits.row_wise(self._columns)

    def _columns(self, inputs: Sequence[pa.Schema]) -> list[Columns]:
        predicate = as_expression(self.kind, self.predicate, inputs[0])
        return [Columns.passed_on(inputs[0], columns_read([predicate], inputs[0]))]

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
        return RunningFilter(as_expression(self.kind, self.predicate, inputs[0]), self.predicate)

    def describe(self) -> str:
        """The predicate."""
        return str(self.predicate)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and same_expression(self.predicate, other.predicate)

    def __hash__(self) -> int:
        return hash(str(self.predicate))


class RunningFilter(Stateless):
    """Filters batch by batch."""

    def __init__(self, predicate: pc.Expression, text: object) -> None:
        self._evaluator = Evaluator([("predicate", predicate)], [text])

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Emit the rows that pass, under the batch's own tag."""
        (mask,) = self._evaluator.evaluate(batch.records)
        if pa.types.is_null(mask.type):
            return
        passing = mask.true_count
        if passing == batch.records.num_rows:
            out.emit(batch)
        elif passing:
            out.emit(Batch(batch.records.filter(mask), batch.tag))
