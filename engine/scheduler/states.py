"""The states of a driver, the legal moves between them, and what a driver may wait for.

One enum, one table, one way to move. The states join those of Velox (on thread, enqueued, blocked, terminated), Doris
(runnable, blocked, pending finish, finalized), Fennel (sleeping, running, inhibited) and DuckDB (interrupted):

- CREATED: built, not started, or what it may only start after is not done. READY: may run. RUNNING: a thread is in it.
- WAITING: cannot run before what it waits for happens; it always names that (:class:`Wait`).
- PAUSED: kept from running by its task. FINISHING: its work is over; what it started elsewhere is not, or nobody has
  closed it yet.
- CLOSED: its operators are closed. RELEASED: the scheduler has forgotten it.

Two moves deserve a word. READY → WAITING: a neighbour that may not run at the same time has begun to run (Fennel calls
such a stream inhibited). CREATED → FINISHING: cancelled before it ran; its operators must be closed all the same, and
by the thread that closes, not by the one that cancels.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..core.errors import InternalError
from ..core.identity import TaskId


class DriverState(Enum):
    """See the module's docstring."""

    CREATED = "created"
    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    FINISHING = "finishing"
    CLOSED = "closed"
    RELEASED = "released"

    # Members are compared by identity, so they may be hashed by it: Enum's own hash is Python code on the hottest path.
    __hash__ = object.__hash__


MOVES: dict[tuple[DriverState, DriverState], str] = {
    (DriverState.CREATED, DriverState.READY): "started, and what it comes after is done",
    (DriverState.CREATED, DriverState.FINISHING): "cancelled",
    (DriverState.CREATED, DriverState.CLOSED): "closed by its owner, no scheduler",
    (DriverState.READY, DriverState.RUNNING): "claimed",
    (DriverState.READY, DriverState.WAITING): "a neighbour runs",
    (DriverState.READY, DriverState.PAUSED): "pause",
    (DriverState.READY, DriverState.FINISHING): "cancelled",
    (DriverState.RUNNING, DriverState.READY): "progress, or woken meanwhile",
    (DriverState.RUNNING, DriverState.WAITING): "blocked",
    (DriverState.RUNNING, DriverState.PAUSED): "pause, seen at its end",
    (DriverState.RUNNING, DriverState.FINISHING): "finished, failed, or cancelled",
    (DriverState.WAITING, DriverState.READY): "woken",
    (DriverState.WAITING, DriverState.PAUSED): "pause",
    (DriverState.WAITING, DriverState.FINISHING): "cancelled",
    (DriverState.PAUSED, DriverState.READY): "resumed, woken meanwhile",
    (DriverState.PAUSED, DriverState.WAITING): "resumed",
    (DriverState.PAUSED, DriverState.FINISHING): "cancelled",
    (DriverState.FINISHING, DriverState.CLOSED): "nothing of it is under way, closed",
    (DriverState.CLOSED, DriverState.RELEASED): "its query is over",
}
"""Every legal move, and what makes it."""

LEGAL: dict[DriverState, frozenset[DriverState]] = {
    state: frozenset(to for start, to in MOVES if start is state) for state in DriverState
}


class WaitReason(Enum):
    """What a waiting driver waits for."""

    INPUT = "input"
    OUTPUT = "output"
    NEIGHBOUR = "neighbour"
    DEPENDENCY = "dependency"
    ALIGNMENT = "alignment"
    MEMORY = "memory"
    TIMER = "timer"
    COMMIT = "commit"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a driver waits, and for whom, in words. ``tasks``: those among them, as far as tasks have to act."""

    reason: WaitReason
    whom: str
    tasks: tuple[TaskId, ...] = ()

    def __str__(self) -> str:
        return f"waits for {self.reason.value}: {self.whom}"


def check_move(who: str, start: DriverState, to: DriverState) -> None:
    """Raises InternalError if a driver may not go from ``start`` to ``to``."""
    if to not in LEGAL[start]:
        raise InternalError(f"illegal move of driver {who}: {start.value} → {to.value}")
