"""What works in the background of a reader, here when it is told to."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any


class OtherThreads:
    """They do what they were given in its order, or in one that ``chance`` draws. ``goes``: how much was done;
    ``most``: how much waited at a time."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.goes = self.most = 0
        self._chance = chance

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append((work, done))
        self.most = max(self.most, len(self.waiting))

    def run(self) -> bool:
        """Do one thing; False: there is none."""
        if not self.waiting:
            return False
        work, done = self.waiting.pop(self._chance.randrange(len(self.waiting)) if self._chance else 0)
        self.goes += 1
        try:
            found = work()
        except BaseException as error:
            found = error
        done(found)
        return True
