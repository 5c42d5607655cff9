"""The methods of a stream that call a user's function: with batches, or with rows.

Rules:

1. Names mean what they mean in Ray Data, but for two: ``concurrency`` is how many calls may be under way in each
   subtask, of which a stage has the job's ``parallelism``; a batch without ``batch_size`` has up to 65,536 rows.
2. What asks for resources is in a stage of its own: whatever reads for it holds none. What follows it is in that stage
   up to the next exchange.
3. Without a schema the function is called once, here and now, with the first rows; what it gives tells the types. The
   functions before it are called for these rows, with few at a time: they may be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, TypeAlias

import pyarrow as pa

from ..core.arguments import Within, checked
from ..core.errors import DataError, FlowError
from ..core.operator import OperatorConfig
from ..operators import MapBatches
from ..operators.rowwise.map_batches import ForgivingMapBatches, made
from ..operators.rowwise.user_calls import BatchFormat, Called, arguments_of, as_array, columns_of
from ..plan.resources import Resources, resources_of
from ..planner.graph import Graph, Node

Size = Annotated[int, Within(1)]
Calls = Annotated[int, Within(1, 1024)]

OnError: TypeAlias = Literal["raise", "skip", "keep"]
"""What becomes of rows that cannot be read, or that a function raises for."""

FIRST_ROWS = 64
"""So many rows a function is called with when nobody says what it gives."""

GROUPS = 64
"""So many groups are a call's part of a batch."""


