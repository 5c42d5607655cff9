"""When the next checkpoint starts.

Rules:

1. One checkpoint at a time. What comes due meanwhile is one request afterwards, however many asked: a thousand tasks
   that end one by one make few checkpoints.
2. Periodic and final checkpoints keep the minimum pause after the end of the last one; a user's request does not.
3. After a failed checkpoint everything waits ``retry_pause``, so that a broken disk is not asked in a hot loop.
4. Nothing starts unless the job runs. The periodic clock starts anew when it does.
"""

from __future__ import annotations

from .settings import Settings


class RequestDecider:
    """Remembers who asked and when the last checkpoint started and ended; answers when the next may start."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: None unless the job runs without a checkpoint in flight; then when the next periodic one is due, if any.
        self._periodic_at: float | None = None
        #: Whether the job runs.
        self._running = False
        #: Whether a checkpoint is in flight.
        self._in_flight = False
        #: Whether a user asked since the last start.
        self._requested = False
        #: Whether the checkpoint in flight answers a user; if it fails, the request stands again.
        self._answering = False
        #: Whether a branch has ended that no checkpoint covers.
        self._final = False
        #: Not before this time: minimum pause, and pause after a failure.
        self._pause_until = float("-inf")
        self._retry_at = float("-inf")

    def job_runs(self, now: float) -> None:
        """Every task runs or has finished."""
        if not self._running:
            self._running = True
            self._schedule(now)

    def job_stops(self) -> None:
        """Some task does not run: no checkpoint until ``job_runs``. Requests are kept."""
        self._running = False

    def request(self) -> None:
        """A user asks for a checkpoint now."""
        self._requested = True

    def want_final(self, wanted: bool) -> None:
        """Whether some ended branch still needs a checkpoint that covers it."""
        self._final = wanted

    def started(self, now: float) -> None:
        """A checkpoint starts; it answers every request made so far."""
        self._in_flight = True
        self._answering, self._requested = self._requested, False
        self._schedule(now)

    def completed(self, now: float) -> None:
        self._in_flight = False
        self._pause_until = now + self._settings.min_pause

    def aborted(self, now: float) -> None:
        self._in_flight = False
        self._requested |= self._answering
        self._pause_until = now + self._settings.min_pause
        self._retry_at = now + self._settings.retry_pause

    def next_at(self) -> float | None:
        """When the next checkpoint is due (a past time: now); None if none is wanted or none may start."""
        if not self._running or self._in_flight:
            return None
        wanted: list[float] = []
        if self._requested:
            wanted.append(self._retry_at)
        if self._final:
            wanted.append(max(self._pause_until, self._retry_at))
        if self._periodic_at is not None:
            wanted.append(max(self._periodic_at, self._pause_until, self._retry_at))
        return min(wanted, default=None)

    def is_due(self, now: float) -> bool:
        """Whether a checkpoint should start now."""
        at = self.next_at()
        return at is not None and at <= now

    def _schedule(self, now: float) -> None:
        interval = self._settings.interval
        self._periodic_at = None if interval is None else now + interval
