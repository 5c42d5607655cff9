"""Every scenario's tasks are closed behind it, and must then have left nothing: no thread, no memory, no file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.engine.flow.flow import Stream
from penstock.engine.local.plan_task import PlanTask

Made = Callable[..., PlanTask]


@pytest.fixture
def make_task() -> Iterator[Made]:
    """Makes tasks, and looks after them when the test is over."""
    before = set(threading.enumerate())
    made: list[PlanTask] = []

    def make(stream: Stream, degree: int = 0, **options: Any) -> PlanTask:
        made.append(PlanTask(stream, degree=degree, **options))
        return made[-1]

    yield make
    for task in made:
        task.cancel()
        assert task.state in {"finished", "failed", "cancelled"}
        for each in task.tasks:
            assert (each._parts.memory.statistics().held, each._parts.memory.statistics().files) == (0, 0)
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert not left, f"threads are left behind: {left}"


@pytest.fixture
def one_row_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources cut their splits into batches of one row."""
    monkeypatch.setattr("penstock.engine.plan.rounds.CHUNK_ROWS", 1)
