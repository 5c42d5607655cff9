"""The index in memory: built once per process, whoever uses it; found by search or by hash."""

from __future__ import annotations

import pickle
from threading import Thread

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.core.errors import FlowError
from penstock.engine.flow import index

TABLE = pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3]})


def test_memory_index_is_built_once_for_all_copies_of_its_config_in_a_process() -> None:
    config = index.memory(TABLE, "k")
    copy = pickle.loads(pickle.dumps(config))
    opened = config.open()
    assert copy == config
    assert copy.open() is opened
    assert index.memory(TABLE, "k").open() is not opened


def test_memory_index_opened_by_several_threads_at_once_is_one() -> None:
    config = index.memory(TABLE, "k")
    opened: list[index.OpenMemoryIndex] = []
    threads = [Thread(target=lambda: opened.append(config.open())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in opened}) == 1


@pytest.mark.parametrize("probes", [10, 20_000])
def test_large_vocabularies_are_found_by_search_and_small_ones_by_hash(probes: int) -> None:
    """10 keys against 30,000 strings are searched for, 20,000 are hashed: the same answers."""
    names = np.array([f"name {number:06}" for number in range(30_000)])
    found = index.memory(pa.table({"k": names, "v": range(30_000)}), "k").open()
    rng = np.random.default_rng(7)
    wanted = rng.integers(0, 60_000, probes)
    keys = pa.array([f"name {number:06}" if number < 30_000 else f"nobody {number}" for number in wanted])
    matches = found.lookup(pa.record_batch({"k": keys})).matches
    rows = np.arange(30_000) if matches.rows is None else matches.rows
    assert matches.counts.tolist() == [int(number < 30_000) for number in wanted]
    hits = wanted < 30_000
    assert rows[matches.first[hits]].tolist() == wanted[hits].tolist()


def test_memory_index_takes_chunked_tables_and_record_batches() -> None:
    chunked = pa.concat_tables([TABLE, TABLE])
    for table, expected in ((chunked, 4), (TABLE.to_batches()[0], 2)):
        matches = index.memory(table, "k").open().lookup(pa.record_batch({"k": ["a", "z"]})).matches
        assert matches.counts.tolist() == [expected, 0]


def test_memory_index_describes_its_key_and_columns_but_not_its_rows() -> None:
    config = index.memory(TABLE, "k")
    assert config.describe() == "index in memory by k with k, v"
    assert "1" not in repr(config).replace(config.identity, "")


def test_fingerprint_of_a_memory_index_is_of_its_rows_however_they_are_cut() -> None:
    longer = pa.concat_tables([TABLE, TABLE])
    cut = pa.concat_tables([longer.slice(0, 2), longer.slice(2)])
    same = [index.memory(each, "k").fingerprint() for each in (longer, cut, cut.combine_chunks())]
    assert len(set(same)) == 1
    others = [
        TABLE,
        longer.take([1, 0, 2, 3, 4, 5]),
        longer.set_column(1, "v", [[1, 2, 3, 1, 2, 9]]),
        TABLE.slice(0, 0),
    ]
    assert len({same[0], *(index.memory(each, "k").fingerprint() for each in others)}) == 5


@pytest.mark.parametrize(
    "numbers",
    [
        np.array([-(2**63), 2**63 - 1, 0, -1]),
        np.arange(2**63 - 1000, 2**63 - 1),
        np.arange(-(2**63), -(2**63) + 1000),
        np.random.default_rng(3).permutation(200_000) * 1_000_003,
        np.array([5, 5, 5, 9]),
    ],
    ids=["wide", "dense above", "dense below", "many sparse", "repeated"],
)
def test_numbers_are_found_by_table_or_by_search_up_to_the_ends_of_their_range(numbers: np.ndarray) -> None:
    opened = index.memory(pa.table({"k": numbers}), "k").open()
    probe = np.concatenate([numbers[:300], [0, -5, 2**63 - 1, -(2**63), 7]])
    found = opened.lookup(pa.record_batch({"k": probe})).matches
    assert found.counts.tolist() == [int((numbers == key).sum()) for key in probe]
    rows = np.arange(len(numbers)) if found.rows is None else found.rows
    hits = np.flatnonzero(found.counts)
    assert (numbers[rows[found.first[hits]]] == probe[hits]).all()


@pytest.mark.parametrize(
    ("table", "key", "message"),
    [
        (TABLE, "nope", "memory index: its table has no column 'nope'(.|\n)*k, v"),
        (TABLE, [], "no key is given"),
        (TABLE, ["k", "k"], "'k' is given twice"),
        (pa.table({"k": pa.nulls(1, pa.month_day_nano_interval())}), "k", "column 'k' of type month.* cannot be a key"),
        (pa.table([[1], [2]], names=["k", "k"]), "k", "stands 2 times"),
    ],
)
def test_memory_index_refuses_a_table_it_cannot_index(table: pa.Table, key: str | list[str], message: str) -> None:
    with pytest.raises(FlowError, match=message):
        index.memory(table, key)
