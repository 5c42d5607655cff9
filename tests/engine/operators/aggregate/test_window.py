"""Window functions over sorted rows, against DuckDB: any batch size, restored at any parallelism, at barriers."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.engine.core.elements import FINAL_ROUND, Tag
from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.operators import SortKey, Window, WindowFunction
from support.operator_harness import SIZES, rows_of, run
from support.operator_windows import windows_of
from support.oracle import query

RUNNING = ("count", "sum", "min", "max")
FUNCTIONS = (
    *(WindowFunction(name, name) for name in ("row_number", "rank", "dense_rank")),
    WindowFunction("before", "lag", "v"),
    WindowFunction("before2", "lag", "t", 2),
    WindowFunction("behind", "lead", "v"),
    WindowFunction("behind3", "lead", "t", 3),
    *(WindowFunction(f"{name}_v", name, "v") for name in RUNNING),
    *(WindowFunction(f"{name}_range", name, "v", frame="range") for name in RUNNING),
    WindowFunction("rows", "count"),
    WindowFunction("least", "min", "t"),
    WindowFunction("most", "max", "t"),
    WindowFunction("floats", "sum", "f"),
    *(WindowFunction(name, name) for name in ("percent_rank", "cume_dist", "ntile(1)", "ntile(3)", "ntile(60)")),
    WindowFunction("mean", "mean", "v"),
    WindowFunction("mean_range", "mean", "f", frame="range"),
)
ROWS = "over (partition by k order by o nulls last, p rows unbounded preceding)"
PEERS = "over (partition by k order by o nulls last)"
PLAIN = "over (partition by k order by o nulls last, p)"
SQL = f"""
    select row_number() {PLAIN}, rank() {PEERS}, dense_rank() {PEERS},
        lag(v) {PLAIN}, lag(t, 2) {PLAIN}, lead(v) {PLAIN}, lead(t, 3) {PLAIN},
        count(v) {ROWS}, sum(v) {ROWS}::bigint, min(v) {ROWS}, max(v) {ROWS},
        count(v) {PEERS}, sum(v) {PEERS}::bigint, min(v) {PEERS}, max(v) {PEERS},
        count(*) {ROWS}, min(t) {ROWS}, max(t) {ROWS}, sum(f) {ROWS},
        percent_rank() {PEERS}, cume_dist() {PEERS}, ntile(1) {PLAIN}, ntile(3) {PLAIN}, ntile(60) {PLAIN},
        avg(v) {ROWS}, avg(f) {PEERS}
    from t order by k nulls last, p
