"""How often and how soon a job may restart.

Rules:

1. Restarts are counted over the whole job, by the policy that the user chose (``restart_strategies.py``).
2. A failure before the restart that is already scheduled belongs to the same restart, whatever the policy: a lost
   machine takes many tasks, one after the other, and one machine is one failure.
3. No randomness unless the shell hands some over: one coordinator restarts one job, there is no herd to spread.
"""

from __future__ import annotations

from ..model.restart_strategies import Chance, FailureHistory, no_chance
from ..model.settings import Settings


class Failover:
    """The restart budget."""

    def __init__(self, settings: Settings, chance: Chance = no_chance) -> None:
        self._policy = settings.restart_policy
        self._chance = chance
        #: What the policy remembers.
        self._history = FailureHistory()
        #: Restarts ever.
        self.total = 0
        #: When the newest restart happens or happened.
        self._restart_at: float | None = None

    def next_restart(self, now: float) -> float | None:
        """A task failed: when its region restarts, or None if the budget is spent."""
        if self._restart_at is not None and now < self._restart_at:
            return self._restart_at
        at = self._policy.restart_at(self._history, now, self._chance)
        if at is not None:
            self.total += 1
            self._restart_at = at
        return at
