"""Expressions over batches: their types when a flow is built, their values when it runs.

Rules:

1. Users give ``pyarrow.compute.Expression`` or SQL text; ``expressions.as_expression`` is the one door through which
   they enter. Text becomes an expression when the schema is known (``sql``), so configs may hold either.
2. Types are found by evaluating over no rows, so the kernels themselves decide what is possible.
3. Values are computed by calling the kernels that the expression is made of (``kernel_calls``). What cannot be taken
   apart is computed by one Acero projection per batch, on the calling thread: about 45 µs a call, against 230 µs for a
   dataset scanner and 165 µs for ``RecordBatch.filter(expression)`` (2 cores); and Acero cuts batches at 32 Ki rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from textwrap import shorten

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from ..arrow.compact import as_records, plain
from ..core.errors import DataError, FlowError
from ..core.schemas import missing_column, no_rows, value_type
from .compact_calls import Kept
from .kernel_calls import Evaluation, Program, columns_of, columns_read, program_of
from .tree import serialized

_GUARD = "guard the expression against the values that it fails on"
_FEWER_DIGITS = (
    "a decimal has at most 38 digits: cast what is computed with to fewer, cast(a as decimal(18, 4)), or to double"
)
_REMEDIES = {
    "does not fit in precision": _FEWER_DIGITS,
    "rescaling decimal value": _FEWER_DIGITS,
    "divide by zero": "divide by nullif(divisor, 0), which gives null, or in a CASE of SQL text: if_else computes both "
    "of its branches",
}
_UNKNOWN = re.compile(r"No match for FieldRef\.(?P<reference>.*?) in ", re.DOTALL)
_STEP = re.compile(r"Name\((.*?)\)")


class Evaluator:
    """Computes named expressions over batches. One per running operator. ``texts``: what the user wrote for each.
    ``schema``: the declared one, where batches may have compact columns."""

    def __init__(
        self,
        columns: Sequence[tuple[str, pc.Expression]],
        texts: Sequence[object] = (),
        schema: pa.Schema | None = None,
    ) -> None:
        self._names = [name for name, _ in columns]
        self._expressions = [expression for _, expression in columns]
        #: for errors: the names, with the SQL text if it is one
        self._shown = [
            f"{name} = {shorten(text, 160, placeholder=' …')}" if isinstance(text, str) and text != name else name
            for name, text in zip(self._names, texts or self._expressions, strict=True)
        ]
        self._options = acero.ProjectNodeOptions(self._expressions, self._names)
        self._schema = schema
        #: the expressions as calls of kernels; None if one cannot be taken apart, or before the first batch
        self._program: Program | None = None
        self._reads: set[str] | None = None
        self._kept: Kept = {}

    def evaluate(self, records: pa.RecordBatch) -> list[pa.Array]:
        """One array per expression, as long as ``records``; in a compact form only if a declared schema was given. All
        batches have the columns of the first one."""
        if self._reads is None:
            schema = records.schema if self._schema is None else self._schema
            self._program = program_of(self._expressions, schema, _type_of)
            self._reads = columns_read(self._expressions, schema)
        program = self._program
        if program is None:
            return self._by_acero(records)
        frame = Evaluation(records, program, self._kept)
        results, found = program.results(frame), []
        for shown in self._shown:
            try:
                step = next(results)
                array = frame.values[step] if self._schema is not None else frame.plain(step)
                if isinstance(array, pa.Scalar):
                    array = pa.repeat(array, records.num_rows)
                elif pa.types.is_decimal256(program.types[step]):
                    array = frame.plain(step)
            except pa.ArrowException as error:
                raise _named(shown, error) from error
            _check_rows(shown, len(array), records.num_rows)
            found.append(array)
        return found

    def _by_acero(self, records: pa.RecordBatch) -> list[pa.Array]:
        if self._schema is not None and not records.schema.equals(self._schema):
            columns = [
                plain(column, field.type) if field.name in (self._reads or ()) else column
                for column, field in zip(records.columns, self._schema, strict=True)
            ]
            records = as_records(columns, self._schema)
        shown = ", ".join(self._shown)
        try:
            table = self._run(pa.Table.from_batches([records]))
        except pa.ArrowException as error:
            raise _named(shown, error) from error
        _check_rows(shown, table.num_rows, records.num_rows)
        return [single_array(column) for column in table.columns]

    def _run(self, table: pa.Table) -> pa.Table:
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
        plan = acero.Declaration.from_sequence([source, acero.Declaration("project", self._options)])
        return plan.to_table(use_threads=False)

    def types(self, kind: str, schema: pa.Schema) -> list[pa.DataType]:
        """The types of the expressions over ``schema``."""
        try:
            found = list(self._run(pa.Table.from_batches([no_rows(schema)])).schema.types)
            if any(map(_holds_extensions, found)):  # some kernels take them, and find only with a row that they cannot
                self._run(pa.table([pa.nulls(1, each.type) for each in schema], schema=schema))
            return found
        except pa.ArrowException as error:
            raise _flow_error(kind, schema, self._names, error) from error


def _holds_extensions(type: pa.DataType) -> bool:
    fields = [type.field(number).type for number in range(type.num_fields)] if pa.types.is_nested(type) else []
    return any(isinstance(each, pa.BaseExtensionType) or _holds_extensions(each) for each in fields)


def _named(shown: str, error: pa.ArrowException) -> DataError:
    """An error of the kernels, with the expression."""
    remedies = (remedy for words, remedy in _REMEDIES.items() if words in str(error).lower())
    return DataError(f"cannot compute {shown}: {error}", next(remedies, _GUARD))


def _check_rows(shown: str, found: int, wanted: int) -> None:
    """A kernel that gives another number of values would shift them against the other columns, or lose rows."""
    if found != wanted:
        message = f"cannot compute {shown}: a kernel of Arrow gave {found} values for {wanted} rows"
        raise DataError(message, "write it with other functions: null_handling='skip' gives none where all are null")


def _type_of(expression: pc.Expression, schema: pa.Schema) -> pa.DataType:
    return types_of("expression", schema, [("", expression)])[0]


def types_of(kind: str, schema: pa.Schema, columns: Sequence[tuple[str, pc.Expression]]) -> list[pa.DataType]:
    """The types of expressions over ``schema``; an error names the column whose expression is wrong."""
    return [_type_in(kind, schema, name, expression) for name, expression in columns]


def _type_in(kind: str, schema: pa.Schema, name: str, expression: pc.Expression) -> pa.DataType:
    """Found once for the columns that the expression names, whatever others there are."""
    needed = fields_named(columns_of(expression), schema)
    if needed is not None:
        with suppress(FlowError):
            return _type_over(serialized(expression), needed)
    return Evaluator([(name, expression)]).types(kind, schema)[0]


@lru_cache(maxsize=1024)
def _type_over(serialized: bytes, schema: pa.Schema) -> pa.DataType:
    expression = pc.Expression._deserialize(pa.py_buffer(serialized))
    return Evaluator([("", expression)]).types("", schema)[0]


def fields_named(names: Collection[str] | None, schema: pa.Schema) -> pa.Schema | None:
    """The part of a schema with these columns; None if they are not known, or one of them is not there once."""
    places = sorted(map(schema.get_field_index, names or ()))
    if not places or places[0] < 0:
        return None
    return pa.schema([schema.field(place) for place in places])


def _flow_error(kind: str, schema: pa.Schema, names: list[str], error: pa.ArrowException) -> FlowError:
    unknown = _UNKNOWN.search(str(error))
    if unknown:
        return missing_column(kind, ".".join(_STEP.findall(unknown["reference"])), schema)
    remedy = "check the types of the columns: " + ", ".join(f"{field.name}: {field.type}" for field in schema)
    if any(pa.types.is_float16(value_type(each.type)) for each in schema):
        remedy += "; Arrow computes with few halffloats: cast them to float32 (in SQL: to float)"
    return FlowError(f"{kind}: {', '.join(names)}: {error}", remedy)


def single_array(column: pa.ChunkedArray) -> pa.Array:
    """The values of a chunked column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
