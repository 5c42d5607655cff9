"""Memory with a budget that checks its figures and its folder when it is no longer used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.engine.state.memory import TaskMemory

BUDGETS = (0, 1024, 64 * 1024)


@contextmanager
def budget(size: int | None) -> Iterator[TaskMemory]:
    """The memory of one task. All operators must have been closed at the end: nothing is held, no file is there."""
    memory = TaskMemory(size)
    try:
        yield memory
        memory.validate()
        folder = memory.folder
        assert (memory.statistics().held, memory.statistics().files) == (0, 0)
        assert folder is None or os.listdir(folder) == []
    finally:
        memory.release()
    memory.validate()
    assert folder is None or not os.path.exists(folder)
