"""A queue with many posters and one taker: the one door into a thread that owns something.

Rules:

1. ``post`` never blocks and may be called from any thread. Messages are taken in the order in which they were posted.
2. One thread takes. It owns what the messages are about, so that needs no locks.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

Message = TypeVar("Message")


class Mailbox(Generic[Message]):
    """An unbounded queue whose taker gets everything that is there at once."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Message] = SimpleQueue()

    def post(self, message: Message) -> None:
        """Put a message in."""
        self._queue.put(message)

    def take(self, timeout: float | None) -> list[Message]:
        """Everything that was posted; waits up to ``timeout`` seconds (None: for ever, 0: not at all) for the first."""
        taken: list[Message] = []
        try:
            taken.append(self._queue.get(block=timeout != 0, timeout=timeout))
            while True:
                taken.append(self._queue.get_nowait())
        except Empty:
            return taken
