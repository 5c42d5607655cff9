"""Map batches: a user's function, or a user's class built once per running operator, applied to each batch.

Rules:

1. The function gets a ``pyarrow.RecordBatch``, or what else was asked for (``user_calls``), and gives a record batch, a
   table, a frame of pandas, or a mapping of column names to arrays, of any number of rows. Columns are matched by name;
   a column may be cast only if no value changes. Views and runs become plain (``plain_types``). What a generator gives
   of a batch leaves when it is over, so that a cut never stands within a call.
2. What it raises, whatever that is, becomes a :class:`UserCodeError` that tells the rows it was given and the traceback
   from the user's first frame on (``user_code``). The driver adds the operator, the task the split.
3. It is called by one thread at a time, or by ``concurrency``, with the batches in order; what they become leaves in
   that order, whichever call is over first. Batches between the source and a function are cut at row positions, not by
   timing; still, a function whose result depends on how rows are cut into batches gives other results when a filter or
   join before it changes the cuts. Each of them comes in parts of ``batch_size`` rows (``CALL_ROWS``, if that is not
   said), of which the last may have fewer: each is a call, whose rows leave before those of the next one.
4. Calls of which several may be under way are made elsewhere. Where a checkpoint may come at any moment
   (``OperatorContext.elsewhere``) it does not wait for a call that takes long: that is made elsewhere, while the driver
   is free to be cut. What the calls were given counts as not taken then, and whoever goes on from the checkpoint makes
   them again. Calls that come one at a time are short until one takes ``LONG_SECONDS``, but for the first one, of which
   nothing is known. Which rows are given together never depends on that.
5. A class is built with the operator, once for each call that may be under way, and, if it has a method ``close``,
   closed with it, whatever has happened.
6. With ``on_error`` other than "raise" a batch with which the function raises is halved until the rows are found with
   which it does so alone. These are rows in their places: nulls, and ``_error``, which says why, and what was given.
   It does so for whatever the function itself raises, but for errors of Penstock and of memory; what it gives must fit.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NoReturn

import pyarrow as pa

from ...arrow.dictionaries import PlainNulls
from ...arrow.plain_types import plain_array, plain_schema
from ...core.elements import Batch, Tag
from ...core.errors import DataError, FlowError, PenstockError
from ...core.operator import Background, Emitter, OperatorContext, Output, Stateless, Steps, run_at_once
from ...core.schemas import check_distinct, check_inputs, no_rows
from ...core.traits import Emission, Lineage, State, Traits
from ...core.user_code import is_to_be_told, raised, text_of
from ...expressions.evaluator import single_array
from ...kernels.pieces import Bound, cut
from .bad_rows import ERROR
from .user_calls import Called, Callee, as_array, columns_of

CALL_ROWS = 65_536
"""Half of a source's batch: while a call lasts nobody sees a new row, and functions may be slow."""

ERROR_FIELD = pa.field(ERROR, pa.struct([("reason", pa.string()), ("row", pa.string())]))
MOST_TEXT = 65_536
"""Characters of a row that could not be taken, and of the reason, that are kept."""

LONG_SECONDS = 0.1
"""A call that takes longer is made elsewhere: to hand it over and back takes a thousandth of that."""


@dataclass(frozen=True)
class MapBatches:
    """Applies ``function`` (a callable, a class whose instances are callable, or one of these and how it is called);
    ``schema`` is that of the result; ``batch_size``: the most rows that it is given at once (None: batches as they
    come, up to 65,536 rows); ``concurrency``: how many calls may be under way at once, of which neither rows nor
    checkpoints depend."""

    function: Callable[..., Any] | Called
    schema: pa.Schema
    batch_size: int | None = None
    concurrency: int = field(default=1, metadata={"exact": False})
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

    @property
    def called(self) -> Called:
        """The function, and how it is called."""
        return self.function if isinstance(self.function, Called) else Called(self.function)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The schema that the user promised."""
        check_inputs(self.kind, inputs, 1)
        check_distinct(self.kind, "column", self.schema.names)
        if self.batch_size is not None and self.batch_size < 1:
            raise FlowError(f"{self.kind}: batches of {self.batch_size} rows", "give batch_size= of 1 or more")
        self.called.check()
        return plain_schema(self.schema)

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningMapBatches:
        """A running operator; a class is built here, so that it stays warm over all batches."""
        elsewhere, at_once = context.elsewhere, self.concurrency
        if elsewhere is None and at_once > 1 and context.background is not run_at_once:
            elsewhere = context.background
        if elsewhere is None:
            at_once = 1
        callee = made(self.called, self.describe(), at_once)
        bound = Bound(context.output_rows, context.output_bytes)
        if elsewhere is None:
            return RunningMapBatches(self, callee, bound)
        return AsynchronousMapBatches(self, callee, bound, elsewhere)

    @property
    def with_errors(self) -> pa.Schema | None:
        """The schema of the rows that come out, if bad ones are kept (rule 6)."""
        return None

    def describe(self) -> str:
        """The function's name, and how many rows it is given."""
        name = self.called.name
        return name if self.batch_size is None else f"{name}, {self.batch_size:,} rows at a time"


