"""How often and how soon a job may restart.

Rules:

1. Restarts are counted over the whole job. Each waits longer than the one before, up to a limit.
2. A failure before the restart that is already scheduled belongs to the same restart: a lost machine takes many
   tasks, one after the other.
3. Running for a quiet period forgives everything.
4. No randomness: one coordinator restarts one job, there is no herd to spread.
"""

from __future__ import annotations

from .settings import Settings


class Failover:
    """The restart budget."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: Restarts since the last quiet period.
        self.recent = 0
        #: Restarts ever.
        self.total = 0
        #: When the newest restart happens or happened.
        self._restart_at: float | None = None

    def next_restart(self, now: float) -> float | None:
        """A task failed: when its region restarts, or None if the budget is spent."""
        settings = self._settings
        if self._restart_at is not None and now < self._restart_at:
            return self._restart_at
        if self._restart_at is not None and now - self._restart_at >= settings.quiet_period:
            self.recent = 0
        if self.recent >= settings.max_restarts:
            return None
        delay = self._delay()
        self.recent += 1
        self.total += 1
        self._restart_at = now + delay
        return self._restart_at

    def _delay(self) -> float:
        """Multiplies step by step, so that a large budget cannot overflow."""
        delay = self._settings.restart_delay
        for _ in range(self.recent):
            delay *= self._settings.restart_factor
            if delay >= self._settings.max_restart_delay:
                break
        return min(delay, self._settings.max_restart_delay)
