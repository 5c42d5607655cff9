"""A test that leaves a job running fails by name; one whose job is about to end is waited for."""

from __future__ import annotations

import threading

import pyarrow as pa

import penstock as ps
from support.left_threads import job_threads, left_since


def test_job_that_is_left_is_named_by_its_threads_until_it_ends() -> None:
    flow = ps.Flow("left")
    flow.from_tables([pa.table({"n": range(1000)})], name="rows", rate=1.0).collect("out")
    before = job_threads()
    with ps.run_local(flow):
        assert {"penstock-coordinator", "penstock-task-rows[0]"} <= set(left_since(before, patience=0.0))
        assert left_since(job_threads(), patience=0.0) == []
    assert left_since(before) == []


def test_thread_that_ends_late_is_waited_for() -> None:
    before, may_end = job_threads(), threading.Event()
    thread = threading.Thread(target=may_end.wait, name="penstock-worker-7", daemon=True)
    thread.start()
    threading.Timer(0.2, may_end.set).start()
    assert left_since(before) == []
    assert not thread.is_alive()
