"""What a driver writes to disks: in order, elsewhere, bounded, and never while a thread of the scheduler waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.engine.core.errors import StorageError, UserCodeError
from penstock.engine.flow.flow import Flow
from penstock.engine.kernels.sorting import SortKey
from penstock.engine.sinks import file_writer
from penstock.engine.state import spill
from penstock.engine.state.write_behind import WriteBehind
from penstock.jobs.local_run import run_local

TABLE = pa.table({"x": pa.array(range(40_000), pa.int64())})


class Later:
    """A background of which the test decides when it works."""

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.posted: list[Callable[[], object]] = []

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.work.append((work, done))

    def run(self) -> None:
        while self.work:
            work, done = self.work.pop(0)
            done(work())

    def tell(self) -> None:
        """What the driver does before its next step."""
        while self.posted:
            self.posted.pop(0)()


def delayed(limit: int = 100) -> tuple[Later, WriteBehind]:
    later = Later()
    return later, WriteBehind(later, later.posted.append, limit)


def test_driver_hears_in_the_order_in_which_it_asked_whatever_is_written_meanwhile() -> None:
    later, behind = delayed()
    told: list[int] = []
    behind.write("sink", lambda: None, 10)
    behind.then(lambda: told.append(1))
    later.run()  # and its news is on the way to the driver, which is within a step
    behind.then(lambda: told.append(2))
    later.tell()
    behind.then(lambda: told.append(3))
    assert told == [1, 2, 3]


def test_driver_hears_nothing_of_a_job_that_fails_just_as_it_asks() -> None:
    later = Later()

    class Hurried(WriteBehind):
        def check(self) -> None:
            super().check()
            later.run()  # a thread that has waited for this moment

    def fail() -> None:
        raise StorageError("the disk is gone", "make room")

    behind, told = Hurried(later, later.posted.append), list[int]()
    behind._add("sink", fail, 10)
    with pytest.raises(StorageError, match="the disk is gone"):
        behind.then(lambda: told.append(1))
    assert not told


def test_jobs_are_done_in_the_order_in_which_they_came() -> None:
    later, behind = delayed()
    done: list[int] = []
    for number in range(3):
        behind.write("sink", lambda number=number: done.append(number), 10)
    assert not done
    assert len(later.work) == 1  # one thread for all of them
    later.run()
    assert done == [0, 1, 2]
    behind.write("sink", lambda: done.append(3), 10)
    later.run()
    assert done == [0, 1, 2, 3]


def test_driver_has_room_until_the_limit_and_is_woken_when_half_of_it_is_written() -> None:
    later, behind = delayed(limit=100)
    left: list[int] = []
    for _ in range(4):
        behind.write("sink", lambda: left.append(len(later.posted)), 25)
    assert not behind.has_room()
    later.run()
    assert behind.has_room()
    assert left == [0, 0, 0, 1]  # woken behind the third job, which left less than half
    assert len(later.posted) == 1


def test_without_a_limit_there_is_room_only_when_all_is_written() -> None:
    later, behind = delayed(limit=0)
    assert behind.has_room()
    behind.write("sort", lambda: None, 0)
    assert not behind.has_room()
    later.run()
    assert behind.has_room()


def test_driver_learns_when_everything_before_is_written() -> None:
    later, behind = delayed()
    done: list[str] = []
    behind.then(lambda: done.append("at once"))
    behind.write("sink", lambda: done.append("written"), 1)
    behind.then(lambda: done.append("told"))
    behind.write("sink", lambda: done.append("written later"), 1)
    assert done == ["at once"]
    later.run()
    assert done == ["at once", "written", "written later"]  # it is told on its own thread
    later.tell()
    assert done[-1] == "told"


def test_first_error_is_raised_on_the_drivers_thread_and_stops_what_follows() -> None:
    later, behind = delayed()
    done: list[int] = []

    def broken() -> None:
        raise StorageError("the disk is full", "free some space")

    behind.write("sink", broken, 1)
    behind.write("sink", lambda: done.append(1), 1)
    later.run()
    assert not done
    with pytest.raises(StorageError, match="sink: the disk is full"):
        later.tell()
    with pytest.raises(StorageError):
        behind.write("sink", lambda: None, 1)


def test_foreign_error_is_named_after_the_operator() -> None:
    later, behind = delayed()
    behind.write("sort", lambda: {}["no such key"], 1)
    later.run()
    with pytest.raises(UserCodeError, match="sort: its code raised KeyError"):
        later.tell()


def test_who_must_read_at_once_does_what_is_left_itself() -> None:
    later, behind = delayed()
    done: list[int] = []
    for number in range(3):
        behind.write("sort", lambda number=number: done.append(number), 1)
    behind.settle()
    assert done == [0, 1, 2]
    assert behind.settled == 3
    later.run()
    assert done == [0, 1, 2]


def test_settling_waits_for_the_job_that_another_thread_is_at() -> None:
    later, behind = delayed()
    begun, release, done = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        assert release.wait(60)
        done.append("slow")

    behind.write("sort", slow, 1)
    behind.write("sort", lambda: done.append("next"), 1)
    writer = threading.Thread(target=later.run)
    writer.start()
    assert begun.wait(60)
    settling = threading.Thread(target=lambda: (behind.settle(), done.append("settled")))
    settling.start()
    release.set()
    writer.join(60)
    settling.join(60)
    assert done == ["slow", "next", "settled"]


def test_worker_that_finds_another_one_at_it_is_asked_for_again() -> None:
    later, behind = delayed()
    done: list[str] = []
    behind.write("sort", later.run, 1)  # settled, while the worker comes
    behind.settle()
    behind.write("sort", lambda: done.append("written"), 1)
    later.run()
    assert done == ["written"]


def test_closed_driver_writes_nothing_more_and_removes_at_once() -> None:
    later, behind = delayed()
    done: list[str] = []
    behind.write("sort", lambda: done.append("written"), 1)
    behind.end()
    behind.write("sort", lambda: done.append("removed"), 1)
    assert done == ["removed"]
    later.run()
    assert done == ["removed"]


@contextmanager
def threads_of(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Iterator[set[str]]:
    """The names of the threads that call a function of ours."""
    inner, found = getattr(owner, name), set()

    def noticed(*arguments: Any, **keywords: Any) -> Any:
        found.add(threading.current_thread().name)
        return inner(*arguments, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, noticed)
        yield found


@pytest.mark.parametrize("threads", [0, 2])
def test_files_of_sinks_are_written_and_made_durable_by_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    flow = Flow("numbers")
    flow.from_tables([TABLE], name="numbers").write_parquet(tmp_path / "out", name="out")
    with (
        threads_of(monkeypatch, file_writer.StagedFile, "write") as writers,
        threads_of(monkeypatch, file_writer, "sync_file") as syncers,
    ):
        run_local(flow, parallelism=2, threads=threads).wait(60)
    assert parquet.read_table(tmp_path / "out").num_rows == TABLE.num_rows
    assert writers
    assert syncers
    assert all(name.startswith("penstock-background") for name in writers | syncers)


def test_spilled_rows_are_written_by_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow("numbers")
    tables = [TABLE.slice(start, 4_000) for start in range(0, TABLE.num_rows, 4_000)]
    flow.from_tables(tables, name="numbers").sort(SortKey("x", descending=True)).collect("out")
    with threads_of(monkeypatch, spill.ArrowSpillFile, "_write") as writers:
        job = run_local(flow, parallelism=1, threads=1, memory_budget=100_000).wait(60)
    assert job.result("out").column("x").to_pylist() == sorted(TABLE.column("x").to_pylist(), reverse=True)
    assert writers
    assert all(name.startswith("penstock-background") for name in writers)
