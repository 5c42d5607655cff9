"""The progress of a job, for people: one line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..coordinator.model.statistics import JobStatus
from ..engine.core.identity import TaskId
from ..engine.core.shown import shown
from ..engine.runtime.statistics import JobStatistics, TaskStatistics

REFRESH_SECONDS = 0.5
PLAIN_SECONDS = 2.0
"""Between two plain lines with nothing but larger counts: a log is read later, by somebody in a hurry."""


class WatchedJob(Protocol):
    """The part of a job that progress looks at."""

    @property
    def name(self) -> str: ...

    def status(self) -> JobStatus: ...

    def wait_until(self, condition: Callable[[JobStatus], bool], timeout: float | None = None) -> JobStatus: ...

    def statistics(self) -> JobStatistics: ...


Observer = Callable[[JobStatus, Mapping[TaskId, TaskStatistics]], str | None]
"""Called at every look at the job. What it returns is printed as a line of its own."""


def watch(job: WatchedJob, console: Console, observe: Observer | None = None) -> JobStatus:
    """Show the job's progress until it is over, and what its sources have left out; returns its last status."""
    watching = _watch_live if console.is_terminal else _watch_plainly
    status = watching(job, console, observe, time.monotonic())
    for line in job.statistics().left_out:
        console.print(f"  {shown(line)}", highlight=False, markup=False, soft_wrap=True)
    return status


def _watch_live(job: WatchedJob, console: Console, observe: Observer | None, started: float) -> JobStatus:
    with Live(console=console, transient=False, auto_refresh=False) as live:
        while True:
            status, line, note = _look(job, observe, started)
            if note:
                live.console.print(shown(note), highlight=False, markup=False)
            live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
            if status.is_over:
                return status
            _next(job, status, REFRESH_SECONDS)


def _watch_plainly(job: WatchedJob, console: Console, observe: Observer | None, started: float) -> JobStatus:
    printed, last = "", -PLAIN_SECONDS
    while True:
        status, line, note = _look(job, observe, started)
        if note:
            console.print(shown(note), highlight=False, markup=False, soft_wrap=True)
        state = f"{status.state} {status.restarts}"
        if state != printed or time.monotonic() - last >= PLAIN_SECONDS:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
            printed, last = state, time.monotonic()
        if status.is_over:
            return status
        _next(job, status, REFRESH_SECONDS)


def _look(job: WatchedJob, observe: Observer | None, started: float) -> tuple[JobStatus, str, str | None]:
    statistics = job.statistics()
    status = job.status()
    note = observe(status, statistics) if observe is not None else None
    return status, describe(status, statistics, time.monotonic() - started), note


def describe(status: JobStatus, statistics: Mapping[TaskId, TaskStatistics], elapsed: float) -> str:
    """One line: state, rows and batches read, the last checkpoint, restarts."""
    sources = [source for task in statistics.values() for source in task.sources]
    rows, batches = sum(source.rows for source in sources), sum(source.batches for source in sources)
    checkpoint = "none" if status.latest_completed is None else str(status.latest_completed)
    return (
        f"{elapsed:5.1f} s  {status.job} {status.state:<9} {rows:>10,} rows {batches:>5,} batches  "
        f"checkpoint {checkpoint} (of {status.checkpoints_completed})  restarts {status.restarts}"
    )


def _next(job: WatchedJob, seen: JobStatus, seconds: float) -> None:
    """Wait for a change of state or a completed checkpoint, ``seconds`` at most."""

    def changed(status: JobStatus) -> bool:
        return (status.state, status.latest_completed) != (seen.state, seen.latest_completed)

    try:
        job.wait_until(changed, seconds)
    except TimeoutError:
        return
