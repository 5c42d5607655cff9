"""Hash aggregation, against DuckDB: one step or two, any batch size and key type, restored, drained at barriers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.core.operator import exhaust
from penstock.engine.kernels.pieces import PIECE_ROWS
from penstock.engine.operators import Aggregate, HashAggregate, SortKey
from penstock.engine.operators.aggregate import spilled_groups
from support.key_types import KEY_TYPES, key_column
from support.operator_harness import SIZES, Collected, context, rows_of, run
from support.operator_windows import windows_of
from support.oracle import numbered, query

SKETCHES = ("median", "quantile_disc(0.7)", "approx_count_distinct", "approx_quantile(0.5)")
NAMES = ("count", "sum", "min", "max", "mean", "first", "last", "count_distinct", "collect_list", *SKETCHES, "variance")
ALL = (Aggregate("rows", None, "count"), *(Aggregate(name, "v", name) for name in NAMES))
SQL = """count(*), count(v), sum(v)::bigint, min(v), max(v), avg(v), first(v order by p), last(v order by p),
         count(distinct v), list(v order by p), median(v), quantile_disc(v, 0.7), count(distinct v),
         quantile_disc(v, 0.5)::double, round(var_samp(v), 6)"""

rows = st.lists(st.tuples(st.none() | st.integers(0, 5), st.none() | st.integers(-9, 9)), max_size=60)


def made_of(given: list[tuple[int | None, int | None]], key_type: str | None = None) -> pa.Table:
    numbers = [key for key, _ in given]
    keys = pa.array(numbers, pa.int64()) if key_type is None else key_column(key_type, numbers)
    return pa.table({"k": keys, "v": pa.array([value for _, value in given], pa.int64())})


def rounded(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The variance, last, to the digits that are asked for."""
    return [(*row[:-1], None if row[-1] is None else repr(round(float(row[-1]), 6))) for row in found]


