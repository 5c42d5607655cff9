"""Drawn splits: each pass has every row once, in an order of its own, from wherever one begins to read."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.engine.core.errors import DataError, StorageError
from penstock.engine.core.traits import SplitDraws
from penstock.engine.plan.sizes import batch_bytes
from penstock.engine.planner.memory_bound import memory_bound
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.sources.drawn_splits import DrawnSplits
from penstock.engine.sources.memory import MemorySplit
from penstock.engine.sources.repeated import again


def splits_of(rows: list[int]) -> list[MemorySplit]:
    """Rows that are numbered over all splits."""
    found, first = [], 0
    for number, count in enumerate(rows):
        found.append(MemorySplit(f"s/{number}", pa.table({"n": pa.array(range(first, first + count), pa.int64())})))
        first += count
    return found


def read(split, start: int = 0) -> list[int]:
    return [n for records in split.open(start) for n in records.column("n").to_pylist()]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(0, 40), max_size=12),
    seed=st.integers(0, 3),
    lanes=st.integers(1, 5),
    interleave=st.integers(1, 6),
    turn=st.integers(1, 30),
    epoch=st.integers(0, 2),
    chance=st.randoms(use_true_random=False),
)
def test_a_pass_has_every_row_once_from_any_row_on(rows, seed, lanes, interleave, turn, epoch, chance) -> None:
    drawn = DrawnSplits("source", splits_of(rows), SplitDraws(seed, 0, interleave, 100), lanes, turn)
    segments = [again(split, epoch) for split in drawn.segments()]
    found = [read(segment) for segment in segments]
    assert sorted(n for each in found for n in each) == list(range(sum(rows)))
    assert [len(each) for each in found] == [segment.rows for segment in drawn.segments()]
    assert max(map(len, found), default=0) - min(map(len, found), default=0) <= 1
    later = pickle.loads(
        pickle.dumps(DrawnSplits("source", splits_of(rows), SplitDraws(seed, epoch, interleave, 9), lanes, turn))
    )
    for segment, same, all_rows in zip(segments, later.segments(), found, strict=True):
        start = chance.randint(0, len(all_rows))
        assert read(segment, start) == all_rows[start:]
        assert read(same) == all_rows  # an epoch is a pass of its own number
    assert len({split.id for split in segments}) == len(segments)


def test_a_turn_has_rows_of_every_split_and_a_wave_one_of_each_few_neighbours() -> None:
    drawn = DrawnSplits("source", splits_of([100] * 24), SplitDraws(1, 0, 8, 0), 2, 40)
    segments = drawn.segments()
    assert len(segments) == 6  # three waves of eight splits, two lanes
    for wave in range(3):
        here = [n // 100 for segment in segments[2 * wave : 2 * wave + 2] for n in read(segment)]
        assert sorted(each // 3 for each in set(here)) == list(range(8))
    for segment in segments:
        found = read(segment)
        for first in range(0, 400, 40):
            assert len({n // 100 for n in found[first : first + 40]}) == 4


def test_each_pass_begins_its_splits_with_other_rows() -> None:
    drawn = DrawnSplits("source", splits_of([1000] * 8), SplitDraws(1, 0, 8, 0), 8, 80)
    passes = [{read(again(split, epoch))[0] for split in drawn.segments()} for epoch in range(3)]
    assert len(set.union(*passes)) == 24


def test_sources_of_one_seed_draw_other_orders() -> None:
    asked = SplitDraws(1, 0, 100, 0)
    orders = [DrawnSplits(name, splits_of([1] * 50), asked, 1, 50).order(0).tolist() for name in ("one", "other")]
    assert orders[0] != orders[1]


class Unknown:
    """A split that does not know its rows."""

    def __init__(self, split: MemorySplit) -> None:
        self.id, self._split = split.id, split
        self.rows = None

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        return self._split.open(start)


def test_splits_of_unknown_length_are_read_whole_in_a_drawn_order() -> None:
    given = splits_of([3] * 10)
    splits = [*given[:-1], Unknown(given[-1])]
    drawn = DrawnSplits("source", splits, SplitDraws(1, 0, 4, 0), 2, 5)
    found = [[read(again(split, epoch)) for split in drawn.segments()] for epoch in range(2)]
    whole = [read(split) for split in given]
    assert sorted(found[0]) == sorted(found[1]) == whole
    assert found[0] != whole
    assert found[0] != found[1]


class Other:
    """A split that gives other rows than it says, or fails."""

    rows = 10

    def __init__(self, gives: int | None) -> None:
        self.id = "other"
        self._gives = gives

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        if self._gives is None:
            raise OSError("the disk is gone")
        if start < self._gives:
            yield pa.record_batch({"n": pa.array(range(start, self._gives), pa.int64())})


@pytest.mark.parametrize(("gives", "error"), [(9, DataError), (11, DataError), (None, StorageError)])
def test_a_split_that_has_changed_or_fails_is_named(gives, error) -> None:
    drawn = DrawnSplits("source", [*splits_of([10] * 3), Other(gives)], SplitDraws(1, 0, 4, 0), 1, 8)
    with pytest.raises(error, match="split other"):
        read(drawn.segments()[0])


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    lanes=st.integers(1, 4),
    interleave=st.integers(1, 12),
    epoch=st.integers(0, 3),
)
def test_no_more_splits_are_open_at_once_than_a_segment_says(rows, lanes, interleave, epoch) -> None:
    drawn = DrawnSplits("source", splits_of(rows), SplitDraws(1, 0, interleave, 9), lanes, 7)
    for segment in drawn.segments():
        assert len(set(map(split_of(rows), read(again(segment, epoch))))) <= segment.open_at_once


def split_of(rows: list[int]):
    owners = [number for number, count in enumerate(rows) for _ in range(count)]
    return owners.__getitem__


def test_explain_counts_a_batch_and_what_is_open_of_every_split_that_is_read_in_turn(tmp_path) -> None:
    pq.write_table(pa.table({"n": list(range(8000)), "text": ["a text"] * 8000}), tmp_path / "f", row_group_size=100)
    found = []
    for interleave in (1, 80):
        flow = ps.Flow("memory", lanes=4)
        flow.read_parquet(tmp_path / "f").feed(10, shuffle=ps.Shuffle(window=100, interleave=interleave))
        found.append(memory_bound(plan_job(flow, 1)).bytes)
    # in each of four lanes of one and of twenty splits, and of parts of two
    assert found[1] - found[0] >= 4 * 19 * batch_bytes(pa.schema({"n": pa.int64(), "text": pa.string()}))
