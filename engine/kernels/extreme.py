"""The smallest and the largest value of a group, of any type that has an order.

They follow Spark and DuckDB: NaN is larger than any number. Of zeros of both signs the positive one is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .accumulators import Accumulator, GroupRows, Merging, Validity
from .aggregate_protocol import Segments, State, unfit
from .growable_array import GrowableArray
from .keys import is_point_in_time, numbers, validity
from .native import kernels_for
from .pieces import Flags, Positions
from .reductions import all_null, grouped, is_whole


@dataclass(frozen=True)
class Extreme:
    """The smallest or the largest value, of the column's type."""

    name: str
    ordered: bool = False

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        return (self.result_type(column),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        if column is None or not (_is_plain(column) or _is_grouped(column)):
            raise unfit(self.name, column, "numbers, booleans, strings, binary, decimals, dates and times")
        return column

    def lift(self, values: pa.Array | None, rows: int) -> State:
        assert values is not None
        return (values,)

    def blank(self, column: pa.DataType | None, rows: int) -> State:
        return (pa.nulls(rows, column),)

    def merge(self, state: State, segments: Segments) -> State:
        (values,) = state
        if not _is_plain(values.type):
            return (grouped(values, segments.ids, self.name),)
        plain, reduction = self._plain(values)
        with np.errstate(invalid="ignore"):
            found = reduction.reduceat(plain, segments.starts)
        return (_typed(_one_zero(found), values.type, all_null(values, segments)),)

    def accumulator(self, column: pa.DataType | None) -> Accumulator:
        assert column is not None
        return Extremes(self.name, column) if _is_plain(column) else _Regrouped(self, column)

    def _plain(self, values: pa.Array) -> tuple[Any, np.ufunc]:
        """The values as numbers, nulls as what changes nothing; and how to reduce them."""
        plain = numbers(values)
        floating = plain.dtype.kind == "f"
        if values.null_count:
            plain = np.where(validity(values), plain, _neutral(plain.dtype, self.name))
        if floating:
            plain = np.where(np.isnan(plain), plain.dtype.type("nan"), plain)  # fmin does not pass over signalling NaNs
        if self.name == "max":
            return plain, np.maximum
        return plain, np.fmin if floating else np.minimum  # fmin passes over NaN, which is the largest value

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        return state[0]


class Extremes:
    """The smallest or the largest value of each group, of a type that numpy reduces."""

    in_place = True
    takes_compact = False

    def __init__(self, name: str, type: pa.DataType) -> None:
        self._type = type
        self._smallest = name == "min"
        dtype = numbers(pa.nulls(0, type)).dtype
        self._neutral = _neutral(dtype, name)
        if dtype.kind == "f" and self._smallest:
            self._neutral = dtype.type("inf")
        self._found = GrowableArray(dtype, self._neutral)
        #: the groups with a value, and with one that is not NaN
        self._validity, self._numbered = Validity(), Validity()

    @property
    def bytes(self) -> int:
        return self._found.bytes + self._validity.bytes + self._numbered.bytes

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        assert values is not None
        self._validity.mark(rows, values)
        plain = numbers(values)
        if values.null_count:
            plain = np.where(validity(values), plain, self._neutral)
        if plain.dtype.kind == "f" and self._smallest:
            plain, rows = self._without_nan(plain, rows, values)
        elif plain.dtype.kind == "f" and np.isnan(plain.max(initial=-np.inf)):
            plain = np.where(np.isnan(plain), plain.dtype.type("nan"), plain)
        found = self._found.to(rows.groups)
        kernels = kernels_for(len(plain))
        if kernels is not None and len(found) > 1 and kernels.extreme(self._smallest, found, rows.ids, plain):
            return
        reduction = np.minimum if self._smallest else np.maximum
        with np.errstate(invalid="ignore"):
            if len(found) == 1:
                found[0] = reduction.reduce(plain, initial=found[0])
            else:
                reduction.at(found, rows.ids, plain)

    def _without_nan(self, plain: Any, rows: GroupRows, values: pa.Array) -> tuple[Any, GroupRows]:
        """NaN is the largest value: only a group of nothing else has it as its smallest."""
        with np.errstate(invalid="ignore"):
            clean = not np.isnan(plain.min(initial=np.inf))
        if clean:
            self._numbered.mark(rows, values)
            return plain, rows
        kept = ~np.isnan(plain)
        rows = rows.only(kept)
        self._numbered.mark(rows, values.filter(pa.array(kept)))
        return plain[kept], rows

    def merge(self, state: State, rows: GroupRows) -> None:
        self.add(state[0], rows)

    def state(self) -> State:
        found, no_number = self._found.given(), self._numbered.missing()
        if found.dtype.kind == "f" and no_number is not None:
            found = np.where(no_number, found.dtype.type("nan"), found)
        return (_typed(_one_zero(found), self._type, self._validity.missing()),)


class _Regrouped(Merging):
    """What Arrow's group-by reduces needs no sorting."""

    def _merged(self, state: State, ids: Positions, groups: int) -> State:
        return (grouped(state[0], ids, self._function.name),)


def _neutral(dtype: np.dtype[Any], name: str) -> Any:
    """What changes nothing."""
    if dtype.kind == "f":
        return dtype.type("nan" if name == "min" else "-inf")
    if dtype == np.bool_:
        return np.bool_(name == "min")
    bounds = np.iinfo(dtype)
    return dtype.type(bounds.max if name == "min" else bounds.min)


def _one_zero(found: Any) -> Any:
    """So that the sign of a zero does not depend on cuts."""
    return found + found.dtype.type(0) if found.dtype.kind == "f" else found


def _typed(found: Any, type: pa.DataType, missing: Flags | None) -> pa.Array:
    plain = pa.array(found, mask=missing)
    return plain.view(type) if pa.types.is_temporal(type) else pc.cast(plain, type)


def _is_plain(type: pa.DataType) -> bool:
    """The types that numpy reduces."""
    return is_whole(type) or bool(pa.types.is_floating(type)) or is_point_in_time(type)


def _is_grouped(type: pa.DataType) -> bool:
    """The types that Arrow's group-by reduces."""
    checks: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        pa.types.is_decimal,
    )
    return any(check(type) for check in checks)
