"""What happened between two task barriers: statistics per operator, and the barriers that callers wait for.

Velox counts barriers and has one histogram; here each barrier says who delayed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ..core.errors import InternalError
from ..core.identity import CheckpointId
from ..runtime.statistics import OperatorWindow, WindowStatistics


@dataclass(slots=True)
class _Requested:
    """A barrier that was requested and has not been reached."""

    barrier: CheckpointId
    since: float
    future: Future[WindowStatistics] = field(default_factory=Future)
    operators: list[OperatorWindow] = field(default_factory=list)
    #: drivers that have drained
    drivers: int = 0


class Windows:
    """The barriers of one plan, in the order in which they were requested. Not locked: the owner does that."""

    def __init__(self, drivers: int) -> None:
        self._drivers = drivers
        self._count = 0
        self._waiting: deque[_Requested] = deque()

    def request(self, now: float) -> tuple[CheckpointId, Future[WindowStatistics]]:
        """A new barrier, behind all others."""
        self._count += 1
        requested = _Requested(CheckpointId(0, self._count), now)
        self._waiting.append(requested)
        return requested.barrier, requested.future

    @property
    def outstanding(self) -> bool:
        """Whether a barrier was requested that has not been reached."""
        return bool(self._waiting)

    def drained(
        self, barrier: CheckpointId, window: Sequence[OperatorWindow], now: float
    ) -> tuple[Future[WindowStatistics], WindowStatistics] | None:
        """A driver has drained; what the barrier's future is to be fulfilled with, if it was the last one."""
        requested = next((each for each in self._waiting if each.barrier == barrier), None)
        if requested is None:
            return None
        requested.operators += window
        requested.drivers += 1
        if requested.drivers < self._drivers:
            return None
        if requested is not self._waiting[0]:
            raise InternalError(f"barrier {barrier} was reached before {self._waiting[0].barrier}")
        self._waiting.popleft()
        return requested.future, WindowStatistics(barrier.number, tuple(requested.operators), now - requested.since)

    def abort(self) -> list[Future[WindowStatistics]]:
        """The plan has ended: the futures of all barriers that will not be reached."""
        left = [each.future for each in self._waiting]
        self._waiting.clear()
        return left
