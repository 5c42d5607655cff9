"""The states of a driver, the legal moves between them, and what a driver may wait for.

One enum, one table, one way to move. The states join those of Velox (on thread, enqueued, blocked, terminated), Doris
(runnable, blocked, pending finish, finalized), Fennel (sleeping, running, inhibited) and DuckDB (interrupted):

- CREATED: built, not started. READY: may run. RUNNING: a thread is in its ``step``.
- WAITING: cannot run before what it waits for happens; it always names that (:class:`Wait`).
- PAUSED: kept from running by its task. FINISHING: its work is over; what it started elsewhere is not.
- CLOSED: its operators are closed. RELEASED: nothing refers to it any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..errors import InternalError


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


LEGAL: dict[DriverState, frozenset[DriverState]] = {
    DriverState.CREATED: frozenset({DriverState.READY, DriverState.CLOSED}),
    DriverState.READY: frozenset({DriverState.RUNNING, DriverState.PAUSED, DriverState.FINISHING}),
    DriverState.RUNNING: frozenset(
        {DriverState.READY, DriverState.WAITING, DriverState.PAUSED, DriverState.FINISHING},
    ),
    DriverState.WAITING: frozenset({DriverState.READY, DriverState.PAUSED, DriverState.FINISHING}),
    DriverState.PAUSED: frozenset({DriverState.READY, DriverState.WAITING, DriverState.FINISHING}),
    DriverState.FINISHING: frozenset({DriverState.CLOSED}),
    DriverState.CLOSED: frozenset({DriverState.RELEASED}),
    DriverState.RELEASED: frozenset(),
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
    """Why a driver waits, and for whom, in words."""

    reason: WaitReason
    whom: str

    def __str__(self) -> str:
        return f"waits for {self.reason.value}: {self.whom}"


def check_move(who: str, start: DriverState, to: DriverState) -> None:
    """Raises InternalError if a driver may not go from ``start`` to ``to``."""
    if to not in LEGAL[start]:
        raise InternalError(f"illegal move of driver {who}: {start.value} → {to.value}")
