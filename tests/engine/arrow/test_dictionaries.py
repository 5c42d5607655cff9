"""Null among the values of a dictionary means null, in every operator that looks at keys or values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.arrow.dictionaries import PlainNulls, plain_nulls

TEXTS = ["a", None, "b", "a", None]
NUMBERS = pa.array(range(5))
PLAIN = pa.table({"k": pa.array(TEXTS), "i": NUMBERS})
CODED = pa.table({"k": pa.array(TEXTS).dictionary_encode(null_encoding="encode"), "i": NUMBERS})

Given = Callable[[pa.Table], ps.Stream]
Use = Callable[[Given, pa.Table], ps.Stream]


def right(table: pa.Table) -> pa.Table:
    return table.rename_columns(["k", "j"]).slice(0, 4)


def by_key(table: pa.Table) -> pa.Table:
    """In the order of the keys, nulls last."""
    return table.take(pa.array([0, 3, 2, 1, 4]))


def same(records: pa.RecordBatch) -> pa.RecordBatch:
    return records


def hash_join(how: str, **options: str) -> Use:
    return lambda given, table: given(table).hash_join(given(right(table)), ["k"], how=how, **options)  # type: ignore[arg-type]


def merge_join(how: str) -> Use:
    return lambda given, table: given(by_key(table)).merge_join(given(by_key(table).rename_columns(["k", "j"])), ["k"],
                                                                how=how)  # fmt: skip


def lookup_join(how: str) -> Use:
    return lambda given, table: given(table).lookup_join(ps.index.memory(right(table), key="k"), "k", how=how)


USES: dict[str, Use] = {
    **{f"hash join {how}": hash_join(how) for how in ("inner", "left", "right", "full", "left semi", "anti")},
    "hash join by key": hash_join("inner", exchange="key"),
    **{f"merge join {how}": merge_join(how) for how in ("inner", "left", "full", "anti")},
    **{f"lookup join {how}": lookup_join(how) for how in ("inner", "left")},
    "aggregate": lambda given, table: given(table).aggregate(["k"], n="count"),
    "aggregate by key": lambda given, table: given(table).aggregate(["k"], exchange="key", n="count"),
    "aggregate without null keys": lambda given, table: given(table).aggregate(["k"], ignore_null_keys=True, n="count"),
    "stream aggregate": lambda given, table: given(by_key(table)).stream_aggregate(["k"], n="count"),
    "counts": lambda given, table: given(table).aggregate([], n=("k", "count"), d=("k", "count_distinct")),
    "extremes": lambda given, table: given(table).aggregate([], low=("k", "min"), high=("k", "max")),
    "sort": lambda given, table: given(table).sort("k", "i"),
    "sort nulls first": lambda given, table: given(table).sort(ps.SortKey("k", nulls_first=True), "i"),
    "top n": lambda given, table: given(table).top_n(3, "k", "i"),
    "window": lambda given, table: given(table).window(["k"], ["i"], r="row_number", before=("k", "lag")),
    "distinct": lambda given, table: given(table).distinct("k"),
    "mark distinct": lambda given, table: given(table).mark_distinct("k", marker="first"),
    "partition": lambda given, table: given(table).partition_by("k"),
    "partition by range": lambda given, table: given(table).partition_by_range("k", ["b"]),
    "is null": lambda given, table: given(table).filter(ps.field("k").is_null()),
    "equal": lambda given, table: given(table).filter("k = 'a'"),
    "is null in SQL": lambda given, table: given(table).filter("k is null"),
    "coalesce": lambda given, table: given(table).project(c="coalesce(k, 'z')"),
    "function": lambda given, table: given(table).map_batches(same, table.schema).filter("k is null"),
    "union": lambda given, table: given(table).union(given(table)).filter("k is null"),
}


def rows(use: Use, table: pa.Table) -> list[dict[str, object]]:
    flow = ps.Flow("nulls")
    use(lambda each: flow.from_tables([each]), table).collect("out")
    found: list[dict[str, object]] = ps.run_local(flow).wait(30).result("out").to_pylist()
    return found


@pytest.mark.parametrize("use", USES)
def test_null_in_a_dictionary_is_null_in_every_operator(use: str) -> None:
    assert rows(USES[use], CODED) == rows(USES[use], PLAIN)


def coded(records: pa.RecordBatch) -> pa.RecordBatch:
    """A user's function that gives such a column."""
    return pa.RecordBatch.from_arrays(
        [records.column("k").dictionary_encode(null_encoding="encode"), records.column("i")], names=["k", "i"]
    )


def test_a_users_function_may_give_such_a_column() -> None:
    def use(given: Given, table: pa.Table) -> ps.Stream:
        return given(table).map_batches(coded, CODED.schema).filter("k is null")

    assert [row["i"] for row in rows(use, PLAIN)] == [1, 4]


def test_such_a_column_is_written_and_survives_a_spill(tmp_path: Path) -> None:
    flow = ps.Flow("written")
    flow.from_tables([CODED]).sort("k", "i").write_parquet(tmp_path / "out")
    ps.run_local(flow, checkpoints=tmp_path / "state", memory_budget=1).wait(30)
    assert pq.read_table(tmp_path / "out").column("k").to_pylist() == ["a", "a", "b", None, None]


@pytest.mark.parametrize("index_type", [pa.int8(), pa.uint16(), pa.int64()])
def test_types_and_values_stay(index_type: pa.DataType) -> None:
    indices = pa.array([0, 1, None, 2, 1], index_type)
    column = pa.DictionaryArray.from_arrays(indices, pa.array([None, "x", "y"]), ordered=True).slice(1)
    made = plain_nulls(column)
    made.validate(full=True)
    assert made.type == column.type
    assert made.to_pylist() == column.to_pylist()
    assert (made.null_count, made.dictionary.null_count) == (1, 0)


def test_what_has_none_stays_the_same_object() -> None:
    records = PLAIN.to_batches()[0]
    assert PlainNulls(records.schema).of(records) is records
    coded = pa.record_batch({"k": pa.array(TEXTS).dictionary_encode()})
    assert PlainNulls(coded.schema).of(coded) is coded
