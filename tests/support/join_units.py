"""Two sides of a merge join by units, with nulls anywhere among sorted keys, and joining in small steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from penstock.engine.operators.join import merge_join, merge_sides

Keys = list[tuple[int | None, int | None]]
UnitKeys = Mapping[tuple[int, int], Keys]

SCHEMAS = [
    pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())]),
    pa.schema([("v", pa.int64()), ("b", pa.string()), ("a", pa.int64()), ("w", pa.int64())]),
]


@contextmanager
def steps_of(rows: int) -> Iterator[None]:
    """Join in small steps, and hold little: what happens by itself only in very large splits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_sides, "STEP_ROWS", rows)
        patch.setattr(merge_join, "HELD_ROWS", 2 * rows)
        yield


def sides(left: UnitKeys, right: UnitKeys) -> list[dict[tuple[int, int], pa.Table]]:
    """Tables of both sides with keys (a, b), and values that tell where a row stood."""
    made: list[dict[tuple[int, int], pa.Table]] = []
    for schema, units in zip(SCHEMAS, (left, right), strict=True):
        tables = {}
        for unit, keys in units.items():
            place = 1000 * unit[0] + 100_000 * unit[1]
            columns = {
                "a": [a for a, _ in keys],
                "b": [None if b is None else f"b{b}" for _, b in keys],
                "v": [place + n for n in range(len(keys))],
                "w": [place - n for n in range(len(keys))],
            }
            tables[unit] = pa.table({name: columns[name] for name in schema.names}, schema=schema)
        made.append(tables)
    return made


def with_nulls_anywhere(keys: list[tuple[int, int, int]]) -> Keys:
    """Sorted keys, some of which become null without moving."""
    return [
        (None if null == 1 else a, None if null == 2 else b) for a, b, null in sorted(keys, key=lambda key: key[:2])
    ]


sorted_keys = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 2), st.sampled_from([0, 0, 0, 0, 1, 2])), max_size=40
).map(with_nulls_anywhere)
units = st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 3)), sorted_keys, max_size=5)
