"""What a driver is in the middle of: elements that are handled in steps, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator


class Agenda:
    """Iterators, oldest first. Each step of one emits a little; the next one begins when it is through."""

    def __init__(self) -> None:
        self._items: deque[Iterator[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, steps: Iterator[None]) -> None:
        """Put something at the end. If it is the only thing it begins at once."""
        self._items.append(steps)
        if len(self._items) == 1:
            self.go_on()

    def go_on(self) -> None:
        """Take one step that emits something, or all that do not."""
        while self._items:
            try:
                next(self._items[0])
            except StopIteration:
                self._items.popleft()
            else:
                return

    def clear(self) -> None:
        """Forget everything."""
        self._items.clear()
