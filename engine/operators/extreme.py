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

from .aggregate_protocol import Segments, State, unfit
from .keys import is_point_in_time, numbers, validity
from .pieces import Flags, Positions
from .reductions import all_null, grouped, is_whole, none_valid


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

    def scatter(self, state: State, ids: Positions, groups: int) -> State:
        (values,) = state
        if not _is_plain(values.type):
            return (grouped(values, ids, self.name),)
        plain, reduction = self._plain(values)
        found = np.full(groups, self._neutral(plain.dtype), dtype=plain.dtype)
        with np.errstate(invalid="ignore"):
            reduction.at(found, ids, plain)
        return (_typed(_one_zero(found), values.type, none_valid(values, ids, groups)),)

    def _plain(self, values: pa.Array) -> tuple[Any, np.ufunc]:
        """The values as numbers, nulls as what changes nothing; and how to reduce them."""
        plain = numbers(values)
        floating = plain.dtype.kind == "f"
        if values.null_count:
            plain = np.where(validity(values), plain, self._neutral(plain.dtype))
        if floating:
            plain = np.where(np.isnan(plain), plain.dtype.type("nan"), plain)  # fmin does not pass over signalling NaNs
        if self.name == "max":
            return plain, np.maximum
        return plain, np.fmin if floating else np.minimum  # fmin passes over NaN, which is the largest value

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        return state[0]

    def _neutral(self, dtype: np.dtype[Any]) -> Any:
        if dtype.kind == "f":
            return dtype.type("nan" if self.name == "min" else "-inf")
        if dtype == np.bool_:
            return np.bool_(self.name == "min")
        bounds = np.iinfo(dtype)
        return bounds.max if self.name == "min" else bounds.min


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