@dataclass(frozen=True)
class ForgivingMapBatches(MapBatches):
    """The same, and it keeps rows with which the function raises (rule 6)."""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The schema that the user promised, any of which may be null, and ``_error``."""
        check_distinct(self.kind, "column", [*self.schema.names, ERROR])
        super().output_schema(inputs)
        return self.with_errors

    @property
    def with_errors(self) -> pa.Schema:
        return pa.schema([*(each.with_nullable(True) for each in plain_schema(self.schema)), ERROR_FIELD])


def made(called: Called, name: str, at_once: int = 1) -> Callee:
    """What is called. Raises UserCodeError if a class cannot be built."""
    try:
        return called.made(at_once)
    except BaseException as error:
        _blame_user(f"{name} could not be built: it", error)


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

    def __init__(self, config: MapBatches, callee: Callee, bound: Bound) -> None:
        self._callee = callee
        self._name = config.describe()
        #: of a group, for who tells what it was called with
        self._columns = config.called.columns
        self._schema = plain_schema(config.schema)
        #: of what comes out if bad rows are kept (rule 6)
        self._with_errors = config.with_errors
        self._rows_at_once = config.batch_size or CALL_ROWS
        self._is_cut = config.batch_size is not None
        self._bound = bound
        self._plain = PlainNulls(self._schema)
        #: then a record batch of this schema is right without a look at its columns
        self._all_nullable = all(field.nullable for field in self._schema)
        self._emitter = _NumberedBatches()

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Call the function and emit what it gives, in pieces of the batch's round and lane."""
        if not batch.records.num_rows:
            return None
        if batch.records.num_rows > self._rows_at_once:
            return self._in_parts(batch, out)
        return self._emit(self._call(batch), batch.tag, out)

    def _in_parts(self, batch: Batch, out: Output) -> Iterator[None]:
        begin = 0
        while begin < batch.records.num_rows:
            part = self._part(batch, begin)
            begin += part.records.num_rows
            yield from self._emit(self._call(part), batch.tag, out) or ()
            yield

    def _part(self, batch: Batch, begin: int) -> Batch:
        """The rows of a batch for the call that begins there."""
        rows = self._rows_at_once
        whole = begin == 0 and batch.records.num_rows <= rows
        return batch if whole else Batch(batch.records.slice(begin, rows), batch.tag)

    def _call(self, batch: Batch) -> list[pa.RecordBatch]:
        try:
            results = self._callee(batch.records)
        except BaseException as error:
            if self._with_errors is not None and _is_of_rows(error):
                return list(_together(self._halved(batch, error), self._bound))
            _blame_user(self._name, error, self._rows(batch))
        found = [self._plain.of(self._checked(each, batch)) for each in results]
        if self._with_errors is not None:
            found = [_completed(each.columns, each.num_rows, self._with_errors) for each in found]
        return found if len(found) < 2 else list(_together(found, self._bound))

    def _halved(self, batch: Batch, error: BaseException) -> list[pa.RecordBatch]:
        """Rule 6, for rows with which the function has raised."""
        half = batch.records.num_rows // 2
        if not half:
            told = {
                "reason": _printable(f"{type(error).__name__}: {text_of(error)}")[:MOST_TEXT],
                "row": _row_text(batch.records, self._columns),
            }
            nulls = [pa.nulls(1, each.type) for each in self._schema]
            return [_completed([*nulls, pa.array([told], ERROR_FIELD.type)], 1, self._with_errors)]
        halves = (batch.records.slice(0, half), batch.records.slice(half))
        return [each for rows in halves for each in self._call(Batch(rows, batch.tag))]

    def _checked(self, result: Any, batch: Batch) -> pa.RecordBatch:
        if self._all_nullable and isinstance(result, pa.RecordBatch) and result.schema.equals(self._schema):
            return result
        return self._fitting(result, batch)

    def _rows(self, batch: Batch) -> str:
        """For an error. Where a part of a batch begins is not known: what was left of it may come from a checkpoint."""
        tag, rows = batch.tag, batch.records.num_rows
        which = f"{rows:,} of the rows" if self._is_cut or rows == CALL_ROWS else f"rows 0..{rows - 1}"
        return f"{which} of round {tag.round}, lane {tag.lane}, batch {tag.sequence}"

    def _emit(self, found: Sequence[pa.RecordBatch], tag: Tag, out: Output) -> Steps:
        if len(found) != 1:
            return self._in_pieces(found, tag, out) if found else None
        records = found[0]
        whole = Batch(records, tag)
        if records.num_rows > self._bound.rows or whole.size > self._bound.bytes:
            return self._in_pieces(found, tag, out)
        if records.num_rows:
            next_tag = self._emitter.next(tag)
            out.emit(whole if next_tag is tag else Batch(records, next_tag))
        return None

    def _in_pieces(self, found: Sequence[pa.RecordBatch], tag: Tag, out: Output) -> Iterator[None]:
        for records in found:
            for piece in cut(records, self._bound.rows, self._bound.bytes):
                self._emitter.emit(piece, tag.round, tag.lane, out)
                yield

    def close(self) -> None:
        """Let the user's object go."""
        try:
            self._callee.close()
        except BaseException as error:
            _blame_user(f"{self._name}, while it was closed,", error)

    def _fitting(self, result: object, batch: Batch) -> pa.RecordBatch:
        """The result as a batch of the schema."""
        if isinstance(result, list) and not result:
            return no_rows(self._schema)
        columns = columns_of(result)
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
            array = as_array(values, field.type)
            if isinstance(array, pa.ChunkedArray):
                array = single_array(array)
            array = plain_array(array)
            array = array if array.type == field.type else array.cast(field.type, safe=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
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


@dataclass(slots=True, eq=False)
class _BatchTaken:
    """A batch of which not all has left: what has become of the rows before ``left`` has, those before ``asked`` are
    given to a call."""

    batch: Batch
    left: int = 0
    asked: int = 0

    @property
    def rows(self) -> int:
        return int(self.batch.records.num_rows)


@dataclass(slots=True, eq=False)
class _CallMade:
    """A call that was made, and what has come of it, or the exception in its place; None: it is not there yet."""

    taken: _BatchTaken
    part: Batch
    answer: Any = None

    def put(self, answer: object) -> None:
        self.answer = answer


class AsynchronousMapBatches(RunningMapBatches):
    """Makes long calls elsewhere, up to ``concurrency`` at a time; see rule 4."""

    def __init__(self, config: MapBatches, callee: Callee, bound: Bound, elsewhere: Background) -> None:
        super().__init__(config, callee, bound)
        self._elsewhere = elsewhere
        self._most = config.concurrency
        #: the last call took long, or there was none
        self._is_long = True
        #: batches of which some rows have not left yet, and the calls that are made, in their order
        self._taken: deque[_BatchTaken] = deque()
        self._asked: deque[_CallMade] = deque()
        #: the pieces of what came of the first call, while they leave
        self._leaving: Iterator[None] | None = None

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Make calls; ``poll`` emits what comes of them elsewhere, and makes the next ones. Behind a restore
        batches come one after the other, of as many calls as could be under way before: they wait."""
        if not batch.records.num_rows:
            return None
        self._taken.append(_BatchTaken(batch))
        return self._go_on(out)

    def accepts(self, port: int) -> bool:
        """While a call more may be made, and no rows wait for one."""
        if self._most == 1:
            return not self._taken and self._leaving is None
        return len(self._asked) < self._most and (not self._taken or self._taken[-1].asked == self._taken[-1].rows)

    @property
    def waits_for(self) -> str:
        """The function, and how many rows are left for it."""
        if self._taken:
            return f"{self._name}, which has {sum(each.rows - each.left for each in self._taken):,} rows"
        return "" if self._leaving is None else f"what {self._name} gave"

    def poll(self, out: Output) -> bool:
        """Emit a piece of what the first call gave, or make the next one."""
        if self._leaving is None:
            if not self._taken or (self._asked and self._asked[0].answer is None):
                return False
            self._leaving = iter(self._go_on(out) or ())
        if next(self._leaving, self) is self:
            self._leaving = None
        return True

    def unanswered(self, out: Output) -> Sequence[Batch]:
        """The rows of which nothing has left, behind the rest of what a call gave."""
        while self._leaving is not None:
            self.poll(out)
        return [Batch(each.batch.records.slice(each.left), each.batch.tag) for each in self._taken]

    def _go_on(self, out: Output) -> Steps:
        """Emit what the first call has given, if that is there, and make others in its place."""
        if not self._asked and self._most == 1 and not self._is_long and self._unasked is not None:
            first = self._next(self._unasked)
            first.put(self._timed(first.part))
        else:
            self._ask()
            first = self._asked[0]
            if first.answer is None:
                return None
            self._asked.popleft()
        if isinstance(first.answer, BaseException):
            raise first.answer
        taken = first.taken
        taken.left += first.part.records.num_rows
        if taken.left == taken.rows:
            self._taken.popleft()
        if self._most > 1:
            self._ask()
        return self._emit(first.answer, first.part.tag, out)

    def _ask(self) -> None:
        """Make as many calls as may be."""
        while len(self._asked) < self._most and self._unasked is not None:
            made = self._next(self._unasked)
            self._asked.append(made)
            self._elsewhere(partial(self._timed, made.part), made.put)

    @property
    def _unasked(self) -> _BatchTaken | None:
        """The first batch of which no call has all rows."""
        return next((each for each in self._taken if each.asked < each.rows), None)

    def _next(self, taken: _BatchTaken) -> _CallMade:
        """The call with the rows of a batch that come next."""
        part = self._part(taken.batch, taken.asked)
        taken.asked += part.records.num_rows
        return _CallMade(taken, part)

    def _timed(self, batch: Batch) -> list[pa.RecordBatch]:
        began = time.perf_counter()
        found = self._call(batch)
        self._is_long = time.perf_counter() - began > LONG_SECONDS
        return found


def _is_of_rows(error: BaseException) -> bool:
    """Whether it may be for the rows that a function raises this."""
    return isinstance(error, Exception) and not isinstance(error, PenstockError | MemoryError)


def _completed(columns: Sequence[pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """The columns, and nulls in those of the schema behind them."""
    further = [pa.nulls(rows, each.type) for each in list(schema)[len(columns) :]]
    return pa.RecordBatch.from_arrays([*columns, *further], schema=schema)


def _printable(text: str) -> str:
    """The text; surrogates, which no column of texts can hold, as a program writes them."""
    return text.encode(errors="backslashreplace").decode()


def _row_text(records: pa.RecordBatch, columns: Sequence[str]) -> str:
    """The first row as JSON, or nearly so. ``columns``: what its last ones are called by the user, if there are any."""
    if columns:
        records = pa.RecordBatch.from_arrays(records.columns[-len(columns) :], names=list(columns))
    try:
        (row,) = records.slice(0, 1).to_pylist()
        text = json.dumps(row, default=lambda each: f"{len(each):,} bytes" if isinstance(each, bytes) else str(each))
    except (ValueError, OverflowError, TypeError):
        text = str(records.slice(0, 1))
    return text[:MOST_TEXT]


def _together(found: Sequence[pa.RecordBatch], bound: Bound) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about as many as one may have."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for each in found:
        if held and (rows + each.num_rows > bound.rows or size + each.nbytes > bound.bytes):
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
        held.append(each)
        rows, size = rows + each.num_rows, size + each.nbytes
    if held:
        yield pa.concat_batches(held)


def _blame_user(what: str, error: BaseException, where: str = "") -> NoReturn:
    if not is_to_be_told(error):
        raise error
    raise raised(what, error, "fix the function, or filter out the rows it cannot take", where) from error
