"""``CutRuns`` whose drivers are run by a pool of threads. What tasks say is heard by the thread that runs the plan."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.runtime.task import Task
from penstock.engine.scheduler.pool import PoolScheduler
from support.cut_runs import CutRuns, Owner

THREADS = 3


class _Later:
    """What one task says, kept until its attempt's plan listens."""

    def __init__(self, run: ThreadedCutRuns, task: TaskId, attempt: int) -> None:
        self._run, self._owner, self._attempt = run, Owner(run, task), attempt

    def __getattr__(self, name: str) -> Callable[..., None]:
        heard = getattr(self._owner, name)
        return lambda *what: self._run.said.put((self._attempt, lambda: heard(*what)))


class ThreadedCutRuns(CutRuns):
    """See the module. Runs differ in what the threads happen to do, not in what comes out."""

    def __init__(self, *arguments: Any, pool: PoolScheduler, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._pool = pool
        self.said: queue.SimpleQueue[tuple[int, Callable[[], None]]] = queue.SimpleQueue()

    def make(self, task: TaskId, attempts: dict[TaskId, Attempt]) -> Task:
        later: Any = _Later(self, task, self._attempt)
        restored = self._restored(task)
        return Task(self.plan, task, attempts[task], attempts, restored, later, later, scheduler=self._pool)

    def let_run(self) -> None:
        time.sleep(0.001)

    def _step(self) -> None:
        while not self.said.empty():
            attempt, hear = self.said.get()
            if attempt == self._attempt:
                hear()
        if len(self._finished) < len(self.tasks):
            super()._step()
