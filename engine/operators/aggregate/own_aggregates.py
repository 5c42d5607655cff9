"""Aggregate functions of a user's own: what they give is looked at, and what they raise names them.

Such a function keeps the protocol (``kernels.aggregate_protocol``), or is a plain function of all values of a group.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from ...core.arguments import checked
from ...core.errors import DataError, FlowError, PenstockError
from ...core.user_code import is_to_be_told, raised
from ...kernels.aggregate_protocol import AggregateFunction, Segments, State
from .list_aggregates import CollectList, ValueLists, opened

REMEDY = "see what ps.AggregateFunction promises of this method"

UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What pyarrow raises for a value that a type cannot hold."""


@contextmanager
def _told(what: str, passing: tuple[type[Exception], ...] = (PenstockError, OverflowError)) -> Iterator[None]:
    """An error of a user's code names it; but that a value does not fit its type is an answer."""
    try:
        yield
    except passing:
        raise
    except BaseException as error:
        if not is_to_be_told(error):
            raise
        raise raised(what, error, "mend the function, or keep such rows from it with a filter") from error


@dataclass(frozen=True)
class OwnAggregate:
    """A function of a user's, kept to its promise: states and values have the types and numbers that it has told."""

    function: AggregateFunction

    @property
    def name(self) -> str:
        return str(self.function.name)

    @property
    def ordered(self) -> bool:
        return bool(self.function.ordered)

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        with _told(f"state_types of aggregate function {self.name}"):
            found: Any = self.function.state_types(column)
        if not isinstance(found, tuple) or not found or not all(isinstance(each, pa.DataType) for each in found):
            raise FlowError(f"aggregate function {self.name}: state_types gave {found!r}, no tuple of types", REMEDY)
        return found

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        with _told(f"result_type of aggregate function {self.name}"):
            found: Any = self.function.result_type(column)
        if not isinstance(found, pa.DataType):
            raise FlowError(f"aggregate function {self.name}: result_type gave {found!r}, no type", REMEDY)
        return found

    def lift(self, values: pa.Array | None, rows: int) -> State:
        with _told(f"lift of aggregate function {self.name}"):
            found = self.function.lift(values, rows)
        return self._state("lift", found, self.state_types(None if values is None else values.type), rows)

    def blank(self, column: pa.DataType | None, rows: int) -> State:
        with _told(f"blank of aggregate function {self.name}"):
            found = self.function.blank(column, rows)
        return self._state("blank", found, self.state_types(column), rows)

    def merge(self, state: State, segments: Segments) -> State:
        with _told(f"merge of aggregate function {self.name}"):
            found = self.function.merge(state, segments)
        return self._state("merge", found, [each.type for each in state], len(segments.starts))

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        with _told(f"final of aggregate function {self.name}"):
            found = self.function.final(state, column)
        self._check("final", found, self.result_type(column), len(state[0]))
        return found

    def _state(self, method: str, state: Any, types: Sequence[pa.DataType], rows: int) -> State:
        if not isinstance(state, tuple) or len(state) != len(types):
            raise DataError(f"aggregate function {self.name}: {method} gave no tuple of {len(types)} arrays", REMEDY)
        for array, type in zip(state, types, strict=True):
            self._check(method, array, type, rows)
        return state

    def _check(self, method: str, array: Any, type: pa.DataType, rows: int) -> None:
        if not isinstance(array, pa.Array):
            given = f"a {array.__class__.__name__}"
        elif array.type != type or len(array) != rows:
            given = f"{len(array)} values of {array.type}"
        else:
            return
        raise DataError(f"aggregate function {self.name}: {method} gave {given}, not {rows} of {type}", REMEDY)


@dataclass(frozen=True)
class OfValues(ValueLists):
    """A plain function of the values of a group. See :func:`aggregate_function`."""

    function: Callable[[list[Any]], Any]
    type: pa.DataType
    name: str
    ordered: bool = True

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        if column is None:
            raise FlowError(f"{self.name} cannot be computed of rows", f"name a column: ('price', {self.name})")
        return CollectList(self.name).state_types(column)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        return self.type

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        values, offsets = opened(state[0])
        ends = [values.slice(start, end - start) for start, end in pairwise(offsets)]
        with _told(f"aggregate function {self.name}", (PenstockError,)):
            given = [self.function(each.drop_null().to_pylist()) for each in ends]
        try:
            return _uncut(given, self.type)
        except UNFIT as error:
            raise self._unfit(given, error) from error

    def _unfit(self, given: list[Any], error: Exception) -> DataError:
        """Names the first value that does not fit."""
        what = "a value"
        for each in given:
            try:
                _uncut([each], self.type)
            except UNFIT as found:
                what, error = reprlib.repr(each), found
                break
        return DataError(
            f"aggregate function {self.name} gave {what}, which does not fit {self.type}: {error}",
            "let the function give values of its type (round(…), for instance), or give ps.aggregate_function another",
        )


def _uncut(values: list[Any], type: pa.DataType) -> pa.Array:
    """The values as ``type``; raises one of UNFIT where that would change them: pyarrow cuts 1.5 for an integer."""
    made = pa.array(values, type)
    try:
        found = pa.array(values)
    except UNFIT:  # of several types, or of one that the values do not tell
        for each in values if len(values) > 1 else ():
            _uncut([each], type)
        return made
    _check_uncut(found, type)
    return made


def _check_uncut(found: pa.Array, type: pa.DataType) -> None:
    """Raises ArrowInvalid if values, or parts of them, would be cut."""
    if found.type == type or pa.types.is_null(found.type):
        return
    if pa.types.is_struct(found.type) and pa.types.is_struct(type):
        for field in type:
            if found.type.get_field_index(field.name) >= 0:
                _check_uncut(found.field(field.name), field.type)
    elif pa.types.is_list(found.type) and not pa.types.is_dictionary(type) and hasattr(type, "value_type"):
        _check_uncut(found.flatten(), type.value_type)
    else:
        try:
            found.cast(type)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # read otherwise: a map of pairs
            return


@checked()
def aggregate_function(
    function: Callable[[list[Any]], Any], type: pa.DataType, *, name: str | None = None
) -> AggregateFunction:
    """An aggregate function of a plain one, which gets a group's values as a list, in their order and without nulls (it
    may be empty), and gives one value of ``type`` or None. ``name``: in plans and errors; by default the function's.

    All values of all groups are kept until the end. A function that can do with less is a :class:`AggregateFunction`::

        width = lambda prices: max(prices) - min(prices) if prices else None
        spread = ps.aggregate_function(width, pa.float64(), name="spread")
        flights.aggregate(["carrier"], spread=("price", spread))
    """
    return OfValues(function, type, name or str(getattr(function, "__name__", "function")))
