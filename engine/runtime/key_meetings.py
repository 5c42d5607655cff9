"""Where joins tell which keys they need, and the readers of sources hear of it, within one process.

Rules:

1. A *meeting* is of the running subtasks of one join and the readers of one of its inputs, all of certain attempts:
   what is restarted meets anew. It lives as long as one of them.
2. A reader's rows may go to several subtasks of the join: what they need is known when all of them have told it.
3. A reader is woken when it is known, or when one of them gives up, at the latest as it is closed: then nothing is left
   out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import pyarrow as pa

from ..core.identity import Attempt, TaskId
from ..kernels.key_filter import KeyFilter
from ..plan.plan import KeyFilterPlan

MOST_BYTES = 1024 * 1024 * 1024
"""Of keys of more bytes nothing is told: an array of text has room for twice as much."""


class KeyMeetings:
    """The meetings of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[tuple[object, ...], KeyMeeting] = WeakValueDictionary()

    def of(self, planned: KeyFilterPlan, joins: Sequence[tuple[TaskId, Attempt]]) -> KeyMeeting:
        """The meeting with these subtasks of a join."""
        place = planned.join, planned.port, planned.source, *joins
        with self._lock:
            found = self._known.get(place)
            if found is None:
                found = self._known[place] = KeyMeeting(planned, len(joins))
            return found


class KeyMeeting:
    """See the module's rules. ``count``: subtasks of the join."""

    def __init__(self, planned: KeyFilterPlan, count: int) -> None:
        self.planned = planned
        self.filter = KeyFilter(planned.keys)
        #: nothing more will be told
        self.is_over = False
        self._missing = count
        self._lock = threading.Lock()
        self._told: dict[TaskId, Sequence[pa.Array]] = {}
        self._wakes: list[Callable[[], None]] = []

    def listener(self, subtask: TaskId) -> Listener:
        """Whom a subtask of the join tells its keys."""
        return Listener(self, subtask)

    def is_awaited(self) -> bool:
        """Whether readers are to wait for what is told."""
        return self.planned.waits and not self.is_over

    def wake(self, wake: Callable[[], None]) -> None:
        """Let a reader know when it is over."""
        with self._lock:
            if not self.is_over:
                self._wakes.append(wake)

    def hear(self, subtask: TaskId, window: int, columns: Sequence[pa.Array]) -> int:
        """What one subtask needs. The bytes of the test that this makes."""
        with self._lock:
            self._told[subtask] = columns
            if self.is_over or len(self._told) < self._missing:
                return 0
            parts = list(zip(*self._told.values(), strict=True))
        # columns may come in several forms, and be too large for one array
        alike = all(len({part.type for part in each}) == 1 and _bytes(each) <= MOST_BYTES for each in parts)
        size = self.filter.publish(window, [_together(each) for each in parts]) if alike else 0
        self.end()
        return size

    def end(self) -> None:
        """Nothing is awaited any more."""
        with self._lock:
            self.is_over = True
            self._told.clear()
            wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()


@dataclass(frozen=True, slots=True)
class Listener:
    """Hears what one subtask of a join needs (``KeyListener``)."""

    meeting: KeyMeeting
    subtask: TaskId

    @property
    def keys(self) -> Sequence[int]:
        """Which of the join's keys it wants."""
        return self.meeting.filter.keys

    def publish(self, window: int, columns: Sequence[pa.Array]) -> int:
        """Those of the subtask."""
        return self.meeting.hear(self.subtask, window, columns)

    def give_up(self) -> None:
        """It has too many, or will not tell."""
        self.meeting.end()


def _bytes(parts: Sequence[pa.Array]) -> int:
    return sum(part.nbytes for part in parts)


def _together(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
