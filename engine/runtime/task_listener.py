"""What a task tells its owner, and in which form.

The owner is whoever calls ``step``: a host with a thread of its own, the serial task, or a test.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from ..core.errors import PenstockError
from ..core.identity import Account, CheckpointId, Committable, EndedLanes
from ..exchange.channel_state import ChannelPart
from .windows import OperatorWindow


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """What one task adds to a checkpoint. ``tables``: operator id to state; ``data_ended``: it is a final one;
    ``finished_on_restore``: the task's operators had finished before it was built, and ``tables`` are left out; the
    rest is as in a driver's ``Cut``, of all drivers together."""

    tables: dict[str, pa.Table]
    committables: tuple[Committable, ...]
    data_ended: bool
    channels: tuple[ChannelPart, ...] = ()
    unaligned: bool = False
    alignment: float = 0.0
    processed_bytes: int = 0
    ended: tuple[EndedLanes, ...] = ()
    finished_on_restore: bool = False
    ledger: tuple[Account, ...] = ()


class TaskListener(Protocol):
    """What a task tells its owner: one thing at a time, on whichever thread it happened. Must not block."""

    def round_proposed(self, checkpoint: CheckpointId, round: int) -> None: ...

    def snapshot_taken(self, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None: ...

    def drained(self, barrier: CheckpointId, window: Sequence[OperatorWindow]) -> None:
        """One driver has drained for a task barrier. Several drivers may say so at the same time."""

    def declined(self, checkpoint: CheckpointId) -> None:
        """A source has no rows left up to the round of the checkpoint: it cannot be cut there."""

    def data_ended(self) -> None: ...

    def finished(self) -> None: ...

    def failed(self, error: PenstockError) -> None: ...


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did. Without progress, call again after a message, or at ``wake_at`` if that is not None."""

    progressed: bool
    wake_at: float | None = None


class News:
    """What a task has to tell its listener, in order, one at a time, whichever threads add to it.

    ``tell`` is called outside all locks. A thread that finds another one telling leaves its own news to that one.
    """

    def __init__(self, listener: TaskListener) -> None:
        self.listener = listener
        self._queue: deque[Callable[[TaskListener], None]] = deque()
        self._telling = threading.Lock()

    def add(self, news: Callable[[TaskListener], None]) -> None:
        """Put something at the end."""
        self._queue.append(news)

    def tell(self) -> None:
        """Tell all there is."""
        while self._queue and self._telling.acquire(blocking=False):
            try:
                while self._queue:
                    self._queue.popleft()(self.listener)
            finally:
                self._telling.release()
