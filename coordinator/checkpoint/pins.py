"""Pins: somebody outside the job depends on a completed checkpoint, and the log says so before they rely on it.

Rules:

1. A checkpoint is held from the request on, and pinned once that is durable: only then the status shows it, and
   only then what the name depended on before is free.
2. Requests are written one by one, when the log has nothing else to do; a write that fails is tried again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..log.retained import Gone
from ..model.events import PinRequested, UnpinRequested
from ..model.manifest import Pinned, Unpinned
from ..state.context import Context

REMEMBERED = 64


class Pins:
    """See the module's rules. ``let_go`` orders deleted what an unpinned checkpoint leaves."""

    def __init__(self, context: Context, let_go: Callable[[Gone], None]) -> None:
        self._context = context
        self._retained = context.retained
        self._let_go = let_go
        #: Not in the log yet, oldest first.
        self._waiting: deque[PinRequested | UnpinRequested] = deque()
        #: Names whose checkpoint was not kept any more, the newest last.
        self.refused: deque[str] = deque(maxlen=REMEMBERED)

    def request(self, event: PinRequested | UnpinRequested) -> None:
        """Note what is wanted."""
        if isinstance(event, PinRequested) and not self._retained.hold(event.checkpoint):
            self.refused.append(event.name)
            return
        self._waiting.append(event)

    def store_due(self) -> None:
        """Write the next one, if the log is free."""
        log, generation = self._context.log, self._context.generation
        if not self._waiting or not log.is_idle:
            return
        event, number = self._waiting[0], log.next_number
        if isinstance(event, PinRequested):
            entry = Pinned(number=number, generation=generation, checkpoint=event.checkpoint, name=event.name)
            self._context.order(log.store(entry))
        else:
            self._context.order(log.store(Unpinned(number=number, generation=generation, name=event.name)))

    def stored(self, entry: Pinned | Unpinned) -> None:
        """It is durable."""
        self._waiting.popleft()
        if isinstance(entry, Pinned):
            self._let_go(self._retained.pinned(entry))
        else:
            self._let_go(self._retained.unpinned(entry))
