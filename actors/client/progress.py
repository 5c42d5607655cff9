"""The progress of a job, for people: one line that changes on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ...coordinator.model.statistics import JobStatus
from ...engine.core.identity import TaskId
from ...engine.core.shown import shown
from ...engine.plan.plan import JobPlan
from ...engine.runtime.statistics import JobStatistics, TaskStatistics
from ..process.waiting import Deadline

REFRESH_SECONDS = 0.5
PLAIN_SECONDS = 2.0
"""Between two plain lines with nothing but larger counts: a log is read later, by somebody in a hurry."""
PACE_SECONDS = 10.0
"""The rate is that of the rows of so many seconds."""


class WatchedJob(Protocol):
    """The part of a job that progress looks at."""

    @property
    def plan(self) -> JobPlan: ...

    def status(self) -> JobStatus: ...

    def wait_until(self, condition: Callable[[JobStatus], bool], timeout: float | None = None) -> JobStatus: ...

    def statistics(self) -> JobStatistics: ...


Observer = Callable[[JobStatus, Mapping[TaskId, TaskStatistics]], str | None]
"""Called at every look at the job. What it returns is printed as a line of its own."""


class Pace:
    """How fast rows come, and how long that will go on. ``total``: of all rows; None: nobody knows. It begins with the
    first ones, of which a job that goes on has many at once."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        #: when so many rows had come
        self._seen: deque[tuple[float, int]] = deque()

    def look(self, now: float, rows: int) -> str:
        """In words."""
        if self._seen and rows < self._seen[-1][1]:  # a task has begun anew
            self._seen.clear()
        if not rows:
            return ""
        self._seen.append((now, rows))
        while now - self._seen[0][0] > PACE_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        rate = (rows - before) / (now - since) if now > since else 0.0
        if not rate:
            return ""
        left = f", {_in_words((self._total - rows) / rate)} left" if self._total and self._total > rows else ""
        return f"{rate:,.0f} rows/s{left}"


def _in_words(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def is_watched(console: Console) -> bool:
    """Whether somebody sits before it: at a terminal, or in a notebook."""
    return console.is_jupyter or (console.is_terminal and console.is_interactive)


class Heedless:
    """A stream that somebody reads, or has left: what cannot be written then is not, and nobody's job ends by it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As far as possible."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As far as possible."""
        with suppress(OSError):
            self._stream.flush()


def console_on(stream: TextIO) -> Console:
    """For what people read while a job runs."""
    return Console(file=cast(TextIO, Heedless(stream)), highlight=False)


def show(job: WatchedJob, deadline: Deadline) -> None:
    """Watch on standard error."""
    watch(job, console_on(sys.stderr), deadline=deadline)


def watch(
    job: WatchedJob, console: Console, observe: Observer | None = None, deadline: Deadline | None = None
) -> JobStatus:
    """Show the job's progress until it is over, and what its sources have left out; returns its last status. Behind the
    ``deadline`` it returns as the job is."""
    look = _Looks(job, observe)
    status = (_watch_live if is_watched(console) else _watch_plainly)(look, console, deadline or Deadline(None))
    if status.is_over:
        for line in job.statistics().left_out:
            console.print(f"  {shown(line)}", highlight=False, markup=False, soft_wrap=True)
    return status


class _Looks:
    """Looks at a job, one after the other."""

    def __init__(self, job: WatchedJob, observe: Observer | None) -> None:
        self._job, self._observe, self._started = job, observe, time.monotonic()
        epochs = 1 if job.plan.epochs is None else job.plan.epochs.count
        totals = [(source.rows, epochs if source.repeats else 1) for source in job.plan.sources.values()]
        known = [rows * times for rows, times in totals if rows is not None]
        self._pace = Pace(sum(known) if len(known) == len(totals) else None)

    def take(self) -> tuple[JobStatus, str, str | None]:
        """The status, a line about it, and a note to print."""
        statistics = self._job.statistics()
        status, now = self._job.status(), time.monotonic()
        note = self._observe(status, statistics) if self._observe is not None else None
        pace = self._pace.look(now, rows_read(statistics))
        return status, describe(status, statistics, now - self._started, "" if status.is_over else pace), note

    def wait(self, seen: JobStatus, deadline: Deadline) -> bool:
        """Wait a moment, or for a change of state or a completed checkpoint; whether there is time left."""
        left = deadline.left()

        def changed(status: JobStatus) -> bool:
            return (status.state, status.latest_completed) != (seen.state, seen.latest_completed)

        with suppress(TimeoutError):
            self._job.wait_until(changed, REFRESH_SECONDS if left is None else min(REFRESH_SECONDS, left))
        return deadline.left() != 0


def _watch_live(looks: _Looks, console: Console, deadline: Deadline) -> JobStatus:
    with _in_notebook() if console.is_jupyter else _on_terminal(console) as put:
        while True:
            status, line, note = looks.take()
            if note:
                console.print(shown(note), highlight=False, markup=False)
            put(line, status.is_over)
            if status.is_over or not looks.wait(status, deadline):
                return status


@contextmanager
def _on_terminal(console: Console) -> Iterator[Callable[[str, bool], None]]:
    """Shows a line in place of the one before. The last one stays."""
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def put(line: str, is_last: bool) -> None:
            live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
            live.transient = not is_last

        yield put


@contextmanager
def _in_notebook() -> Iterator[Callable[[str, bool], None]]:
    """The same below a cell. (Rich's ``Live`` shows nothing there without ipywidgets.)"""
    from IPython.display import display

    place = display({"text/plain": ""}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
    yield lambda line, is_last: place.update({"text/plain": line}, raw=True)


def _watch_plainly(looks: _Looks, console: Console, deadline: Deadline) -> JobStatus:
    printed, last = "", -PLAIN_SECONDS
    while True:
        status, line, note = looks.take()
        if note:
            console.print(shown(note), highlight=False, markup=False, soft_wrap=True)
        state = f"{status.state} {status.restarts}"
        if state != printed or time.monotonic() - last >= PLAIN_SECONDS:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
            printed, last = state, time.monotonic()
        if status.is_over or not looks.wait(status, deadline):
            return status


def rows_read(statistics: Mapping[TaskId, TaskStatistics]) -> int:
    """By all sources."""
    return sum(source.rows for task in statistics.values() for source in task.sources)


def describe(status: JobStatus, statistics: Mapping[TaskId, TaskStatistics], elapsed: float, pace: str = "") -> str:
    """One line, what people look for first: a terminal of 80 columns cuts the end off."""
    batches = sum(source.batches for task in statistics.values() for source in task.sources)
    checkpoint = "none" if status.latest_completed is None else str(status.latest_completed)
    fast = f"  {pace}" if pace else ""
    return (
        f"{elapsed:5.1f} s  {status.job} {status.state} {rows_read(statistics):>10,} rows{fast}  "
        f"checkpoint {checkpoint} (of {status.checkpoints_completed})  restarts {status.restarts}  {batches:,} batches"
    )
