"""One thread of the pool, and the turns that it gives.

A slice is measured in CPU time of this thread, so that neither a busy machine nor a wait for the interpreter's lock
shortens it. It ends early, at the next question, when someone more urgent wants the worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Event, Lock, Thread

from .entries import Entry
from .runnable import Outcome
from .shell import run

SLICE_SECONDS = 0.004
"""CPU time of a turn: long against the 30 µs that giving one costs, short against what people notice."""


@dataclass(frozen=True, slots=True)
class WorkerHooks:
    """Called on each worker's thread with its number, first and last of all: connections, device contexts."""

    start: Callable[[int], None] | None = None
    stop: Callable[[int], None] | None = None


class SlicedQuantum:
    """A turn that lasts ``SLICE_SECONDS`` of this thread's CPU time."""

    __slots__ = ("_entry", "_until", "now", "started")

    def __init__(self, entry: Entry, now: float, seconds: float) -> None:
        self._entry = entry
        self.now = now
        self.started = time.thread_time()
        self._until = self.started + seconds

    def expired(self) -> bool:
        return self._entry.yield_asked or time.thread_time() >= self._until


class Worker:
    """A thread and the condition on which it is parked; all workers' conditions share the pool's lock."""

    def __init__(self, number: int, lock: Lock, serve: Callable[[Worker], None]) -> None:
        self.number = number
        self.condition = Condition(lock)
        self.thread = Thread(target=serve, args=(self,), name=f"penstock-worker-{number}", daemon=True)
        # The start hook has returned or raised.
        self.hooked = Event()
        # Parked: in the pool's list of parked ones. `until`: when it will look by itself, if it was told to.
        self.parked = False
        self.until: float | None = None

    def run(self, entry: Entry, now: float, seconds: float) -> tuple[Outcome, float]:
        """One turn: its outcome and the CPU seconds that it took."""
        quantum = SlicedQuantum(entry, now, seconds)
        outcome = run(entry, quantum)
        return outcome, time.thread_time() - quantum.started
