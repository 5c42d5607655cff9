"""Map batches: a user's function, or a user's class built once per running operator, applied to each batch.

Rules:

1. The function gets a ``pyarrow.RecordBatch`` and gives a record batch, a table, or a mapping of column names to
   arrays, of any number of rows. Columns are matched by name; a column may be cast only if no value changes. Views
   and runs become plain (``plain_types``).
2. What it raises, whatever that is, becomes a :class:`UserCodeError` that tells the rows it was given and the traceback
   from the user's first frame on (``user_code``). The driver adds the operator, the task the split.
3. It is called by one thread at a time, with the batches in order. Batches between the source and a function are cut
   at row positions, not by timing; still, a function whose result depends on how rows are cut into batches gives other
   results when a filter or join before it changes the cuts. With ``batch_size`` each of them comes in parts of so many
   rows, of which the last may have fewer: each is a call, whose rows leave before the next one.
4. Where a checkpoint may come at any moment (``OperatorContext.elsewhere``) it does not wait for a call that takes
   long: that is made elsewhere, while the driver is free to be cut. What the call was given counts as not taken then,
   and whoever goes on from the checkpoint makes the call again. Calls are short until one takes ``LONG_SECONDS``, but
   for the first one, of which nothing is known. Which rows are given together never depends on that.
5. A class is built with the operator and, if it has a method ``close``, closed with it, whatever has happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NoReturn

import pyarrow as pa

from ...arrow.dictionaries import PlainNulls
from ...arrow.plain_types import plain_array, plain_schema
from ...core.elements import Batch, Tag
from ...core.errors import DataError, FlowError, InternalError
from ...core.operator import Background, Emitter, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_distinct, check_inputs
from ...core.traits import Emission, Lineage, State, Traits
from ...core.user_code import is_to_be_told, raised
from ...expressions.evaluator import single_array
from ...kernels.pieces import Bound, cut

LONG_SECONDS = 0.1
"""A call that takes longer is made elsewhere: to hand it over and back takes a thousandth of that."""


@dataclass(frozen=True)
class MapBatches:
    """Applies ``function`` (a callable, or a class whose instances are callable); ``schema`` is that of the result;
    ``batch_size``: the most rows that it is given at once (None: batches as they come)."""

    function: Callable[..., Any]
    schema: pa.Schema
    batch_size: int | None = None
    kind: str = "map batches"
    traits: ClassVar[Traits] = Traits(
        emission=Emission.PER_BATCH,
        state=State.NONE,
        lineage=Lineage(of_batch=True),
        beyond_budget="what the function makes of a batch",
        asynchronous=True,
        may_be_copied=True,
        ends_epochs=True,
    )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The schema that the user promised."""
        check_inputs(self.kind, inputs, 1)
        check_distinct(self.kind, "column", self.schema.names)
        if self.batch_size is not None and self.batch_size < 1:
            raise FlowError(f"{self.kind}: batches of {self.batch_size} rows", "give batch_size= of 1 or more")
        return plain_schema(self.schema)

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningMapBatches:
        """A running operator; a class is built here, so that it stays warm over all batches."""
        function = self.function
        if isinstance(function, type):
            try:
                function = function()
            except BaseException as error:
                _blame_user(f"{self.describe()} could not be built: it", error)
        bound = Bound(context.output_rows, context.output_bytes)
        if context.elsewhere is not None:
            return AsynchronousMapBatches(self, function, bound, context.elsewhere)
        return RunningMapBatches(self, function, bound)

    def describe(self) -> str:
        """The function's name, and how many rows it is given."""
        name = str(getattr(self.function, "__qualname__", None) or type(self.function).__qualname__)
        return name if self.batch_size is None else f"{name}, {self.batch_size:,} rows at a time"


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

    def __init__(self, config: MapBatches, function: Callable[..., Any], bound: Bound) -> None:
        self._function = function
        close = getattr(function, "close", None) if isinstance(config.function, type) else None
        self._close: Callable[[], object] | None = close if callable(close) else None
        self._name = config.describe()
        self._schema = plain_schema(config.schema)
        self._rows_at_once = config.batch_size
        self._bound = bound
        self._plain = PlainNulls(self._schema)
        #: then a record batch of this schema is right without a look at its columns
        self._all_nullable = all(field.nullable for field in self._schema)
        self._emitter = _NumberedBatches()

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Call the function and emit what it gives, in pieces of the batch's round and lane."""
        if self._rows_at_once is not None and batch.records.num_rows > self._rows_at_once:
            return self._in_parts(batch, out)
        return self._emit(self._call(batch), batch.tag, out)

    def _in_parts(self, batch: Batch, out: Output) -> Iterator[None]:
        rest: Batch | None = batch
        while rest is not None:
            part, rest = self._first_of(rest)
            yield from self._emit(self._call(part), batch.tag, out) or ()
            yield

    def _first_of(self, batch: Batch) -> tuple[Batch, Batch | None]:
        """The rows of a batch for the next call, and those that are left."""
        rows = self._rows_at_once
        if rows is None or batch.records.num_rows <= rows:
            return batch, None
        return Batch(batch.records.slice(0, rows), batch.tag), Batch(batch.records.slice(rows), batch.tag)

    def _call(self, batch: Batch) -> pa.RecordBatch:
        try:
            result = self._function(batch.records)
        except BaseException as error:
            _blame_user(self._name, error, self._rows(batch))
        if not (self._all_nullable and isinstance(result, pa.RecordBatch) and result.schema.equals(self._schema)):
            result = self._fitting(result, batch)
        return self._plain.of(result)

    def _rows(self, batch: Batch) -> str:
        """For an error. Where a part of a batch begins is not known: what was left of it may come from a checkpoint."""
        tag, rows = batch.tag, batch.records.num_rows
        which = f"rows 0..{rows - 1}" if self._rows_at_once is None else f"{rows:,} of the rows"
        return f"{which} of round {tag.round}, lane {tag.lane}, batch {tag.sequence}"

    def _emit(self, records: pa.RecordBatch, tag: Tag, out: Output) -> Steps:
        whole = Batch(records, tag)
        if records.num_rows > self._bound.rows or whole.size > self._bound.bytes:
            return self._in_pieces(records, tag, out)
        if records.num_rows:
            next_tag = self._emitter.next(tag)
            out.emit(whole if next_tag is tag else Batch(records, next_tag))
        return None

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
                f"{self._name} gave a {type(result).__name__} for {self._rows(batch)}",
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


