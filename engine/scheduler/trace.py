"""Who ran what, when, and why it waited: kept as tuples, shown as a Chrome trace.

Cheap enough not to change the schedule: one tuple per left state, in a deque that forgets the oldest. Open the file
that ``write`` makes in ``chrome://tracing`` or Perfetto: one row per worker with the turns, one per runnable with what
it did in between.
"""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

from .entries import Entry
from .states import DriverState

CAPACITY = 200_000
WORKERS, RUNNABLES = 1, 2
"""The two "processes" of the shown trace."""

TOLD = frozenset({DriverState.READY, DriverState.RUNNING, DriverState.WAITING, DriverState.PAUSED})


class Trace:
    """The last ``capacity`` stays of runnables in states."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._stays: deque[tuple[Entry, DriverState, str, float, float, int | None]] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._stays)

    def left(self, entry: Entry, now: float) -> None:
        """The entry leaves its state, or waits for something else from now on."""
        state = entry.state
        if state in TOLD:
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
