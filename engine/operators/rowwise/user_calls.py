"""How a user's function over batches is called: what it gets, with what arguments, and what it may be.

Rules:

1. A function gets a batch in the form that was asked for: a ``pyarrow.RecordBatch``, a dict of NumPy arrays or torch
   tensors, or a ``pandas.DataFrame``; or it gets each row as a dict (``each="row"``), or all rows of a key at once
   (``each="group"``: a row of the batch has them in lists). Further arguments follow.
2. It gives one result or, if it is a generator, several. It may be a coroutine function, or an asynchronous generator:
   those run in one event loop of their own thread, which begins with the first call.
3. A class is built once for each call that may be under way at a time, and an instance is never called while it is: but
   for one whose ``__call__`` is asynchronous, of which there is one. What has a method ``close`` is closed at the end.
4. NumPy arrays and tensors of two dimensions or more become a column of the schema's type: lists, lists of one length,
   or tensors of one shape.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from ...arrow.arrays import check_numeric, to_numpy
from ...core.errors import ConfigurationError, DataError, FlowError

BatchFormat: TypeAlias = Literal["arrow", "pyarrow", "numpy", "pandas", "torch"]
Each: TypeAlias = Literal["batch", "row", "group"]


@dataclass(frozen=True)
class Called:
    """A function, or a class, and how it is called (rule 1). ``columns``: those of a group, which are lists in the last
    columns of its row."""

    function: Callable[..., Any]
    batch_format: BatchFormat = "arrow"
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    constructor_args: tuple[Any, ...] = ()
    constructor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    each: Each = "batch"
    columns: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises FlowError for arguments that nothing takes, ConfigurationError for a library that is not there."""
        if (self.constructor_args or self.constructor_kwargs) and not isinstance(self.function, type):
            raise FlowError("arguments of a constructor for a function", "give them as fn_args=, or give a class")
        if isinstance(self.function, type):
            self._check_takes(self.function, self.constructor_args, self.constructor_kwargs, "fn_constructor_kwargs")
        elif self.args or self.kwargs:
            self._check_takes(self.function, (None, *self.args), self.kwargs, "fn_kwargs")
        if self.batch_format in ("pandas", "torch"):
            _library(self.batch_format)

    def _check_takes(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], what: str
    ) -> None:
        try:
            signature = inspect.signature(function, follow_wrapped=False)
            signature = signature.replace(return_annotation=inspect.Signature.empty)
        except (TypeError, ValueError):  # of something that is not written in Python
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            why = str(error).replace("got an unexpected keyword argument", "it has no")
            message = f"{self.name}{signature} does not take its arguments: {why}"
            raise FlowError(message, f"give what it takes: {what.replace('kwargs', 'args')}=, {what}=") from None

    @property
    def name(self) -> str:
        """That of the function."""
        return str(getattr(self.function, "__qualname__", None) or type(self.function).__qualname__)

    @property
    def plain(self) -> Callable[..., Any] | Called:
        """The function alone, if there is nothing to say of it."""
        return self.function if self == Called(self.function) else self

    def made(self, at_once: int = 1) -> Callee:
        """What is called, by so many at once. Raises what the class raises."""
        if not isinstance(self.function, type):
            return Callee(self, [self.function] * at_once)
        count = 1 if _is_asynchronous(self.function.__call__) else at_once
        made: list[Any] = []
        try:
            for _ in range(count):
                made.append(self.function(*self.constructor_args, **self.constructor_kwargs))
        except BaseException:
            with suppress(Exception):  # the first error is told
                close_all(made)
            raise
        return Callee(self, made * (at_once // count), made)


def arguments_of(
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    constructor_args: Sequence[Any],
    constructor_kwargs: Mapping[str, Any] | None,
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...], dict[str, Any]]:
    """What a user gives for a function, and for its class, as :class:`Called` takes it behind the form."""
    return tuple(args), dict(kwargs or {}), tuple(constructor_args), dict(constructor_kwargs or {})


def close_all(made: Sequence[Any]) -> None:
    """Close what has a method ``close``, whatever others raise, and raise that."""
    with ExitStack() as stack:
        for each in reversed(made):
            if callable(close := getattr(each, "close", None)):
                stack.callback(close)


class Callee:
    """Calls the function: from as many threads at once as it was made for."""

    def __init__(self, called: Called, functions: Sequence[Callable[..., Any]], own: Sequence[Any] = ()) -> None:
        self._called, self._own = called, own
        self._free: SimpleQueue[Callable[..., Any]] = SimpleQueue()
        for each in functions:
            self._free.put(each)
        self._loop = _Loop()
        self._forms = _FORMS[called.batch_format]

    def __call__(self, records: pa.RecordBatch) -> list[Any]:
        """The results for a batch, as the user gives them; of rows all in one list of dicts."""
        function = self._free.get()
        try:
            if self._called.each == "batch":
                return self._results(function, self._forms(records))
            if self._called.each == "row":
                return [[made for row in records.to_pylist() for made in self._rows(function, row)]]
            groups = (self._forms(self._group(records, number)) for number in range(records.num_rows))
            return [made for group in groups for made in self._results(function, group)]
        finally:
            self._free.put(function)

    def close(self) -> None:
        """Close what was built here, and the event loop."""
        try:
            close_all(self._own)
        finally:
            self._loop.close()

    def _rows(self, function: Callable[..., Any], row: dict[str, Any]) -> list[Any]:
        """What a row becomes."""
        [found, *others] = self._results(function, row) or [[]]
        return found if isinstance(found, list) and not others else [found, *others]

    def _results(self, function: Callable[..., Any], given: Any) -> list[Any]:
        found = function(given, *self._called.args, **self._called.kwargs)
        if isinstance(found, Awaitable):
            found = self._loop.result(found)
        if isinstance(found, AsyncIterator):
            return self._loop.all_of(found)
        return list(found) if isinstance(found, Iterator) else [found]

    def _group(self, records: pa.RecordBatch, number: int) -> pa.RecordBatch:
        """The rows of a key."""
        names = self._called.columns
        lists = records.columns[-len(names) :]
        return pa.RecordBatch.from_arrays([column.slice(number, 1).flatten() for column in lists], names)


class _Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def result(self, awaitable: Awaitable[Any]) -> Any:
        """Wait for it."""
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._running()).result()

    def all_of(self, found: AsyncIterator[Any]) -> list[Any]:
        """What it gives."""
        made: list[Any] = self.result(_listed(found))
        return made

    def close(self) -> None:
        """End the thread; nothing is under way."""
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = Thread(target=self._loop.run_forever, name="penstock-user-calls", daemon=True)
                self._thread.start()
            return self._loop


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def _listed(found: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in found]


