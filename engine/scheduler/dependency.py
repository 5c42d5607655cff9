"""Something that must be done before others can go on: a join's build side, say, or the start of a query.

A ready flag and the handles that wait for it (Doris's shape). It knows no
scheduler: all it does is wake handles. There is no lock in it either, because of the order of the two steps on each
side: who waits *registers first and then looks* at the flag, who makes it ready *sets the flag first and then takes*
the waiters. Whatever happens in between, the waiter is woken or sees the flag, or both, which does no harm. (The
appends and pops of a deque are atomic.)
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from .states import Wait, WaitReason


class Waiter(Protocol):
    """Who can be woken: a handle."""

    def wake(self) -> None: ...


class Dependency:
    """See the module's docstring. ``name`` says what must be done, for ``why``."""

    __slots__ = ("_ready", "_waiters", "name")

    def __init__(self, name: str, *, ready: bool = False) -> None:
        self.name = name
        self._ready = ready
        self._waiters: deque[Waiter] = deque()

    @property
    def ready(self) -> bool:
        return self._ready

    @property
    def wait(self) -> Wait:
        """What someone who is blocked by it says."""
        return Wait(WaitReason.DEPENDENCY, self.name)

    def blocks(self, waiter: Waiter) -> bool:
        """Whether ``waiter`` must wait; if so, it will be woken."""
        if self._ready:
            return False
        self._waiters.append(waiter)
        return not self._ready

    def set_ready(self) -> None:
        """It is done: wake everybody who waits."""
        self._ready = True
        while self._waiters:
            try:
                waiter = self._waiters.popleft()
            except IndexError:  # another thread has taken the last one
                return
            waiter.wake()

    def block(self) -> None:
        """It is no longer done."""
        self._ready = False