class AsynchronousMapBatches(RunningMapBatches):
    """Makes long calls elsewhere, one at a time; see rule 4."""

    def __init__(self, config: MapBatches, function: Callable[..., Any], bound: Bound, elsewhere: Background) -> None:
        super().__init__(config, function, bound)
        self._elsewhere = elsewhere
        #: the last call took long, or there was none
        self._is_long = True
        #: the rows of which nothing has left yet, and those of them that the function is at, elsewhere
        self._rest: Batch | None = None
        self._asked: Batch | None = None
        #: what has come of these; None: it is not there yet
        self._answer: object = None
        #: the pieces of what came of the last call, while they leave
        self._leaving: Iterator[None] | None = None

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Make the first call; ``poll`` emits what comes of it elsewhere, and makes the next one."""
        if not self.accepts(port):
            raise InternalError(f"map batches: a batch came while {self.waits_for} was under way")
        self._rest = batch
        return self._go_on(out)

    def accepts(self, port: int) -> bool:
        """While no rows of another batch are here."""
        return self._rest is None and self._leaving is None

    @property
    def waits_for(self) -> str:
        """The function, and how many rows are left for it."""
        if self._rest is not None:
            return f"{self._name}, which has {self._rest.records.num_rows:,} rows"
        return "" if self._leaving is None else f"what {self._name} gave"

    def poll(self, out: Output) -> bool:
        """Emit a piece of what the last call gave, or make the next one."""
        if self._leaving is None:
            if self._rest is None or (self._asked is not None and self._answer is None):
                return False
            self._leaving = iter(self._go_on(out) or ())
        if next(self._leaving, self) is self:
            self._leaving = None
        return True

    def unanswered(self, out: Output) -> Sequence[Batch]:
        """The rows of which nothing has left, behind the rest of what the last call gave."""
        while self._leaving is not None:
            self.poll(out)
        return [] if self._rest is None else [self._rest]

    def _go_on(self, out: Output) -> Steps:
        """Make the next call, or emit what one has given that was made elsewhere."""
        assert self._rest is not None, "there are rows left"
        part, rest = self._first_of(self._rest)
        if self._asked is None and self._is_long:
            self._asked = part
            self._elsewhere(partial(self._timed, part), self._put)
            return None
        found = self._timed(part) if self._asked is None else self._answer
        self._rest, self._asked, self._answer = rest, None, None
        if isinstance(found, BaseException):
            raise found
        return self._emit(found, part.tag, out)

    def _put(self, answer: object) -> None:
        self._answer = answer

    def _timed(self, batch: Batch) -> pa.RecordBatch:
        began = time.perf_counter()
        found = self._call(batch)
        self._is_long = time.perf_counter() - began > LONG_SECONDS
        return found


def _columns(result: object) -> dict[str, Any] | None:
    if isinstance(result, pa.RecordBatch | pa.Table):
        return dict(zip(result.schema.names, result.columns, strict=True))
    return dict(result) if isinstance(result, Mapping) else None


def _blame_user(what: str, error: BaseException, where: str = "") -> NoReturn:
    if not is_to_be_told(error):
        raise error
    raise raised(what, error, "fix the function, or filter out the rows it cannot take", where) from error