def _is_asynchronous(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


# ---------------------------------------------------------------------- what a function gets


def _library(name: str) -> Any:
    try:
        return __import__(name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{name} is not installed", f"pip install {name}, or leave it out") from error


def _arrays(records: pa.RecordBatch) -> dict[str, Any]:
    try:
        return to_numpy(records)
    except DataError as error:  # which may name what feeds alone can be told
        remedy = 'fill its nulls (fill_null), leave it out (drop), or take batch_format="arrow" or "pandas"'
        raise DataError(error.message, remedy) from error


def _frame(records: pa.RecordBatch) -> Any:
    """Whole numbers with nulls are floats in a frame, of which those beyond 2**53 would be others."""
    for name, column in zip(records.schema.names, records.columns, strict=True):
        if column.null_count and pa.types.is_integer(column.type) and column.type.bit_width == 64:
            try:
                column.cast(pa.float64())
            except pa.ArrowInvalid as error:
                message = f"column {name!r} is {column.type} with nulls, and no float of pandas: {error}"
                raise DataError(message, 'fill its nulls (fill_null), or take batch_format="arrow"') from error
    return records.to_pandas()


def _tensors(records: pa.RecordBatch) -> dict[str, Any]:
    torch = _library("torch")
    found = _arrays(records)
    for name, array in found.items():
        check_numeric(name, array, 'take batch_format="numpy"')
    return {name: torch.as_tensor(each if each.flags.writeable else each.copy()) for name, each in found.items()}


_FORMS: dict[BatchFormat, Callable[[pa.RecordBatch], Any]] = {
    "arrow": lambda records: records,
    "pyarrow": lambda records: records,
    "numpy": _arrays,
    "pandas": _frame,
    "torch": _tensors,
}


# ---------------------------------------------------------------------- what it gives


def columns_of(result: object) -> dict[str, Any] | None:
    """The columns by name: arrays of Arrow or NumPy, or lists; None for what has none."""
    if isinstance(result, pa.RecordBatch | pa.Table):
        return dict(zip(result.schema.names, result.columns, strict=True))
    if isinstance(result, Mapping):
        if (strange := next((name for name in result if not isinstance(name, str)), None)) is not None:
            raise DataError(f"a column is called {strange!r}, which is no text", "give texts as names")
        return {name: _plain_values(each) for name, each in result.items()}
    if isinstance(result, list) and result and all(isinstance(each, Mapping) for each in result):
        return _columns_of_rows(result)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(result, pandas.DataFrame):
        return columns_of(pa.RecordBatch.from_pandas(result, preserve_index=False))
    return None


def _columns_of_rows(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(rows[0])
    for row in rows:
        if row.keys() != rows[0].keys():
            raise DataError(
                f"a row has the columns {', '.join(row)}, and another one {', '.join(names)}",
                "give all rows the same columns, and None where there is no value",
            )
    return {name: [row[name] for row in rows] for name in names}


def _plain_values(values: Any) -> Any:
    torch = sys.modules.get("torch")
    return values.detach().cpu().numpy() if torch is not None and isinstance(values, torch.Tensor) else values


def as_array(values: Any, type: pa.DataType | None = None) -> pa.Array | pa.ChunkedArray:
    """The values of a column, of this type if they leave it open (rule 4). Raises ArrowException, TypeError."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, Sequence) and values and isinstance(values[0], np.ndarray) and values[0].ndim > 1:
        values = np.stack(values)
    if not isinstance(values, np.ndarray) or values.ndim < 2:
        return pa.array(values)
    if type is None:
        type = pa.fixed_shape_tensor(pa.from_numpy_dtype(values.dtype), values.shape[1:])
    if not isinstance(type, pa.FixedShapeTensorType):
        return _lists(values, type)
    if tuple(type.shape) != values.shape[1:]:
        raise TypeError(f"its rows have the shape {tuple(values.shape[1:])}")
    storage = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type.storage_type.list_size)
    return pa.ExtensionArray.from_storage(type, storage.cast(type.storage_type))


def _lists(values: np.ndarray[Any, Any], type: pa.DataType) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    kind = getattr(type, "value_type", None)
    inner = _lists(values.reshape(-1, *values.shape[2:]), kind)
    if pa.types.is_fixed_size_list(type):
        return pa.FixedSizeListArray.from_arrays(inner, values.shape[1])
    offsets = np.arange(len(values) + 1, dtype=np.int64) * values.shape[1]
    return pa.LargeListArray.from_arrays(offsets, inner)