"""

some = st.none() | st.integers(0, 3)
rows = st.lists(
    st.tuples(
        some,
        some,
        st.none() | st.integers(-9, 9),
        st.sampled_from([None, "", "a", "b"]),
        st.sampled_from([0.5, 2.0, None]),
    ),
    max_size=50,
)


def made_of(given: list[tuple[Any, ...]]) -> pa.Table:
    """Sorted rows; ``p`` is their position."""
    types = {"k": pa.int64(), "o": pa.int64(), "v": pa.int64(), "t": pa.string(), "f": pa.float64()}
    in_order = sorted(given, key=lambda row: [(each is None, each or 0) for each in row[:2]])
    columns = [pa.array([row[place] for row in in_order], type) for place, type in enumerate(types.values())]
    table = pa.table(columns, names=list(types))
    return table.append_column("p", pa.array(range(table.num_rows), pa.int64()))


CONFIG = Window(("k",), (SortKey("o"),), FUNCTIONS)


@settings(max_examples=30, deadline=None)
@given(given_rows=rows, size=st.sampled_from(SIZES), cut=st.integers(0, 50))
def test_window_functions_equal_duckdb_over_batches_and_rounds(given_rows: list[Any], size: int, cut: int) -> None:
    table = made_of(given_rows)
    units = {(0, 0): table.slice(0, cut), (1, 0): table.slice(cut)}
    found = run(CONFIG, units, schemas=[table.schema], size=size).table
    assert rows_of(found.drop_columns(table.column_names)) == query(SQL, t=table)
    assert found.select(table.column_names).equals(table)


bounds = st.none() | st.integers(-5, 5) | st.sampled_from((-(2**40), 2**40))


def bound(rows: int | None, end: str) -> str:
    """One end of a frame, in SQL."""
    if rows is None:
        return f"unbounded {end}"
    return "current row" if rows == 0 else f"{abs(rows)} {'preceding' if rows < 0 else 'following'}"


@settings(max_examples=60, deadline=None)
@given(given_rows=rows, size=st.sampled_from(SIZES), start=bounds, end=bounds)
def test_frames_of_rows_equal_duckdb(given_rows: list[Any], size: int, start: int | None, end: int | None) -> None:
    table = made_of(given_rows)
    if start is not None and end is not None and start > end:
        start, end = end, start
    asked = {
        **{f"{name}({column})": (name, column) for name in ("count", "min", "max") for column in "vtf"},
        "sum(v)": ("sum", "v"), "sum(f)": ("sum", "f"), "avg(v)": ("mean", "v"), "avg(f)": ("mean", "f"),
        "first(t)": ("first", "t"), "last(v)": ("last", "v"), "count(*)": ("count", None),
    }  # fmt: skip
    functions = tuple(WindowFunction(f"w{n}", *each, frame=(start, end)) for n, each in enumerate(asked.values()))
    frame = f"rows between {bound(start, 'preceding')} and {bound(end, 'following')}"
    over = f"over (partition by k order by o nulls last, p {frame})"
    columns = ", ".join(f"{each} {over}{'::bigint' if each == 'sum(v)' else ''}" for each in asked)
    sql = f"select {columns} from t order by k nulls last, p"
    found = run(Window(("k",), (SortKey("o"),), functions), {(0, 0): table}, schemas=[table.schema], size=size).table
    assert rows_of(found.drop_columns(table.column_names)) == query(sql, t=table)


@pytest.mark.parametrize("frame", [(-3, 0), (-2, 4), (0, 1), (1, 3), (-4, -2), (-7, None), (None, 2), (None, None)])
def test_sums_of_frames_take_nothing_but_their_rows(frame: tuple[int | None, int | None]) -> None:
    """Neither what is large, infinite or no number beyond a frame, nor rounding on the way there, is seen in it."""
    chance = random.Random(5)
    values = [chance.choice((1e300, math.inf, math.nan, 0.1, 0.3, 1.0)) if n % 9 == 0 else n / 8 for n in range(100)]
    table = pa.table({"v": values})
    config = Window((), (), (WindowFunction("s", "sum", "v", frame=frame),))
    found = run(config, {(0, 0): table}).table.column("s").to_pylist()
    start, end = frame
    for row, one in enumerate(found):
        low = 0 if start is None else max(row + start, 0)
        high = 100 if end is None else max(row + end + 1, 0)
        if values[low:high]:
            assert one == pytest.approx(math.fsum(values[low:high]), rel=1e-14, nan_ok=True)
        else:
            assert one is None


def test_integers_of_a_frame_are_exact_and_so_is_their_mean() -> None:
    table = pa.table({"v": [2**62, 2**62, 2**62, -(2**62), 1]})
    config = Window((), (), (WindowFunction("s", "sum", "v", frame=(-1, 0)), WindowFunction("m", "mean", "v")))
    with pytest.raises(DataError, match=r"s = sum\(v\) \(-1, 0\) does not fit into int64"):
        run(config, {(0, 0): table})
    found = run(config, {(0, 0): table.slice(2)}).table
    assert found.column("s").to_pylist() == [2**62, 0, 1 - 2**62]
    assert found.column("m").to_pylist() == [2.0**62, 0.0, 1 / 3]


@settings(max_examples=20, deadline=None)
@given(
    given_rows=rows,
    size=st.sampled_from(SIZES),
    parallelisms=st.sampled_from([(1,), (2, 1), (4, 3)]),
    share=st.integers(1, 9),
)
def test_open_partitions_are_restored_at_any_parallelism(
    given_rows: list[Any], size: int, parallelisms: tuple[int, ...], share: int
) -> None:
    table = made_of(given_rows)
    units = {(round, lane): table.slice(round * share, share) for round in range(4) for lane in (0, 3)}
    straight = run(CONFIG, units, schemas=[table.schema])
    restored = run(CONFIG, units, schemas=[table.schema], size=size, restore=True, parallelisms=parallelisms)
    assert restored.units == straight.units
    assert [batch.tag for batch in restored.batches] == [batch.tag for batch in straight.batches]


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.sampled_from([1, 2, 300, 700]), max_size=6), seed=st.integers(0, 9))
def test_running_float_sums_are_those_of_a_loop_from_the_first_row_of_each_partition(
    lengths: list[int], seed: int
) -> None:
    keys, values, expected = [], [], []
    for key, length in enumerate(lengths):
        total = 0.0
        for place in range(length):
            value = [1e16, 1.0, -1e16, 0.1, 0.3][(place * 7 + seed) % 5]
            keys.append(key)
            values.append(value)
            total = value if place == 0 else total + value
            expected.append(total)
    table = pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(values, pa.float64())})
    found = run(Window(("k",), (), (WindowFunction("s", "sum", "v"),)), {(0, 0): table}, size=333).table
    assert found.column("s").to_pylist() == expected


def test_partitions_come_when_they_end_and_the_last_one_in_the_final_round() -> None:
    table = pa.table({"k": [1, 1, 2, 2, 3]})
    units = {(0, 1): table.slice(0, 3), (1, 1): table.slice(3), (1, 2): table.slice(0, 1)}
    found = run(Window(("k",), (), (WindowFunction("n", "row_number"),)), units, size=2)
    assert found.units == {
        (0, 1): [(1, 1), (1, 2)], (1, 1): [(2, 1), (2, 2)], (FINAL_ROUND, 1): [(3, 1)], (FINAL_ROUND, 2): [(1, 1)]
    }  # fmt: skip
    assert found.batches[0].tag == Tag(0, 1, 0)


def test_without_partition_keys_a_lane_is_one_partition() -> None:
    table = pa.table({"v": [3, 3, 5]})
    config = Window((), (SortKey("v"),), (WindowFunction("r", "dense_rank"), WindowFunction("s", "sum", "v")))
    assert rows_of(run(config, {(0, 0): table}, size=1).table) == [(3, 1, 3), (3, 1, 6), (5, 2, 11)]


def test_peers_do_not_depend_on_batches() -> None:
    table = pa.table({"p": [1] * 4, "s": [10] * 4})
    for size in (1, 2, 4):
        found = run(Window(("p",), (SortKey("s"),), (WindowFunction("r", "rank"),)), {(0, 0): table}, size=size).table
        assert found.column("r").to_pylist() == [1, 1, 1, 1]


def test_a_partition_key_that_is_an_order_key_too_makes_all_rows_peers() -> None:
    table = pa.table({"k": [2, 1, 2, 1], "s": [4, 3, 2, 1]})
    found = {}
    for order in (["k"], [SortKey("k", descending=True), "s"]):
        flow = ps.Flow("window", lanes=1)
        flow.from_tables([table]).window(["k"], order, r="rank", n=("s", "sum")).collect("out")
        found[len(order)] = rows_of(ps.run_local(flow).wait(60).result("out"))
    assert found == {
        1: [(1, 3, 1, 3), (1, 1, 1, 4), (2, 4, 1, 4), (2, 2, 1, 6)],
        2: [(1, 1, 1, 1), (1, 3, 2, 4), (2, 2, 1, 2), (2, 4, 2, 6)],
    }


def test_a_partition_on_both_sides_of_a_barrier_begins_anew() -> None:
    windows = [pa.table({"k": keys}) for keys in ([1, 1, 2], [2, 2])]
    config = Window(("k",), (), (WindowFunction("n", "row_number"),))
    assert windows_of(config, windows, 1) == [[(1, 1), (1, 2), (2, 1)], [(2, 1), (2, 2)], []]


def test_rows_that_are_not_sorted_are_an_error_of_the_data() -> None:
    table = pa.table({"k": [1, 1, 2], "v": [2, 1, 0]})
    with pytest.raises(DataError, match="not sorted by v within a partition"):
        run(Window(("k",), (SortKey("v"),), (WindowFunction("n", "row_number"),)), {(0, 0): table})
    found = run(Window(("k",), (SortKey("v", True),), (WindowFunction("n", "row_number"),)), {(0, 0): table}).table
    assert found.column("n").to_pylist() == [1, 2, 1]


def test_a_running_sum_that_does_not_fit_is_an_error_and_one_that_comes_back_is_not_wrong() -> None:
    config = Window((), (), (WindowFunction("s", "sum", "v"),))
    with pytest.raises(DataError, match=r"s = sum\(v\) does not fit into int64"):
        run(config, {(0, 0): pa.table({"v": [2**63 - 1, 1]})})
    found = run(config, {(0, 0): pa.table({"v": [2**62, -(2**62), 2**63 - 1]})}).table
    assert found.column("s").to_pylist() == [2**62, 0, 2**63 - 1]


def test_extremes_of_decimals_and_shifts_of_nested_values() -> None:
    table = pa.table({"d": [Decimal("1.5"), None, Decimal("-2.5"), Decimal("0.5")], "l": [[1], [2], None, []]})
    functions = (
        WindowFunction("least", "min", "d"), WindowFunction("most", "max", "d"), WindowFunction("before", "lag", "l"),
        WindowFunction("same", "lag", "l", 0), WindowFunction("far", "lead", "l", 2**40),
    )  # fmt: skip
    found = run(Window((), (), functions), {(0, 0): table}, size=2).table.to_pydict()
    assert [str(each) for each in found["least"]] == ["1.5", "1.5", "-2.5", "-2.5"]
    assert [str(each) for each in found["most"]] == ["1.5"] * 4
    assert (found["before"], found["same"], found["far"]) == ([None, [1], [2], None], [[1], [2], None, []], [None] * 4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Window(("k", "k"), (), ()), "partition key 'k' is given twice"),
        (Window(("k",), (SortKey("o"), SortKey("o")), ()), "key 'o' is given twice"),
        (Window((), (), (WindowFunction("x", "lag", "v", -1),)), "negative offset -1"),
        (Window((), (), (WindowFunction("x", "ntile"),)), "unknown function 'ntile'"),
        (Window((), (), (WindowFunction("x", "ntile(0)"),)), "unknown function 'ntile.0"),
        (Window((), (), (WindowFunction("x", "count", frame=(1, -1)),)), "a frame that ends before it begins"),
        (Window((), (), (WindowFunction("x", "mean", "t"),)), "mean cannot be computed of .*string"),
        (Window((), (), (WindowFunction("x", "sum"),)), "'x' needs a column"),
        (Window((), (), (WindowFunction("x", "sum", "t"),)), "sum cannot be computed of .*string"),
        (Window((), (), (WindowFunction("v", "rank"),)), "two columns named 'v'"),
    ],
)
def test_window_refuses_what_makes_no_sense(config: Window, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        config.output_schema([made_of([]).schema])
