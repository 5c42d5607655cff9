"""Write-behind: what a driver writes to disks is written on another thread, in the order in which it was given.

Rules:

1. The jobs of one driver run one after the other, never two at once. The driver goes on meanwhile, as long as it
   ``has_room``; so what waits to be written is bounded, and no thread of the scheduler waits for a disk.
2. After the first error nothing is written any more, only removed. The error is raised on the driver's thread, named
   after the operator.
3. ``then`` is how a driver learns that all it has given so far is written, without waiting for it. It hears in the
   order in which it asked, though the second be written before it has heard of the first.
4. ``settle`` is for who must read in the middle of a step what has just been written: it does what is left itself.
   Between two steps nobody needs it, because the driver waits for room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition
from typing import Any

from ..core.errors import InternalError, PenstockError
from ..core.operator import Background, run_at_once
from ..core.user_code import is_users_own, raised, user_frames

LIMIT_BYTES = 16 * 1024 * 1024
"""Bytes that may wait to be written while the driver goes on: as much as a channel may have in flight."""


def _tell_nobody(action: Callable[[], object]) -> None:
    """Where writing is done at once nobody waits for it."""


class WriteBehind:
    """See the module's rules. ``post`` lets the driver call something before its next step; from any thread.

    ``limit``: bytes that may wait while there is room; 0: there is room only when everything is written.
    """

    def __init__(
        self,
        background: Background = run_at_once,
        post: Callable[[Callable[[], object]], None] = _tell_nobody,
        limit: int = LIMIT_BYTES,
    ) -> None:
        self._background = background
        self._post = post
        self._limit = limit
        self._changed = Condition()
        #: jobs that have not begun: operator, work, bytes, and whether they are done even after an error
        self._queue: deque[tuple[str, Callable[[], None], int, bool]] = deque()
        #: a worker has been asked for and has not left again; somebody is at a job
        self._manned = False
        self._busy = False
        #: bytes of the jobs that are not done
        self._size = 0
        #: the driver has found no room, and is to be woken when there is some
        self._wanted = False
        self._error: PenstockError | None = None
        #: actions of ``then`` that the driver has not come to
        self._awaited = 0
        #: jobs that were done by who could not wait for them
        self.settled = 0

    @property
    def idle(self) -> bool:
        """Whether everything has been written."""
        return not self._queue and not self._busy

    @property
    def is_awaited(self) -> bool:
        """Whether the driver has yet to do what it wanted ``then``."""
        return self._awaited > 0

    def has_room(self) -> bool:
        """Whether the driver may go on; if not it is woken when it may."""
        if not self._queue and not self._busy:
            return True
        with self._changed:
            self._wanted = not self.idle and self._size >= self._limit
            return not self._wanted

    def write(self, operator: str, work: Callable[[], None], size: int = 0) -> None:
        """Let ``work`` be done behind everything given so far. Raises the error of an earlier job, if there is one."""
        self.check()
        self._add(operator, work, size)
        self.check()

    def remove(self, operator: str, work: Callable[[], None]) -> None:
        """The same for work that removes something: it is done even after an error, which stays untold."""
        self._add(operator, work, 0, in_any_case=True)

    def _add(self, operator: str, work: Callable[[], None], size: int, *, in_any_case: bool = False) -> None:
        with self._changed:
            self._queue.append((operator, work, size, in_any_case))
            self._size += size
            man, self._manned = not self._manned, True
        if man:
            self._background(self._work_off, self._worked_off)

    def then(self, action: Callable[[], object]) -> None:
        """Call ``action`` on the driver's thread when everything given so far is written: at once, or by ``post``."""
        idle = self.idle  # first: a job that fails says so before it is done
        self.check()
        if not idle:
            self._awaited += 1
            self.write("", lambda: self._post(lambda: self._come_to(action)))
        elif self._awaited:  # all is written, and what was asked before is on its way to the driver
            self._awaited += 1
            self._post(lambda: self._come_to(action))
        else:
            action()

    def _come_to(self, action: Callable[[], object]) -> None:
        self._awaited -= 1
        action()

    def settle(self) -> None:
        """Do what is left in place."""
        while not self.idle:
            if self._one():
                self.settled += 1
            else:
                with self._changed:
                    self._changed.wait_for(lambda: not self._busy)
        self.check()

    def end(self) -> None:
        """The driver closes, and no job is in the middle: what has not begun never will, what comes is done at once."""
        with self._changed:
            self._queue.clear()
            self._background, self._manned, self._size, self._error = run_at_once, False, 0, None

    def check(self) -> None:
        """Raise the first error."""
        if self._error is not None:
            raise self._error

    # ------------------------------------------------------------------ on other threads

    def _work_off(self) -> None:
        while self._one(worker=True):
            pass

    def _worked_off(self, answer: Any) -> None:
        if isinstance(answer, BaseException):  # not a job's: those are kept
            self._fail("", answer)

    def _one(self, *, worker: bool = False) -> bool:
        """Do the oldest job, unless there is none or another thread is at one: then a worker leaves."""
        with self._changed:
            if self._busy or not self._queue:
                self._manned = self._manned and not worker
                return False
            self._busy = True  # first: ``idle`` is read without the lock
            operator, work, size, in_any_case = self._queue.popleft()
        try:
            if self._error is None or in_any_case:
                work()
        except BaseException as error:
            self._fail(operator, error)
        finally:
            with self._changed:
                self._busy = False
                self._size -= size
                wake = self._wanted and (self.idle or 2 * self._size < self._limit)
                self._wanted = self._wanted and not wake
                self._changed.notify_all()
            if wake:
                self._post(self.check)
        return True

    def _fail(self, operator: str, error: BaseException) -> None:
        said = isinstance(error, PenstockError) and not is_users_own(error)
        if not (said or isinstance(error, OSError)) and user_frames(error) is not None:
            error = raised("its code", error, "fix the code")
        elif not isinstance(error, PenstockError):
            error = InternalError(f"{type(error).__name__}: {error}", operator=operator)
        named = error if error.operator else error.at(operator)
        if self._error is None:
            self._error = named
        self._post(self.check)
