"""The index over Parquet files: which row groups it reads, how much it keeps, and files that change."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.engine.core.errors import ConfigurationError, DataError, FlowError
from penstock.engine.flow import index
from penstock.engine.indexes.bounds import Bounds, candidates
from penstock.engine.indexes.cache import Cache
from support.key_types import KEY_TYPES, key_column

ROWS = 1000
TABLE = pa.table({"k": range(ROWS), "m": [n % 10 for n in range(ROWS)], "v": [f"v{n}" for n in range(ROWS)]})


def opened_with(path: Path, table: pa.Table = TABLE, key: Any = "k", **options: Any) -> index.OpenParquetIndex:
    parquet.write_table(table, path, row_group_size=100)
    return index.parquet(path, key, **options).open()


def groups_read(opened: index.OpenParquetIndex) -> list[tuple[int, str]]:
    return sorted(opened._cache._held)


def test_only_row_groups_that_can_hold_a_key_are_read(tmp_path: Path) -> None:
    opened = opened_with(tmp_path / "sorted.parquet")
    found = opened.lookup(pa.record_batch({"k": [350, 720, 399, 5000, -1]}))
    assert sorted(found.records.column("v").to_pylist()) == ["v350", "v399", "v720"]
    assert groups_read(opened) == [(3, "key"), (3, "rows"), (7, "key"), (7, "rows")]


def test_other_columns_are_read_only_where_a_key_is(tmp_path: Path) -> None:
    sparse = TABLE.set_column(0, "k", pa.array(range(0, 2 * ROWS, 2)))
    opened = opened_with(tmp_path / "sparse.parquet", sparse)
    assert opened.lookup(pa.record_batch({"k": [301, 1200]})).matches.counts.tolist() == [0, 1]
    assert groups_read(opened) == [(1, "key"), (6, "key"), (6, "rows")]


def test_any_key_column_can_rule_a_row_group_out(tmp_path: Path) -> None:
    opened = opened_with(tmp_path / "two.parquet", key=["m", "k"])
    keys = pa.record_batch({"m": [3, 4], "k": pa.array([203, 904])})
    assert opened.lookup(keys).matches.counts.tolist() == [1, 1]
    assert groups_read(opened) == [(2, "key"), (2, "rows"), (9, "key"), (9, "rows")]


def test_what_was_read_is_kept_within_its_bound(tmp_path: Path) -> None:
    everything = opened_with(tmp_path / "a.parquet")
    keys = pa.record_batch({"k": range(ROWS)})
    whole = everything.lookup(keys)
    assert len(groups_read(everything)) == 20
    one_group = everything._cache.nbytes // 10
    little = opened_with(tmp_path / "b.parquet", cache_bytes=3 * one_group)
    for _ in range(3):
        assert little.lookup(keys).records.equals(whole.records)
        assert 0 < little._cache.nbytes <= 3 * one_group
    assert groups_read(little)[-1] == (9, "rows"), "what was used last is kept"
    little.close()
    assert little._cache.nbytes == 0


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    opened = opened_with(tmp_path / "some.parquet", columns=["v", "k"])
    assert opened.lookup(pa.record_batch({"k": [7]})).records.to_pylist() == [{"v": "v7", "k": 7}]


@pytest.mark.parametrize("key_type", KEY_TYPES)
@pytest.mark.parametrize("statistics", [True, False])
def test_bounds_never_rule_out_a_group_that_holds_a_key(key_type: str, statistics: bool, tmp_path: Path) -> None:
    numbers = [[0, 1], [None, None], [2, None], [5, 3], [4, 4], [0, 5]]
    column = pa.chunked_array([key_column(key_type, each) for each in numbers])
    parquet.write_table(pa.table({"k": column}), tmp_path / "f", row_group_size=2, write_statistics=statistics)
    metadata = parquet.read_metadata(tmp_path / "f")
    groups = [metadata.row_group(number) for number in range(6)]
    type = metadata.schema.to_arrow_schema().field(0).type
    bounds = Bounds.of(groups, "k", type)
    for wanted in range(6):
        keys = pa.RecordBatch.from_arrays([key_column(key_type, [wanted]).cast(type)], ["k"])
        found = {group for group, _ in candidates([bounds], keys)} if keys.column(0).null_count == 0 else set()
        value = keys.column(0).to_pylist()[0]
        holding = {n for n, each in enumerate(column.chunks) if value is not None and value in each.to_pylist()}
        assert holding <= found or value is None
        if statistics and key_type not in ("null", "double", "float"):
            assert 1 not in found, "nothing but nulls"
            if key_type in ("int64", "string", "decimal", "date", "timestamp"):
                assert found == holding | ({5} if 0 <= wanted <= 5 else set()) | ({3} if wanted == 4 else set())


def test_keys_are_tried_only_in_groups_whose_range_they_fall_into(tmp_path: Path) -> None:
    parquet.write_table(TABLE, tmp_path / "f", row_group_size=100)
    metadata = parquet.read_metadata(tmp_path / "f")
    bounds = Bounds.of([metadata.row_group(number) for number in range(10)], "k", pa.int64())
    tried = dict(candidates([bounds], pa.record_batch({"k": [950, 20, 930, 10, 500]})))
    assert {group: None if rows is None else rows.tolist() for group, rows in tried.items()} == {
        0: [1, 3], 5: [4], 9: [0, 2]
    }  # fmt: skip
    whole = dict(candidates([bounds], pa.record_batch({"k": [301, 399]})))
    assert whole == {3: None}


def test_nanoseconds_are_compared_to_the_last_digit(tmp_path: Path) -> None:
    for type in (pa.timestamp("ns"), pa.time64("ns")):
        times = pa.array(np.arange(ROWS) * 7 + 1001).view(type)
        opened = opened_with(tmp_path / "times.parquet", TABLE.set_column(0, "k", times))
        keys = pa.RecordBatch.from_arrays([times.take(pa.array([99, 100, 999]))], ["k"])
        assert opened.lookup(keys).records.column("v").to_pylist() == ["v99", "v100", "v999"]
        assert {group for group, _ in groups_read(opened)} == {0, 1, 9}


def test_fingerprint_knows_names_and_content_but_not_the_place(tmp_path: Path) -> None:
    def written(folder: str, name: str, table: pa.Table) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        parquet.write_table(table, tmp_path / folder / name)
        return index.parquet(tmp_path / folder, "k").fingerprint()

    first = written("one", "a.parquet", TABLE)
    shutil.copytree(tmp_path / "one", tmp_path / "moved")
    assert index.parquet(tmp_path / "moved", "k").fingerprint() == first
    other = TABLE.set_column(1, "m", pa.array([n % 11 for n in range(ROWS)]))
    assert len({first, written("two", "a.parquet", other), written("three", "b.parquet", TABLE)}) == 3


@pytest.mark.parametrize(("change", "error"), [("other", DataError), ("gone", DataError), ("cut", DataError)])
@pytest.mark.parametrize("when", ["before it is opened", "while it is used"])
def test_files_that_change_under_a_job_are_refused(
    change: str, error: type[Exception], when: str, tmp_path: Path
) -> None:
    path = tmp_path / "f.parquet"
    parquet.write_table(TABLE, path, row_group_size=100)
    config = index.parquet(path, "k")
    opened = config.open()

    def use() -> None:
        later = opened if when == "while it is used" else config.open()
        later.lookup(pa.record_batch({"k": [5]}))

    changes: dict[str, Callable[[], object]] = {
        "other": lambda: parquet.write_table(TABLE.slice(1), path),
        "gone": path.unlink,
        "cut": lambda: path.write_bytes(path.read_bytes()[:-10]),
    }
    changes[change]()
    with pytest.raises(error, match=r"f\.parquet"):
        use()


@pytest.mark.parametrize("same_time", [True, False])
def test_same_size_but_another_footer_is_found_when_the_index_is_opened(tmp_path: Path, same_time: bool) -> None:
    path = tmp_path / "f.parquet"
    for first in (10, 20):
        table = pa.table({"k": pa.array([first, 30, 40], pa.int64())})
        parquet.write_table(table, path, compression=None, use_dictionary=False)
        if first == 10:
            config = index.parquet(path, "k")
    assert path.stat().st_size == config.files[0].size
    if same_time:
        os.utime(path, ns=(0, config.files[0].modified))
    said = "is not the file that it was" if same_time else "has other content than"
    with pytest.raises(DataError, match=f"{said} when the job was planned"):
        config.open()


@pytest.mark.parametrize(
    ("table", "options", "error", "message"),
    [
        (TABLE, {"key": "nope"}, FlowError, "no column 'nope'(.|\n)*k, m, v"),
        (TABLE, {"key": "k", "columns": ["v"]}, FlowError, "no column 'k'"),
        (TABLE, {"key": "k", "columns": ["k", "w"]}, FlowError, "no column 'w'"),
        (TABLE, {"key": []}, FlowError, "no key is given"),
        (TABLE, {"key": "k", "cache_bytes": -1}, ConfigurationError, "cache_bytes is -1"),
        (TABLE, {"key": ["k", "k"]}, FlowError, "'k' is given twice"),
    ],
)
def test_parquet_index_refuses_what_it_cannot_index(
    table: pa.Table, options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        opened_with(tmp_path / "f.parquet", table, **options)


def test_files_of_one_index_must_have_the_same_columns(tmp_path: Path) -> None:
    parquet.write_table(TABLE, tmp_path / "a.parquet")
    parquet.write_table(TABLE.set_column(0, "k", TABLE.column("k").cast(pa.string())), tmp_path / "b.parquet")
    with pytest.raises(FlowError, match=r"column 'k' is string in .*b\.parquet and int64 in"):
        index.parquet(tmp_path, "k")


# ---------------------------------------------------------------------- the cache alone


def test_cache_reads_once_what_several_threads_want_at_once() -> None:
    cache, entered, go_on = Cache(100), Event(), Event()
    reads: list[int] = []

    def read() -> tuple[str, int]:
        reads.append(1)
        entered.set()
        assert go_on.wait(10)
        return "value", 10

    with ThreadPoolExecutor(3) as pool:
        wanted = [pool.submit(cache.get, "key", read) for _ in range(3)]
        assert entered.wait(10)
        go_on.set()
        assert [each.result(10) for each in wanted] == ["value"] * 3
    assert reads == [1]


def test_cache_lets_whoever_waited_try_again_when_a_read_failed() -> None:
    cache, entered, go_on = Cache(100), Event(), Event()

    def fail() -> tuple[str, int]:
        entered.set()
        assert go_on.wait(10)
        raise OSError("no")

    with ThreadPoolExecutor(2) as pool:
        failing = pool.submit(cache.get, "key", fail)
        assert entered.wait(10)
        waiting = pool.submit(cache.get, "key", lambda: ("value", 1))
        go_on.set()
        with pytest.raises(OSError, match="no"):
            failing.result(10)
        assert waiting.result(10) == "value"
    assert cache.nbytes == 1


def test_cache_drops_what_was_not_used_for_longest_and_keeps_one_that_is_too_large() -> None:
    cache = Cache(10)
    for name in ("a", "b"):
        cache.get(name, lambda: (0, 4))
    cache.get("a", lambda: (1, 4))
    cache.get("c", lambda: (0, 4))
    assert (list(cache._held), cache.nbytes) == (["a", "c"], 8)
    cache.get("large", lambda: (0, 50))
    assert (list(cache._held), cache.nbytes) == (["large"], 50)
