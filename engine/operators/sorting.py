"""The order of rows by keys: what sort, top-n, windows and ordered aggregates share.

Rules:

1. Sorting is stable: rows with equal keys keep their order.
2. Values are ordered as SQL does: NaN is the largest number and equals NaN, strings and binary go by their bytes.
   Nulls stand last, or first where the key says so, whether ascending or descending.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import FlowError
from ..schemas import check_columns, check_distinct
from .keys import check_key_types, comparable, validity
from .pieces import Positions

Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by."""

    column: str
    descending: bool = False
    nulls_first: bool = False

    def describe(self) -> str:
        """The key as in SQL."""
        return f"{self.column}{' desc' if self.descending else ''}{' nulls first' if self.nulls_first else ''}"


def as_sort_keys(given: Sequence[str | SortKey]) -> tuple[SortKey, ...]:
    """Plain names mean ascending, nulls last."""
    return tuple(SortKey(key) if isinstance(key, str) else key for key in given)


def check_sort_keys(kind: str, keys: Sequence[SortKey], schema: pa.Schema) -> None:
    """The keys are there, differ, and can be ordered. There is at least one."""
    if not keys:
        raise FlowError(f"{kind}: no key is given", "name at least one column to sort by")
    names = [key.column for key in keys]
    check_distinct(kind, "key", names)
    check_columns(kind, schema, names)
    check_key_types(kind, [schema.field(name) for name in names])


def sorted_order(columns: Sequence[pa.Array], keys: Sequence[SortKey], first: Sequence[Numbers] = ()) -> Positions:
    """The rows in their order by ``first`` (numbers), then by ``keys``."""
    parts: list[Numbers] = [*first]
    for column, key in zip(columns, keys, strict=True):
        codes = sort_codes(column)
        if column.null_count:
            valid = validity(column)
            parts.append(valid if key.nulls_first else ~valid)
            codes = np.where(valid, codes, 0)
        parts.append(~codes if key.descending else codes)
    if len(parts) == 1:
        order: Positions = pc.array_sort_indices(pa.array(parts[0])).to_numpy().astype(np.int64)  # stable, too
        return order
    return np.lexsort(parts[::-1])


def sort_codes(column: pa.Array) -> Positions:
    """Integers in the order of the column's values; arbitrary in place of null."""
    codes = comparable(column)
    if isinstance(codes, np.ndarray):
        found: Positions = codes
        return found
    encoded = codes.dictionary_encode()
    if not len(encoded.dictionary):
        return np.zeros(len(codes), dtype=np.int64)
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    codes_of: Positions = rank[encoded.indices.fill_null(0).to_numpy()]
    return codes_of