class Calling:
    """What a stream offers besides. See the module."""

    flow: Graph
    id: str

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        raise NotImplementedError

    def forward(self, *, name: str | None = None) -> Self:
        """The same rows in a stage of its own."""
        raise NotImplementedError

    def head(self, n: int = 5) -> pa.Table:
        """The first rows."""
        raise NotImplementedError

    def _then(self, config: OperatorConfig, name: str | None = None) -> Self:
        raise NotImplementedError

    def _counting_bad(self, on_error: OnError) -> Self:
        """The rows, the bad ones of which are counted, or left out, if they do not raise."""
        raise NotImplementedError

    def _ask(self, resources: Resources) -> Self:
        raise NotImplementedError

    @checked()
    def map_batches(
        self,
        function: Callable[..., Any] | type,
        schema: pa.Schema | None = None,
        *,
        batch_size: Size | None = None,
        batch_format: BatchFormat = "arrow",
        fn_args: Sequence[Any] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: Calls = 1,
        num_cpus: float = 0.0,
        num_gpus: float = 0.0,
        memory: float = 0.0,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Self:
        """What ``function`` makes of each batch: a batch, a table, a frame of pandas, or a dict of arrays, of any
        number of rows; or several, if it is a generator. It may be asynchronous. A class is built once in each subtask,
        and its instance called with each batch; use it for models. ``schema``: of the result; without it ``function``
        is called with the first rows, here and now, and what it gives tells the types.

        ``batch_size``: at most so many rows at once, cut at the same rows in every run; what they become leaves before
        the next call's rows. Without it a batch has up to 65,536 rows: a function that takes a millisecond for each
        shows nothing for a minute. ``batch_format``: what it gets: "arrow" (a ``pyarrow.RecordBatch``), "numpy" or
        "torch" (a dict of arrays or tensors by column), "pandas" (a frame).

        ``concurrency``: so many calls at once in each subtask, on threads; a class is built as often, but for one whose
        ``__call__`` is asynchronous. Rows come in their order all the same, and checkpoints wait for no call: those
        that are under way are made again. ``num_cpus``, ``num_gpus``, ``memory`` (bytes): of the cluster for each
        subtask, in a stage of their own.

        ``on_error``: where it raises, the rows with which it does so alone are found: they "raise", are left out
        ("skip"), or have nulls in all columns and ``_error``, a struct of ``reason`` and ``row`` ("keep")."""
        given = arguments_of(fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
        called = Called(function, batch_format, *given)
        return self._calling(
            called, schema, batch_size, concurrency, resources_of(num_cpus, num_gpus, memory), name, on_error
        )

    @checked()
    def flat_map(
        self,
        function: Callable[..., Any] | type,
        schema: pa.Schema | None = None,
        *,
        batch_size: Size | None = None,
        fn_args: Sequence[Any] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: Calls = 1,
        num_cpus: float = 0.0,
        num_gpus: float = 0.0,
        memory: float = 0.0,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Self:
        """The rows that ``function`` makes of each row: it gets a dict and gives a list of dicts, or yields them.
        Slower than a function of whole batches by far. Arguments as for :meth:`map_batches`."""
        given = arguments_of(fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
        called = Called(function, "arrow", *given, each="row")
        return self._calling(
            called, schema, batch_size, concurrency, resources_of(num_cpus, num_gpus, memory), name, on_error
        )

    def _calling(
        self,
        called: Called,
        schema: pa.Schema | None,
        batch_size: int | None,
        concurrency: int,
        asked: Resources,
        name: str | None,
        on_error: OnError = "raise",
    ) -> Self:
        called.check()
        if schema is None:
            schema = told_schema(called, self._first(called, batch_size), on_error != "raise")
        stream = self.forward() if asked else self
        kind = MapBatches if on_error == "raise" else ForgivingMapBatches
        found = stream._then(kind(called.plain, schema, batch_size, concurrency), name)
        return (found._ask(asked) if asked else found)._counting_bad(on_error)

    def _first(self, called: Called, batch_size: int | None = None) -> pa.RecordBatch:
        """Rows for a call that tells what it gives. Raises FlowError if there are none."""
        looked = copy(self)
        looked.flow = self.flow.with_nodes(_with_few_rows(node) for node in self.flow.nodes)
        try:
            first = looked.head(min(batch_size or FIRST_ROWS, FIRST_ROWS))
        except FlowError as error:
            raise _unknown(called, error.message) from None
        if not first.num_rows:
            raise _unknown(called, "there are no rows to call it with")
        return first.combine_chunks().to_batches()[0]


def _with_few_rows(node: Node) -> Node:
    """The same, but that a function is called with so few rows as one whose types are not known."""
    config = node.config
    if not isinstance(config, MapBatches):
        return node
    return replace(node, config=replace(config, batch_size=min(config.batch_size or FIRST_ROWS, FIRST_ROWS)))


def told_schema(called: Called, first: pa.RecordBatch, forgiving: bool = False) -> pa.Schema:
    """The types of what a function gives of these rows; or, if it raises for them and may do so, of the first for
    which it does not. Raises FlowError, UserCodeError."""
    if forgiving and first.num_rows > 1:
        for rows in (first, *(first.slice(number, 1) for number in range(first.num_rows))):
            with suppress(FlowError):
                return told_schema(called, rows)
    callee = made(called, called.name)
    try:
        results = callee(first)
    except Exception as error:
        raise _unknown(called, f"it raised {type(error).__name__} with the first rows: {error}") from error
    finally:
        callee.close()
    try:
        schema = next(filter(None, map(_schema_of, results)), None)
    except DataError as error:
        raise _unknown(called, error.message) from error
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _unknown(called, f"the first rows become values that are no column: {error}") from error
    if schema is None:
        kinds = ", ".join(type(each).__name__ for each in results) or "nothing"
        raise _unknown(called, f"the first rows become {kinds}")
    for field in schema:
        if _is_open(field.type):
            raise _unknown(called, f"column {field.name!r} has no value in what the first rows become")
    return schema


def _is_open(kind: pa.DataType) -> bool:
    """Whether values are missing that would tell the type, or a part of it."""
    if pa.types.is_nested(kind):
        return any(_is_open(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_null(kind))


def _schema_of(result: Any) -> pa.Schema | None:
    if isinstance(result, pa.RecordBatch | pa.Table):
        return result.schema
    found = columns_of(result)
    return found and pa.schema([(name, as_array(values).type) for name, values in found.items()])


def _unknown(called: Called, why: str) -> FlowError:
    return FlowError(f"what {called.name} gives is not known: {why}", "say it: schema=pa.schema({...})")
