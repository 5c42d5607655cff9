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

from ..core.arguments import checked
from ..core.errors import FlowError
from ..core.schemas import check_columns, check_distinct
from .keys import check_key_types, comparable, compared, validity
from .pieces import Positions, picked
from .radix_order import Part, radix_order

Numbers: TypeAlias = npt.NDArray[Any]

SAMPLE_ROWS = 500
"""So many rows of a column of words are looked at to tell whether there are few distinct ones."""


@checked()
@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by."""

    column: str
    descending: bool = False
    nulls_first: bool = False

    def describe(self) -> str:
        """The key as in SQL."""
        return f"{self.column}{' desc' if self.descending else ''}{' nulls first' if self.nulls_first else ''}"


def as_sort_keys(given: SortKey | Sequence[str | SortKey]) -> tuple[SortKey, ...]:
    """Plain names mean ascending, nulls last."""
    keys = (given,) if isinstance(given, SortKey) else given
    return tuple(SortKey(key) if isinstance(key, str) else key for key in keys)


SortBy: TypeAlias = str | SortKey | Sequence[str | SortKey]
"""One key to sort by, or several."""


def sort_keys(kind: str, given: Sequence[SortBy], descending: bool | Sequence[bool]) -> tuple[SortKey, ...]:
    """The keys, each alone or in a list. ``descending``: of those that are plain names, all alike or one by one. Raises
    FlowError."""
    several = (each if isinstance(each, Sequence) and not isinstance(each, str) else (each,) for each in given)
    keys = [key for each in several for key in each]
    if not descending:
        return as_sort_keys(keys)
    if any(isinstance(key, SortKey) for key in keys):
        raise FlowError(
            f"{kind}: descending= is for plain names", "say it in each key: ps.SortKey('price', descending=True)"
        )
    each_of = [descending] * len(keys) if isinstance(descending, bool) else descending
    if len(each_of) != len(keys):
        raise FlowError(f"{kind}: {len(keys)} keys, and {len(each_of)} in descending=", "give one for all, or for each")
    return tuple(SortKey(str(key), falls) for key, falls in zip(keys, each_of, strict=True))


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
    rows = len(columns[0]) if columns else len(first[0])
    parts = [Part.of(numbers) for numbers in first]
    for column, key in zip(columns, keys, strict=True):
        codes = sort_codes(column)
        if column.null_count:
            valid = validity(column)
            parts.append(Part.of(valid, descending=not key.nulls_first))
            codes = np.where(valid, codes, codes[valid].min(initial=np.iinfo(np.int64).max))
        parts.append(Part.of(codes, descending=key.descending))
        if len(parts) == 1 and parts[0].ascends:
            return np.arange(rows)
    return radix_order(parts, rows)


def sort_codes(column: pa.Array) -> Positions:
    """Integers in the order of the column's values; arbitrary in place of null."""
    codes = comparable(column)
    if isinstance(codes, np.ndarray):
        found: Positions = codes
        return found
    if _is_mostly_distinct(codes):
        return _ranks(codes)
    encoded = codes.dictionary_encode()
    ranks = _ranks(encoded.dictionary)
    return ranks[encoded.indices.fill_null(0).to_numpy()] if len(ranks) else np.zeros(len(codes), dtype=np.int64)


def _is_mostly_distinct(column: pa.Array) -> bool:
    """Whether to look at the distinct values first would be in vain, as far as a sample tells."""
    sample = pa.array(np.linspace(0, len(column) - 1, SAMPLE_ROWS).astype(np.int64)) if len(column) else None
    return sample is not None and 2 * len(picked(column, sample).unique()) > SAMPLE_ROWS


def _ranks(column: pa.Array) -> Positions:
    """Numbers in the order of the values, equal for equal ones; arbitrary in place of null."""
    order = pc.array_sort_indices(column)
    ordered = picked(column, order)
    ranks = np.empty(len(column), dtype=np.int64)
    ranks[order.to_numpy()] = np.cumsum(np.append(False, ~compared("equal", ordered[1:], ordered[:-1]))[: len(column)])
    return ranks
