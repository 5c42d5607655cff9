"""Counts by stage: the sums of its subtasks, without what stays inside of a task."""

from __future__ import annotations

from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.runtime.statistics import EdgeStatistics, JobStatistics, SourceStatistics, TaskStatistics
from penstock.engine.scheduler.protocol import HandleStatistics
from penstock.engine.state.memory import MemoryStatistics


def driver(name: str, waited: float, running: float, cpu: float) -> HandleStatistics:
    return HandleStatistics(name, "waiting", 0.0, running, 0.0, {"input": waited}, cpu, 1, 1, 0, 0)


def edge(name: str, direction: str, rows: int) -> EdgeStatistics:
    return EdgeStatistics(name, direction, 1, rows, 1, 8 * rows, 0)


def task(stage: str, subtask: int, edges: tuple[EdgeStatistics, ...], *drivers: HandleStatistics) -> TaskStatistics:
    sources = (SourceStatistics("numbers", 100, 2, "s"),) if stage == "read" else ()
    memory = MemoryStatistics(held=10, peak=20, spilled_bytes=5)
    return TaskStatistics(TaskId(stage, subtask), Attempt(1, 1), "running", (), sources, (), drivers, edges, memory)


def test_stages_sum_their_subtasks_and_leave_out_what_stays_inside() -> None:
    found = [
        task("read", 0, (edge("by_key", "out", 60),), driver("read", 3.0, 1.0, 0.9)),
        task("read", 1, (edge("by_key", "out", 40),), driver("read", 1.0, 3.0, 2.9)),
        task(
            "group",
            0,
            (edge("by_key", "in", 100), edge("inner", "out", 7), edge("inner", "in", 7)),
            driver("group", 4.0, 0.0, 1.0),
            driver("order", 3.0, 0.0, 1.0),
        ),
    ]
    stages = JobStatistics({each.task: each for each in found}).stages
    assert list(stages) == ["read", "group"]
    read, group = stages.values()
    assert (read.subtasks, read.rows_read, read.rows_in, read.rows_out, read.bytes_out) == (2, 200, 0, 100, 800)
    assert (group.subtasks, group.rows_in, group.rows_out, group.bytes_in) == (1, 100, 0, 800)
    assert (read.held, read.spilled, group.held) == (20, 10, 10)
    assert (read.busy, read.busiest) == (0.5, (TaskId("read", 1), 0.75))
    assert (group.busy, group.busiest[0]) == (0.5, TaskId("group", 0))


def test_nobody_there_to_tell_gives_no_stages() -> None:
    assert JobStatistics().stages == {}
