"""What the scheduler runs, and what one run of it may answer.

The contract between the scheduler and what it schedules (drivers, and anything else that works in quanta):

1. ``run`` is called by one thread at a time, never before ``open`` has returned and never after ``close``. It goes on
   until it can do no more, or until ``quantum.expired()``, which it asks at every batch border. It never waits inside:
   work that must wait goes through ``Query.background`` and comes back as a wake-up.
2. Whoever changes something that a runnable may wait for calls ``Handle.wake`` *after* the change. A wake-up that
   arrives while the runnable runs is not lost: it runs again. Wake-ups at any other time do no harm.
3. ``close`` is called exactly once, whether it ran or not, also after an error, when no thread is inside.

The outcome is one of four, all explicit (after DuckDB's operator results): "nothing now" cannot be taken for "nothing
ever".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from .states import Wait


class Quantum(Protocol):
    """The turn that a runnable has been given."""

    @property
    def now(self) -> float:
        """The scheduler's clock when the turn began, in seconds; only differences mean anything."""

    def expired(self) -> bool:
        """Whether the turn is over: the time slice is used up, someone more urgent waits, or it was told to stop."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The turn is over and there is more to do."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Nothing can be done before a wake-up, or before ``wake_at`` (on the scheduler's clock). ``waits``: for whom."""

    waits: tuple[Wait, ...]
    wake_at: float | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """All work is done. What was started elsewhere may still be under way: see ``Query.background``."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It cannot go on. Raising from ``run`` means the same."""

    error: BaseException


Outcome: TypeAlias = Progress | Blocked | Finished | Failed


class Runnable(Protocol):
    """Something that works in quanta. See the module's rules."""

    @property
    def name(self) -> str:
        """For messages, traces and statistics."""

    def open(self) -> None:
        """Called once, by the thread of the first run and just before it."""

    def run(self, quantum: Quantum) -> Outcome:
        """Work for a turn."""

    def close(self) -> None:
        """Release everything. Must not raise, must not wait."""
