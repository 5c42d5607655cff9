"""Map batches: a user's function, or a user's class built once per running operator, applied to each batch.

Rules:

1. The function gets a ``pyarrow.RecordBatch`` and gives a record batch, a table, or a mapping of column names to
   arrays, of any number of rows. Columns are matched by name; a column may be cast only if no value changes. Views
   and runs become plain (``plain_types``).
2. What it raises, whatever that is, becomes a :class:`UserCodeError` that tells the rows it was given and the traceback
   from the user's first frame on (``user_code``). The driver adds the operator, the task the split.
3. It is called from one thread, with the batches in order. Batches between the source and a function are cut at row
   positions, not by timing; still, a function whose result depends on how rows are cut into batches gives other
   results when a filter or join before it changes the cuts.
4. A class is built with the operator and, if it has a method ``close``, closed with it, whatever has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import pyarrow as pa

from ...arrow.dictionaries import PlainNulls
from ...arrow.plain_types import plain_array, plain_schema
from ...core.elements import Batch, Tag
from ...core.errors import DataError
from ...core.operator import Emitter, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_distinct, check_inputs
from ...core.traits import Emission, Lineage, State, Traits
from ...core.user_code import is_to_be_told, raised
from ...expressions.evaluator import single_array
from ...kernels.pieces import Bound, cut


@dataclass(frozen=True)
class MapBatches:
    """Applies ``function`` (a callable, or a class whose instances are callable); ``schema`` is that of the result."""

    function: Callable[..., Any]
    schema: pa.Schema
    kind: str = "map batches"
    traits: ClassVar[Traits] = Traits(
        emission=Emission.PER_BATCH,
        state=State.NONE,
        lineage=Lineage(of_batch=True),
        beyond_budget="what the function makes of a batch",
        may_be_copied=True,
        ends_epochs=True,
    )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The schema that the user promised."""
        check_inputs(self.kind, inputs, 1)
        check_distinct(self.kind, "column", self.schema.names)
        return plain_schema(self.schema)

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningMapBatches:
        """A running operator; a class is built here, so that it stays warm over all batches."""
        function, schema = self.function, plain_schema(self.schema)
        bound = Bound(context.output_rows, context.output_bytes)
        if isinstance(function, type):
            try:
                function = function()
            except BaseException as error:
                _blame_user(f"{self.describe()} could not be built: it", error)
            close = getattr(function, "close", None)
            return RunningMapBatches(function, self.describe(), schema, bound, close if callable(close) else None)
        return RunningMapBatches(function, self.describe(), schema, bound, None)

    def describe(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__qualname__", None) or type(self.function).__qualname__)


class _NumberedBatches(Emitter):
    """Gives a batch its own tag again while the numbers agree: a new one costs a tenth of a cheap function."""

    def next(self, tag: Tag) -> Tag:
        """The next tag for the round and lane of ``tag``."""
        if tag.round != self._round or tag.sequence != self._next.get(tag.lane, 0):
            return self.tag(tag.round, tag.lane)
        self._next[tag.lane] = tag.sequence + 1
        return tag


class RunningMapBatches(Stateless):
    """Calls the function for each batch."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        schema: pa.Schema,
        bound: Bound,
        close: Callable[[], object] | None,
    ) -> None:
        self._function = function
        self._close = close
        self._name = name
        self._schema = schema
        self._bound = bound
        self._plain = PlainNulls(schema)
        #: then a record batch of this schema is right without a look at its columns
        self._all_nullable = all(field.nullable for field in schema)
        self._emitter = _NumberedBatches()

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Call the function and emit what it gives, in pieces of the batch's round and lane."""
        try:
            result = self._function(batch.records)
        except BaseException as error:
            _blame_user(self._name, error, _rows(batch))
        if self._all_nullable and isinstance(result, pa.RecordBatch) and result.schema.equals(self._schema):
            records = result
        else:
            records = self._fitting(result, batch)
        records = self._plain.of(records)
        whole = Batch(records, batch.tag)
        if records.num_rows <= self._bound.rows and whole.size <= self._bound.bytes:
            if records.num_rows:
                tag = self._emitter.next(batch.tag)
                out.emit(whole if tag is batch.tag else Batch(records, tag))
            return None
        return self._in_pieces(records, batch.tag, out)

    def _in_pieces(self, records: pa.RecordBatch, tag: Tag, out: Output) -> Iterator[None]:
        for piece in cut(records, self._bound.rows, self._bound.bytes):
            self._emitter.emit(piece, tag.round, tag.lane, out)
            yield

    def close(self) -> None:
        """Let the user's object go."""
        if self._close is not None:
            try:
                self._close()
            except BaseException as error:
                _blame_user(f"{self._name}, while it was closed,", error)

    def _fitting(self, result: object, batch: Batch) -> pa.RecordBatch:
        """The result as a batch of the schema."""
        columns = _columns(result)
        if columns is None:
            raise DataError(
                f"{self._name} gave a {type(result).__name__} for {_rows(batch)}",
                "give a RecordBatch, a Table, or a dict of arrays; did you forget to return?",
            )
        self._check_names(list(columns))
        arrays = [self._fitted(field, columns[field.name]) for field in self._schema]
        lengths = {field.name: len(array) for field, array in zip(self._schema, arrays, strict=True)}
        if len(set(lengths.values())) > 1:
            raise DataError(f"{self._name} gave columns of different lengths: {lengths}", "give equally long columns")
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _check_names(self, names: list[str]) -> None:
        missing = [name for name in self._schema.names if name not in names]
        surplus = [name for name in names if name not in self._schema.names]
        if missing or surplus:
            what = f"no column {missing[0]!r}" if missing else f"a column {surplus[0]!r} that its schema does not have"
            raise DataError(
                f"{self._name} gave {what}; it gave: {', '.join(names) or 'nothing'}",
                f"give exactly the columns of its schema: {', '.join(self._schema.names)}",
            )

    def _fitted(self, field: pa.Field, values: Any) -> pa.Array:
        try:
            array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
            if isinstance(array, pa.ChunkedArray):
                array = single_array(array)
            array = plain_array(array)
            array = array if array.type == field.type else array.cast(field.type, safe=True)
        except (pa.ArrowException, TypeError) as error:
            raise DataError(
                f"{self._name}: column {field.name!r} does not fit {field.type}: {error}",
                "correct the schema given to map_batches, or cast inside the function",
            ) from error
        if array.null_count and not field.nullable:
            raise DataError(
                f"{self._name}: column {field.name!r} contains nulls, but its schema says that it has none",
                "declare the column nullable, or fill the nulls",
            )
        return array


def _columns(result: object) -> dict[str, Any] | None:
    if isinstance(result, pa.RecordBatch | pa.Table):
        return dict(zip(result.schema.names, result.columns, strict=True))
    return dict(result) if isinstance(result, Mapping) else None


def _rows(batch: Batch) -> str:
    tag = batch.tag
    return f"rows 0..{batch.records.num_rows - 1} of round {tag.round}, lane {tag.lane}, batch {tag.sequence}"


def _blame_user(what: str, error: BaseException, where: str = "") -> NoReturn:
    if not is_to_be_told(error):
        raise error
    raise raised(what, error, "fix the function, or filter out the rows it cannot take", where) from error
