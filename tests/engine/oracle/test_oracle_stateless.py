"""Operators that work batch by batch against DuckDB: filter, project, unnest."""

from __future__ import annotations

import random

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.engine.operators import Filter, Project, Unnest
from support.operator_harness import run
from support.oracle_data import (
    POOLS,
    Shape,
    array_of,
    asked,
    one_huge_group,
    plain,
    shapes,
    sizes,
)

SOME = settings(max_examples=40, derandomize=True, deadline=None)

COMPARABLE = ("int64", "int32", "string", "binary", "decimal", "timestamp", "timestamp with zone", "date")
"""Types that filters compare. Of floats Arrow and DuckDB compare NaN differently (``engine/expressions/sql.py``)."""

LISTED = tuple(name for name in POOLS if name != "dictionary")
"""Types of list elements; DuckDB cannot read empty lists of a dictionary type."""

PREDICATES = (
    "a < b",
    "a = b",
    "a <> b or c",
    "a >= b and not c",
    "a is null or b is not null",
    "a between b and b",
    "a in (b)",
    "c",
    "case when c then a <= b else a > b end",
    "coalesce(a, b) = a",
)
COMPUTED = (
    "i::bigint * 2 - p",
    "f / 2 + i",
    "-f",
    "i % 7",
    "d * 2",
    "d + d",
    "i + 2.5",
    "p * 0.5",
    "p > 0.5",
    "s || 'x'",
    "upper(s)",
    "length(s)",
    "case when i > 0 then s when c then 'yes' end",
    "coalesce(s, 'none')",
    "i::bigint * 1000",
    "year(t)",
    "cast(t as date)",
    "i > 0.5",
    "c and i < 3",
)


@SOME
@given(shape=shapes, type=st.sampled_from(COMPARABLE), predicate=st.sampled_from(PREDICATES))
@example(shape=one_huge_group(), type="string", predicate="a = b")
def test_filter_equals_duckdb(shape: Shape, type: str, predicate: str) -> None:
    table = shape.table({"a": type, "b": type, "c": "bool", "d": "dictionary", "e": "list"})
    wanted = asked(f"select * from t where {predicate} order by p", t=table)
    for size in sizes(shape):
        assert plain(run(Filter(predicate), shape.cut(table), size=size).table) == wanted


@SOME
@given(
    shape=shapes,
    chosen=st.lists(st.sampled_from(COMPUTED), min_size=1, max_size=4),
    kept=st.sets(st.sampled_from(list(POOLS))),
)
@example(shape=one_huge_group(), chosen=list(COMPUTED), kept=set())
def test_project_equals_duckdb(shape: Shape, chosen: list[str], kept: set[str]) -> None:
    names = {f"kept {type}": type for type in sorted(kept)}
    numbers = {"i": "int32", "f": "float64", "d": "decimal", "s": "string", "c": "bool", "t": "timestamp"}
    drawn = shape.table({**names, **numbers})
    places = pa.array(range(2**24, 2**24 + drawn.num_rows), pa.int64())  # half of an odd one does not fit into float32
    table = drawn.set_column(drawn.schema.get_field_index("p"), "p", places)
    texts = {f"computed {number}": text for number, text in enumerate(chosen)}
    quoted = ", ".join([*(f'"{name}"' for name in names), *chosen])
    wanted = asked(f"select {quoted} from t order by p", t=table)
    config = Project.keeping(names, texts)
    for size in sizes(shape):
        assert plain(run(config, shape.cut(table), size=size).table) == wanted


def lists_of(type: str, chance: random.Random, rows: int, longest: int) -> pa.Array:
    """Lists of every length, null ones and null elements among them, and not always all of their values in use."""
    values = [*POOLS[type][1], None]
    lengths = [chance.randint(0, longest) for _ in range(rows)]
    offsets = [sum(lengths[:n]) for n in range(rows + 1)]
    elements = array_of(type, [chance.choice(values) for _ in range(offsets[-1])])
    missing = [chance.random() < 0.2 for _ in range(rows)]
    type_of = pa.list_(elements.type)
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), elements, type=type_of, mask=pa.array(missing, pa.bool_())
    )


@SOME
@given(
    shape=shapes,
    types=st.lists(st.sampled_from(LISTED), min_size=1, max_size=3),
    longest=st.sampled_from([0, 1, 4]),
    with_map=st.booleans(),
    outer=st.booleans(),
)
@example(shape=one_huge_group(2000), types=["string"], longest=300, with_map=False, outer=False)
def test_unnest_of_several_lists_and_a_map_equals_duckdb(
    shape: Shape, types: list[str], longest: int, with_map: bool, outer: bool
) -> None:
    table = shape.table({"a": "string", "b": "struct"})
    chance = random.Random(shape.seed)
    for number, type in enumerate(types):
        table = table.append_column(f"l{number}", lists_of(type, chance, table.num_rows, longest))
    names = [f"l{number}" for number in range(len(types))]
    lengths, elements = [f"coalesce(len({name}), 0)" for name in names], [f"{name}[n]" for name in names]
    if with_map:
        table = table.append_column("m", map_of(lists_of("int32", chance, table.num_rows, longest)))
        lengths, elements = [*lengths, "coalesce(cardinality(m), 0)"], [*elements, "map_keys(m)[n]", "map_values(m)[n]"]
    count = f"greatest({', '.join(lengths)})::bigint"
    counted = f"unnest(range(1, greatest({count}, {int(outer)}) + 1)) as n"
    sql = f"""with u as (select *, {count} as longest, {counted} from t)
        select a, b, p, {", ".join(elements)}, case when n <= longest then n else 0 end from u order by p, n"""
    wanted = asked(sql, t=table)
    config = Unnest((*names, "m") if with_map else tuple(names), ordinality="n", outer=outer)
    for size in sizes(shape):
        assert plain(run(config, shape.cut(table), size=size).table) == wanted


def map_of(lists: pa.Array) -> pa.Array:
    """A map from the position of each element to it."""
    entries = [None if found is None else list(enumerate(found)) for found in lists.to_pylist()]
    return pa.array(entries, pa.map_(pa.int32(), pa.int32()))
