"""Looking at a scheduler: why runnables do not run, and the trace of who ran when."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .entries import Entry, QueryEntry
from .protocol import DriverState

# ------------------------------------------------------------------ explanation
#
# Why runnables do not run, in sentences; and the chain of waiting of a query that hangs.


def why(query: QueryEntry) -> list[str]:
    """One sentence for each runnable that cannot run now."""
    sentences = (why_not(entry) for entry in query.entries)
    return [sentence for sentence in sentences if sentence]


def why_not(entry: Entry) -> str:
    """Why the runnable cannot run now; "" if it can, does, or never will again."""
    query, state = entry.query, entry.state
    whom = " and ".join(str(wait) for wait in entry.waits)
    if state is DriverState.CREATED:
        return f"{entry.name} has not begun: its query has not been started"
    if state is DriverState.WAITING:
        return f"{entry.name} {whom}"
    if state is DriverState.PAUSED:
        return f"{entry.name} is paused with its query" + (f"; it {whom}" if whom else "")
    if state is DriverState.READY and not query.share.active and query.share.limit is not None:
        return f"{entry.name} is ready, but {query.share.limit} of its plan run already"
    if state is DriverState.FINISHING and not entry.closing:
        return f"{entry.name} is done; its end {whom or 'waits for ' + holder(entry)}"
    return ""


def holder(entry: Entry) -> str:
    """Who keeps a finished runnable from being closed."""
    if entry.query.paused:
        return "its query to be resumed"
    return "a free worker"


def dump(queries: Iterable[QueryEntry]) -> str:
    """All queries with the states of their runnables: what to read when something hangs."""
    lines = []
    for query in queries:
        lines.append(f"query {query.name}: " + (f"ends with {query.error!r}" if query.ending else "runs"))
        lines += [f"  {entry.name} [{entry.state.value}] {why_not(entry)}".rstrip() for entry in query.entries]
    return "\n".join(lines)


# ------------------------------------------------------------------ trace
#
# Who ran what, when, and why it waited: kept as tuples, shown as a Chrome trace.
#
# Cheap enough not to change the schedule: one tuple per left state, in a deque that forgets the oldest. Open the file
# that ``write`` makes in ``chrome://tracing`` or Perfetto: one row per worker with the turns, one per runnable with
# what it did in between.

CAPACITY = 200_000
WORKERS, RUNNABLES = 1, 2
"""The two "processes" of the shown trace."""

TRACED = frozenset({DriverState.READY, DriverState.RUNNING, DriverState.WAITING, DriverState.PAUSED})


class Trace:
    """The last ``capacity`` stays of runnables in states."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._stays: deque[tuple[Entry, DriverState, str, float, float, int | None]] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._stays)

    def left(self, entry: Entry, now: float) -> None:
        """The entry leaves its state, or waits for something else from now on."""
        state = entry.state
        if state in TRACED:
            why = str(entry.waits[0]) if entry.waits and state is DriverState.WAITING else state.value
            self._stays.append((entry, state, why, entry.since, now, entry.last_worker))

    def events(self) -> list[dict[str, Any]]:
        """The events of the Chrome trace format: times in microseconds."""
        names: dict[tuple[int, int], str] = {}
        events: list[dict[str, Any]] = []
        for entry, state, why, start, end, worker in list(self._stays):
            length = {"ts": start * 1e6, "dur": (end - start) * 1e6, "ph": "X"}
            args = {"query": entry.query.name, "runnable": entry.name}
            if state is DriverState.RUNNING:
                thread = worker or 0
                names[WORKERS, thread] = f"worker {thread}"
                events.append({"name": entry.name, "pid": WORKERS, "tid": thread, "args": args, **length})
            elif end > start:
                names[RUNNABLES, entry.number] = f"{entry.query.name} {entry.name}"
                events.append({"name": why, "pid": RUNNABLES, "tid": entry.number, "args": args, **length})
        heads = [
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
            for pid, name in ((WORKERS, "workers"), (RUNNABLES, "runnables"))
        ]
        rows = [
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            for (pid, tid), name in sorted(names.items())
        ]
        return heads + rows + events

    def write(self, path: str | Path) -> None:
        """Save it as a file that trace viewers open."""
        Path(path).write_text(json.dumps({"traceEvents": self.events()}), encoding="utf-8")