def by_units(table: pa.Table, lanes: int = 4, rounds: int = 3) -> dict[tuple[int, int], pa.Table]:
    """The rows over rounds and lanes, in their order."""
    share = -(-table.num_rows // (lanes * rounds)) or 1
    units = [(round, lane) for round in range(rounds) for lane in range(lanes)]
    return {unit: table.slice(number * share, share) for number, unit in enumerate(units)}


@pytest.fixture(params=[0, spilled_groups.MERGE_BYTES], ids=["merging always", "merging at the end"])
def merge_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(spilled_groups, "MERGE_BYTES", request.param)
    return int(request.param)


@settings(max_examples=30, deadline=None)
@given(given_rows=rows, size=st.sampled_from(SIZES), merge=st.sampled_from([0, 2**20]))
def test_hash_aggregate_equals_duckdb_in_the_order_of_first_appearance(
    given_rows: list[Any], size: int, merge: int
) -> None:
    table = made_of(given_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilled_groups, "MERGE_BYTES", merge)
        found = run(HashAggregate(("k",), ALL), by_units(table), schemas=[table.schema], size=size)
    sql = f"select k, {SQL} from t group by k order by min(p)"
    assert rounded(rows_of(found.table)) == rounded(query(sql, t=numbered(table)))


@settings(max_examples=25, deadline=None)
@given(given_rows=rows, size=st.sampled_from(SIZES), parallelism=st.sampled_from([1, 2, 4]))
def test_two_steps_equal_one_whatever_the_parallelism_of_the_first(
    given_rows: list[Any], size: int, parallelism: int
) -> None:
    table = made_of(given_rows, "string")
    units = by_units(table)
    plain = tuple(each for each in ALL if not each.resolved.ordered)
    partial = HashAggregate(("k",), plain, step="partial")
    first = run(
        partial, units, schemas=[table.schema], size=size, restore=True, parallelisms=(parallelism, 1, parallelism)
    )
    straight = run(partial, units, schemas=[table.schema])
    assert [(batch.tag, rows_of(batch.records)) for batch in first.batches] == [
        (batch.tag, rows_of(batch.records)) for batch in straight.batches
    ]
    lanes = {(0, batch.tag.lane): pa.table(batch.records) for batch in first.batches}
    final = run(partial.final(table.schema), lanes, schemas=[first.schema])
    single = run(HashAggregate(("k",), plain), units, schemas=[table.schema])
    assert final.schema == single.schema
    assert sorted(map(str, rounded(rows_of(final.table)))) == sorted(map(str, rounded(rows_of(single.table))))


@settings(max_examples=25, deadline=None)
@given(given_rows=rows, size=st.sampled_from(SIZES), parallelisms=st.sampled_from([(1,), (1, 2, 1), (4, 3, 1)]))
def test_a_restored_aggregation_goes_on(given_rows: list[Any], size: int, parallelisms: tuple[int, ...]) -> None:
    """The last round runs in one subtask, which merges what several have found."""
    table = made_of(given_rows, "double")
    units = by_units(table)
    config = HashAggregate(("k",), tuple(each for each in ALL if not each.resolved.ordered))
    restored = run(config, units, schemas=[table.schema], size=size, restore=True, parallelisms=parallelisms)
    straight = run(config, units, schemas=[table.schema])
    shown = (sorted(map(str, rounded(rows_of(each.table)))) for each in (restored, straight))
    assert next(shown) == next(shown)


@pytest.mark.parametrize("key_type", KEY_TYPES)
@pytest.mark.usefixtures("merge_bytes")
def test_hash_aggregate_groups_by_any_key_type_with_null_as_a_group(key_type: str) -> None:
    numbers = [0, 4, None, 0, 5, None, 2, 4, 0]
    table = made_of([(number, place) for place, number in enumerate(numbers)], key_type)
    config = HashAggregate(("k",), (Aggregate("list", "v", "collect_list"),))
    groups: dict[str, list[int]] = {}
    for place, value in enumerate(rows_of(table.select(["k"]))):
        groups.setdefault(str(value[0]), []).append(place)
    for size in (1, 4, 16):
        found = rows_of(run(config, {(0, 0): table}, size=size).table)
        assert {str(key): places for key, places in found} == groups
        assert [places for _, places in found] == list(groups.values())


def test_null_keys_can_be_ignored() -> None:
    table = made_of([(None, -1), (1, 1), (None, -2), (2, 2), (None, -3), (1, 3), (2, 4)])
    aggregates = (Aggregate("s", "v", "sum"),)
    assert rows_of(run(HashAggregate(("k",), aggregates), {(0, 0): table}).table) == [(None, -6), (1, 4), (2, 6)]
    ignoring = HashAggregate(("k",), aggregates, ignore_null_keys=True)
    assert rows_of(run(ignoring, {(0, 0): table}).table) == [(1, 4), (2, 6)]
    assert run(ignoring, {(0, 0): made_of([(None, 1), (None, 2)])}).batches == []


def test_without_keys_there_is_one_row_even_of_no_input() -> None:
    config = HashAggregate((), ALL)
    empty = run(config, {}, schemas=[made_of([]).schema], parallelisms=(3,))
    assert rows_of(empty.table) == [(0, 0, None, None, None, None, None, None, 0, None, None, None, 0, None, None)]
    some = run(config, {(0, 3): made_of([(1, 2), (1, 4)])}, size=1)
    assert rows_of(some.table) == [(2, 2, 6, 2, 4, "3.0", 2, 4, 2, [2, 4], "3.0", 4, 2, "2.0", "2.0")]
    assert run(HashAggregate(("k",), ALL), {}, schemas=[made_of([]).schema]).batches == []


def test_without_keys_two_steps_give_one_row_even_of_no_input() -> None:
    partial = HashAggregate((), (Aggregate("n", None, "count"), Aggregate("s", "v", "sum")), step="partial")
    first = run(partial, {}, schemas=[made_of([]).schema])
    assert first.batches == []
    final = run(partial.final(made_of([]).schema), {}, schemas=[first.schema])
    assert rows_of(final.table) == [(0, None)]


def test_without_keys_and_aggregates_there_is_one_row_without_columns() -> None:
    found = run(HashAggregate((), ()), {(0, 0): made_of([(1, 1)])})
    assert [batch.records.num_rows for batch in found.batches] == [1]
    assert found.schema.names == []


def test_groups_come_once_for_each_barrier_and_state_does_not_leak() -> None:
    config = HashAggregate(("k",), (Aggregate("s", "v", "sum"),))
    windows = [made_of([(1, 10), (1, 20), (2, 30)]), made_of([]), made_of([(1, 50), (3, 60), (3, 70)])]
    assert windows_of(config, windows) == [[(1, 30), (2, 30)], [], [(1, 50), (3, 130)], []]


def test_a_global_aggregate_gives_one_row_for_each_barrier_and_none_for_the_empty_end() -> None:
    config = HashAggregate((), (Aggregate("s", "v", "sum"), Aggregate("d", "k", "count_distinct")))
    windows = [made_of([(1, 10), (1, 20)]), made_of([]), made_of([(1, 50), (3, 60)])]
    assert windows_of(config, windows) == [[(30, 1)], [(None, 0)], [(110, 2)], []]


def test_the_barrier_is_remembered_in_the_snapshot_of_a_global_aggregate() -> None:
    """1. A window is drained. 2. A snapshot is taken and restored. 3. The input ends: no second row."""
    config, source = HashAggregate((), (Aggregate("n", None, "count"),)), made_of([]).schema
    output = Collected(config.output_schema([source]))
    running = config.build(context(), [source], None)
    exhaust(running.process(0, Batch(made_of([(1, 1)]).to_batches()[0], Tag(0, 0, 0)), output))
    exhaust(running.end_round(0, 0, output))
    exhaust(running.drain(output))
    state = running.snapshot()
    assert state is not None
    again = config.build(context(), [source], state)
    exhaust(again.finish(output))
    assert [rows_of(batch.records) for batch in output.batches] == [[(1,)]]
    going_on = config.build(context(), [source], state)
    exhaust(going_on.process(0, Batch(made_of([(1, 1)]).to_batches()[0], Tag(1, 0, 0)), output))
    exhaust(going_on.finish(output))
    assert [rows_of(batch.records) for batch in output.batches] == [[(1,)], [(1,)]]


def test_float_sums_do_not_depend_on_batches_nor_on_when_rows_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [1e16, 1.0, -1e16, 0.1, 0.2, 0.3] * 30
    table = pa.table({"k": [0, 1] * (len(values) // 2), "v": values})
    config = HashAggregate(("k",), (Aggregate("s", "v", "sum"), Aggregate("x", "v", "variance")))
    found = set()
    for merge in (0, 300, 2**20):
        monkeypatch.setattr(spilled_groups, "MERGE_BYTES", merge)
        found |= {str(rows_of(run(config, {(0, 0): table}, size=size).table)) for size in (1, 7, 1024)}
    assert len(found) == 1
    total = 0.0
    for value in values[::2]:
        total += value
    assert repr(total) in found.pop()


def test_many_groups_come_in_pieces_and_one_huge_group_as_one_row() -> None:
    count = PIECE_ROWS + 5
    many = pa.table({"k": [*range(count), *range(count)], "v": range(2 * count)})
    config = HashAggregate(("k",), (Aggregate("s", "v", "sum"),))
    outcome = run(config, {(0, 0): many}, size=50_000)
    assert [batch.records.num_rows for batch in outcome.batches] == [PIECE_ROWS, 5]
    assert outcome.table.column("s").to_pylist() == [2 * key + count for key in range(count)]
    one = pa.table({"k": pa.repeat("x", count), "v": range(count)})
    assert rows_of(run(config, {(0, 0): one}, size=50_000).table) == [("x", count * (count - 1) // 2)]


def test_output_has_the_first_lane_of_the_subtask_and_partial_output_that_of_its_rows() -> None:
    table = made_of([(1, 1), (2, 2)])
    units = {(0, 2): table, (0, 1): table}
    config = HashAggregate(("k",), ALL[:1])
    assert [batch.tag for batch in run(config, units).batches] == [Tag(FINAL_ROUND, 0, 0)]
    partial = run(HashAggregate(("k",), ALL[:1], step="partial"), units)
    assert [batch.tag for batch in partial.batches] == [Tag(FINAL_ROUND, 1, 0), Tag(FINAL_ROUND, 2, 0)]


def test_a_sum_that_does_not_fit_names_the_aggregate() -> None:
    table = pa.table({"k": [1, 1], "v": [2**63 - 1, 1]})
    with pytest.raises(DataError, match=r"s = sum\(v\) does not fit into int64"):
        run(HashAggregate(("k",), (Aggregate("s", "v", "sum"),)), {(0, 0): table})


def test_dictionary_keys_of_different_dictionaries_are_one_key() -> None:
    parts = [pa.array(["b", "a"]).dictionary_encode(), pa.array(["a", "b"]).dictionary_encode()]
    units = {(round, 0): pa.table({"k": part}) for round, part in enumerate(parts)}
    assert rows_of(run(HashAggregate(("k",), ALL[:1]), units).table) == [("b", 2), ("a", 2)]
    assert pc.unique(run(HashAggregate(("k",), ()), units).table.column("k")).to_pylist() == ["b", "a"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (HashAggregate(("nope",), ()), "hash aggregate: its input has no column 'nope'"),
        (HashAggregate(("k", "k"), ()), "'k' is given twice"),
        (HashAggregate(("k",), (Aggregate("n", "v", "sum", where="k"),)), "counts rows where 'k', which is string"),
        (HashAggregate(("k",), (Aggregate("n", "v", "sum", where="x"),)), "has no column 'x'"),
        (HashAggregate(("k",), (Aggregate("n", None, "count", distinct=True),)), "need the values of a column"),
        (HashAggregate(("k",), (Aggregate("n", "v", "sum", order_by=("z",)),)), "has no column 'z'"),
        (HashAggregate(("k",), (Aggregate("n", "k", "variance"),)), "variance cannot be computed of .*string"),
        (HashAggregate(("k",), (Aggregate("n", "k", "sum"),), step="partial"), "sum cannot be computed of .*string"),
        (HashAggregate(("k",), (Aggregate("n", "k", "nope"),)), "unknown function 'nope'(.|\n)*collect_list"),
    ],
)
def test_hash_aggregate_refuses_what_it_cannot_compute(config: HashAggregate, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        config.output_schema([pa.schema([("k", pa.string()), ("v", pa.int64())])])


@pytest.mark.parametrize(
    ("aggregate", "windows", "expected"),
    [
        (Aggregate("a", "c1", "sum"), [[10, 20, 30, 40], [50, 60, 70, 80]], [[100], [260]]),
        (Aggregate("a", "c1", "count_distinct"), [[1, 1, 2, 2], [1, 3, 3, 4]], [[2], [3]]),
        (
            Aggregate("a", "c1", "collect_list", order_by=(SortKey("c1", descending=True),)),
            [[10, 20, 30, 40], [50, 60, 70, 80]],
            [[[40, 30, 20, 10]], [[80, 70, 60, 50]]],
        ),
    ],
)
def test_published_windows_of_global_aggregates(aggregate: Aggregate, windows: list[Any], expected: list[Any]) -> None:
    found = windows_of(HashAggregate((), (aggregate,)), [pa.table({"c1": values}) for values in windows], 3)
    assert [[row[0] for row in window] for window in found] == [*expected, []]
