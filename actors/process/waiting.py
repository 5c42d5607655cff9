"""Waiting for a job, wherever it runs. No Ray."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...coordinator.model.statistics import JobStatus

POLL_SECONDS = 60.0
"""Longest time that one question to the coordinator stays open; a change of status ends it at once."""


class Deadline:
    """What is left of a timeout, for calls that wait several times. ``seconds`` None: for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds left, 0 at least."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())


def wait_for_status(
    status: JobStatus,
    following: Callable[[float], JobStatus],
    condition: Callable[[JobStatus], bool],
    timeout: float | None,
) -> JobStatus:
    """The first status of which ``condition`` holds, or the last one that there is, beginning with ``status``.

    ``following(seconds)`` gives the next status, after ``seconds`` at most. Raises TimeoutError after ``timeout``.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while not condition(status) and not status.is_over:
        left = POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic())
        if left <= 0:
            raise TimeoutError(f"job {status.job!r} is {status.state} after {timeout:g} s: {status.why}")
        status = following(left)
    return status
