"""Project: the columns that go on, some as they are, some computed. Batches keep their tags.

Columns that are only kept or renamed are passed by reference; the others of a batch are computed together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from ...arrow.compact import as_records
from ...arrow.plain_types import plain_array, plain_field
from ...core.elements import Batch
from ...core.errors import FlowError
from ...core.operator import OperatorContext, Output, Stateless
from ...core.schemas import check_columns, check_distinct, check_inputs
from ...core.traits import Columns, Lineage, Multiplicity, Traits
from ...expressions.bounds import has_answers
from ...expressions.evaluator import Evaluator, types_of
from ...expressions.expressions import as_expression, plain_column, same_expression
from ...expressions.kernel_calls import columns_read


@dataclass(frozen=True, eq=False)
class Project:
    """Keeps exactly ``columns``: pairs of a name and an expression or SQL text, in this order."""

    columns: tuple[tuple[str, pc.Expression | str], ...]
    kind: str = "project"

    @classmethod
    def keeping(cls, names: Iterable[str], derived: Mapping[str, pc.Expression | str] | None = None) -> Self:
        """Keep the columns ``names`` and add derived ones."""
        return cls((*((name, pc.field(name)) for name in names), *(derived or {}).items()))

    @classmethod
    def with_columns(cls, schema: pa.Schema, derived: Mapping[str, pc.Expression | str]) -> Self:
        """Keep every column of ``schema``; a derived column replaces the one of its name, or comes last."""
        kept = tuple((name, derived.get(name, pc.field(name))) for name in schema.names)
        return cls((*kept, *((name, value) for name, value in derived.items() if name not in schema.names)))

    @property
    def traits(self) -> Traits:
        """Each column is computed by itself."""
        lineage = Lineage(0, lambda column, _: replace(self, columns=(*self.columns, (column, pc.field(column)))))
        traits = Traits.row_wise(self._columns, self._narrowed, lineage)
        return replace(
            traits,
            rows=Multiplicity.ONE_EACH,
            takes_compact=True,
            may_miss_rows=lambda inputs: [self._has_answers(inputs)],
            early=self._early,
        )

    def _has_answers(self, inputs: Sequence[pa.Schema]) -> bool:
        return all(has_answers(expression, inputs[0]) for _, expression in self.compiled(inputs[0]))

    def _early(self, inputs: Sequence[pa.Schema], names: Collection[str]) -> list[dict[str, pc.Expression]]:
        if not self._has_answers(inputs):
            return [{}]
        return [{name: expression for name, expression in self.compiled(inputs[0]) if name in names}]

    def _columns(self, inputs: Sequence[pa.Schema]) -> list[Columns]:
        keeps: dict[str, str] = {}
        uses: dict[str, set[str]] = {}
        for name, expression in self.compiled(inputs[0]):
            position = plain_column(expression, inputs[0])
            if position is not None:
                keeps.setdefault(inputs[0].names[position], name)
            uses[name] = columns_read([expression], inputs[0])
        return [Columns((), keeps, uses)]

    def _narrowed(self, names: Collection[str]) -> Project:
        return replace(self, columns=tuple(each for each in self.columns if each[0] in names))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The fields of the expressions."""
        check_inputs(self.kind, inputs, 1)
        if not self.columns:
            raise FlowError("project: no column is left", "keep at least one column")
        check_distinct(self.kind, "column", [name for name, _ in self.columns])
        return pa.schema([self._field(name, expression, inputs[0]) for name, expression in self.compiled(inputs[0])])

    def compiled(self, schema: pa.Schema) -> list[tuple[str, pc.Expression]]:
        """The columns with expressions over ``schema`` in place of SQL text."""
        return [(name, as_expression(f"{self.kind} {name!r}", given, schema)) for name, given in self.columns]

    def _field(self, name: str, expression: pc.Expression, schema: pa.Schema) -> pa.Field:
        position = plain_column(expression, schema)
        if position is not None:
            check_columns(self.kind, schema, [schema.names[position]])
            return schema.field(position).with_name(name)
        return plain_field(pa.field(name, types_of(self.kind, schema, [(name, expression)])[0]))

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningProject:
        """A running projection."""
        texts = [given for _, given in self.columns]
        return RunningProject(self.compiled(inputs[0]), texts, inputs[0], self.output_schema(inputs))

    def describe(self) -> str:
        """Names and expressions."""
        return ", ".join(
            name if same_expression(expression, pc.field(name)) else f"{name} = {expression}"
            for name, expression in self.columns
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Project)
            and [name for name, _ in self.columns] == [name for name, _ in other.columns]
            and all(
                same_expression(mine, theirs)
                for (_, mine), (_, theirs) in zip(self.columns, other.columns, strict=True)
            )
        )

    def __hash__(self) -> int:
        return hash(self.describe())


class RunningProject(Stateless):
    """Projects batch by batch."""

    def __init__(
        self,
        columns: Sequence[tuple[str, pc.Expression]],
        texts: Sequence[object],
        source: pa.Schema,
        target: pa.Schema,
    ) -> None:
        self._schema = target
        #: for each output column its position in the input, or None if it is computed
        self._plain = [plain_column(expression, source) for _, expression in columns]
        computed = [number for number, position in enumerate(self._plain) if position is None]
        given = [columns[n] for n in computed], [texts[n] for n in computed]
        self._evaluator = Evaluator(*given, source) if computed else None

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Emit the projected batch under the batch's own tag."""
        records = batch.records
        computed = iter(map(plain_array, self._evaluator.evaluate(records)) if self._evaluator else ())
        arrays = [next(computed) if position is None else records.column(position) for position in self._plain]
        out.emit(Batch(as_records(arrays, self._schema), batch.tag))
