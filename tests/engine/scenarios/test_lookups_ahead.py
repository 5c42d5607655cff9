"""Lookups stay in flight across splits, rounds and windows, whose ends stand among the batches."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.flow import index
from penstock.engine.flow.flow import Flow, Stream
from penstock.engine.local.plan_task import PlanTask

PROBE = pa.schema([("k", pa.int64())])
STORED = pa.schema([("k", pa.int64()), ("v", pa.int64())])
PREFETCH = 4
PATIENCE = 30.0


class Meeting:
    """Lookups that go on only when so many are inside at once."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.entered = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._inside = self.most = 0

    def attend(self) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
        self.entered.release()
        self.barrier.wait(PATIENCE)
        with self._lock:
            self._inside -= 1


@dataclass(frozen=True)
class Met:
    """An index of squares whose lookups meet."""

    meeting: Meeting = field(compare=False, hash=False)
    key: tuple[str, ...] = ("k",)
    schema: pa.Schema = STORED
    blocks: bool = True

    def open(self) -> Met:
        return self

    def fingerprint(self) -> str:
        return ""

    def describe(self) -> str:
        return "squares"

    def lookup(self, keys: pa.RecordBatch) -> index.Found:
        self.meeting.attend()
        squares = pa.array([key * key for key in keys.column(0).to_pylist()], pa.int64())
        return index.Found.by_key(keys, pa.RecordBatch.from_arrays([keys.column(0), squares], schema=STORED), ["k"])

    def close(self) -> None:
        pass


def looked_up(meeting: Meeting, prefetch: int = PREFETCH) -> Stream:
    return Flow("f").from_split_sets(PROBE, name="r").lookup_join(Met(meeting), on="k", prefetch=prefetch)


def keys(*values: int) -> pa.Table:
    return pa.table({"k": pa.array(values, pa.int64())})


def window(task: PlanTask) -> list[dict[str, int]]:
    found = []
    while (records := task.read()) is not None:
        found += records.to_pylist()
    return found


@pytest.mark.parametrize("degree", [0, 2])
@pytest.mark.parametrize("splits", [1, 4, 20])
def test_lookups_of_small_splits_and_of_windows_queued_ahead_run_at_once(splits: int, degree: int) -> None:
    """Each of 20 splits is one batch: with one at a time the lookups would wait for each other for ever."""
    meeting = Meeting(1 + PREFETCH)
    task = PlanTask(looked_up(meeting), degree=degree)
    for number in range(20):
        task.add_split("r", keys(number))
        if number % splits == splits - 1:
            task.request_barrier()
    for first in range(0, 20, splits):
        assert window(task) == [{"k": number, "v": number**2} for number in range(first, first + splits)]
    assert meeting.most == 1 + PREFETCH, "prefetch bounds what is in flight, whatever stands between the batches"
    task.cancel()


@pytest.mark.parametrize("degree", [0, 2])
def test_a_task_is_cancelled_while_lookups_of_several_windows_are_under_way(degree: int) -> None:
    meeting = Meeting(6)
    task = PlanTask(looked_up(meeting), degree=degree)
    for number in range(5):
        task.add_split("r", keys(number))
        task.request_barrier()
    reader = threading.Thread(target=task.next)
    reader.start()
    for _ in range(1 + PREFETCH):
        assert meeting.entered.acquire(timeout=PATIENCE)
    canceller = threading.Thread(target=task.cancel)
    canceller.start()
    meeting.barrier.abort()
    for thread in (canceller, reader):
        thread.join(PATIENCE)
        assert not thread.is_alive()


@given(windows=st.lists(st.lists(st.integers(0, 6), max_size=3), min_size=1, max_size=5), parts=st.booleans())
@settings(max_examples=25, deadline=None)
def test_windows_keep_their_rows_whatever_is_under_way(windows: list[list[int]], parts: bool) -> None:
    """Groups of each window, and the rows that a limit keeps of all, behind lookups that are all queued ahead."""
    stream = looked_up(Meeting(1))
    stream = stream.aggregate(by=[], n=("v", "count"), total=("v", "sum")) if parts else stream.limit(3)
    task = PlanTask(stream)
    for splits in windows:
        for rows in splits:
            task.add_split("r", keys(*range(rows)))
        task.request_barrier()
    left = 3
    for splits in windows:
        found = [number for rows in splits for number in range(rows)]
        if parts:
            [only] = window(task)
            assert (only["n"], only["total"] or 0) == (len(found), sum(each**2 for each in found))
        else:
            assert [row["k"] for row in window(task)] == found[:left]
            left -= min(left, len(found))
    task.cancel()
