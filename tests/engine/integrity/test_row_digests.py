"""The number that stands for rows: equal for the same rows in any layout and order, another one for others."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.engine.arrow.days import whole_days
from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.core.operator import OperatorContext
from penstock.engine.integrity.lane_digests import DIGEST, DIGESTED, digested
from penstock.engine.integrity.row_digests import MODULUS, VERSION, RowDigest
from penstock.engine.runtime.operator_chain import with_carried
from penstock.engine.sinks.collect import CollectSink
from penstock.engine.sinks.file_writer import stored_schema
from penstock.engine.sinks.lane_counts import LaneCounts
from support.random_tables import TYPES, random_table

NAN = float("nan")


def of(table: pa.Table, stored: pa.Schema | None = None) -> int:
    return sum(map(RowDigest(table.schema, stored).of, table.to_batches())) % MODULUS


def column(values: Any, type: pa.DataType | None = None, name: str = "x") -> int:
    return of(pa.table({name: pa.array(values, type)}))


def test_order_and_batches_do_not_matter() -> None:
    table = pa.table({"x": range(100), "s": [str(each) for each in range(100)]})
    pieces = [table.slice(50), table.slice(0, 7), table.slice(7, 43)]
    assert of(pa.concat_tables(pieces)) == of(table)


def test_other_rows_have_another_digest() -> None:
    known = [[1, 2, 3], [1, 2, 4], [1, 1, 3], [2, 2, 3], [1, 2, None], [0, 0, 0], [0, 0, None], [None] * 3]
    assert len({column(each, pa.int64()) for each in known}) == len(known)


def test_pairs_do_not_cancel_out() -> None:
    assert column([1, 1, 2, 2]) != column([3, 3, 2, 2])


def test_values_that_changed_rows_or_columns_are_seen() -> None:
    rows = pa.table({"a": [1, 2], "b": [3, 4]})
    assert of(rows) != of(pa.table({"a": [1, 2], "b": [4, 3]}))
    assert of(rows) != of(pa.table({"a": [3, 4], "b": [1, 2]}))
    assert of(rows) != of(rows.rename_columns(["b", "a"]))


def test_units_and_types_are_part_of_a_value() -> None:
    numbers = pa.array([1, 2])
    types = (pa.int64(), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.duration("ms"))
    assert len({column(numbers.view(type)) for type in types}) == len(types)
    assert column([Decimal("1.5")]) != column([Decimal("0.15")])
    assert column([True, False]) != column([1, 0])


def test_every_nan_is_one_and_zero_has_no_sign() -> None:
    assert column([NAN, 0.0]) == column([-NAN, -0.0])
    assert column([NAN]) != column([None], pa.float64())


def test_layout_is_not_part_of_a_value() -> None:
    words = pa.array(["a", None, "b", "a"])
    for other in (words.dictionary_encode(), words.cast(pa.large_string()), words.cast(pa.string_view())):
        assert column(other) == column(words)
    lists = pa.array([["a"], None, []])
    assert column(lists.cast(pa.large_list(pa.string()))) == column(lists)


@pytest.mark.parametrize("name", TYPES)
def test_what_comes_back_from_parquet_has_the_digest_of_what_went_in(name: str) -> None:
    table = random_table(Random(name), 60).select([name])
    file = pa.BufferOutputStream()
    parquet.write_table(table, file)
    assert of(table, stored_schema(table.schema)) == of(parquet.read_table(pa.BufferReader(file.getvalue())))


def test_dates_in_milliseconds_are_digested_as_they_are_stored() -> None:
    given = pa.array([1000, 3 * 86_400_000 + 5, -5]).view(pa.date64())
    table, file = pa.table({"x": given}), pa.BufferOutputStream()
    parquet.write_table(pa.table({"x": whole_days(given, "x")}), file)
    assert of(table, stored_schema(table.schema)) == of(parquet.read_table(pa.BufferReader(file.getvalue())))


def test_digests_of_version_1_1_never_change() -> None:
    """Should one change, VERSION must too: states of sinks refer to it."""
    assert VERSION == "1.1"
    table = pa.table({"n": [1, None, -1], "s": ["", "a", None], "f": [NAN, -0.0, 1.5]})
    assert f"{of(table):016x}" == "2d881cd36b3ac78a"


def test_unions_count_as_their_values_not_as_their_layout() -> None:
    codes = pa.array([0, 1], pa.int8())
    sparse = pa.UnionArray.from_sparse(codes, [pa.array([1, 7]), pa.array(["x", "a"])])
    dense = pa.UnionArray.from_dense(codes, pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["a"])])
    other = pa.UnionArray.from_dense(codes, pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["b"])])
    lists = [pa.table({"v": pa.ListArray.from_arrays([0, 2], union)}) for union in (sparse, dense, other)]
    assert of(pa.table({"u": sparse})) == of(pa.table({"u": dense})) != of(pa.table({"u": other}))
    assert of(lists[0]) == of(lists[1]) != of(lists[2])


def test_state_digests_lanes_across_restores_and_tasks_that_did_not() -> None:
    rows = pa.record_batch({"x": [1, 2, 3]})
    digest = RowDigest(rows.schema)
    first = LaneCounts(digest=digest)
    first.take(3, rows.slice(0, 1))
    second = LaneCounts(first.snapshot(), digest)
    second.take(3, rows.slice(1, 1))
    second.take(1, rows.slice(2))
    assert digested(second.snapshot()) == (3, digest.of(rows))
    plain = LaneCounts()
    plain.take(5, rows)
    mixed = pa.concat_tables([second.snapshot(), plain.snapshot()], promote_options="default")
    assert digested(mixed) == (3, digest.of(rows))
    assert digested(LaneCounts(mixed, digest).snapshot()) == (3, digest.of(rows))
    assert digested(with_carried(second.snapshot(), plain.snapshot())) == (3, digest.of(rows))
    forgotten = LaneCounts(mixed).snapshot()
    assert forgotten is not None
    assert {DIGEST, DIGESTED}.isdisjoint(forgotten.column_names)
    assert digested(forgotten) == digested(None) == (0, 0)


@pytest.mark.parametrize(("content", "known"), [(True, 2), (False, 0)])
def test_sink_digests_if_its_context_says_so(content: bool, known: int) -> None:
    records = pa.record_batch({"x": [1, 2]})
    context = OperatorContext("c", TaskId("s", 0), Attempt(1, 1), 1, range(1), "digests", content=content)
    sink = CollectSink("c").build(context, [records.schema], None)
    sink.process(0, Batch(records, Tag(0, 0, 0)), _Nowhere())
    assert digested(sink.snapshot())[0] == known


class _Nowhere:
    def emit(self, batch: Batch) -> None:
        raise AssertionError("a sink has no output")
