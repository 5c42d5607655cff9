"""A test that leaves a job running fails by name; one whose job is about to end is waited for."""

from __future__ import annotations

import threading
import time

import pyarrow as pa

import penstock as ps
from support.left_threads import left_since


def test_job_that_is_left_is_named_by_its_threads_until_it_ends() -> None:
    flow = ps.Flow("left")
    flow.from_tables([pa.table({"n": range(1000)})], name="rows", rate=1.0).collect("out")
    before = time.monotonic()
    with ps.run_local(flow):
        assert {"penstock-coordinator", "penstock-task-rows[0]"} <= set(left_since(before, patience=0.0))
        assert left_since(time.monotonic(), patience=0.0) == []
    assert left_since(before) == []


def test_thread_that_ends_late_is_waited_for() -> None:
    before, may_end = time.monotonic(), threading.Event()
    thread = threading.Thread(target=may_end.wait, name="penstock-task-7", daemon=True)
    thread.start()
    threading.Timer(0.2, may_end.set).start()
    assert left_since(before) == []
    assert not thread.is_alive()


def test_thread_that_an_older_job_starts_is_its_own_affair() -> None:
    may_go_on, may_end = threading.Event(), threading.Event()
    younger = threading.Thread(target=may_end.wait, name="penstock-background", daemon=True)

    def start_another() -> None:
        may_go_on.wait()
        younger.start()

    older = threading.Thread(target=start_another, name="penstock-coordinator", daemon=True)
    older.start()
    before = time.monotonic()
    may_go_on.set()
    older.join()
    assert left_since(before, patience=0.0) == []
    may_end.set()
    younger.join()
