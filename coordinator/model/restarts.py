"""When a job restarts after a failure, and when it may not any more.

A policy is a value that the user chose (``ps.Checkpoints(restart=)``); what happened so far is in a
:class:`FailureHistory`. Rules:

1. ``restart_at(history, now)`` is called once for every failure, notes it, and answers the time of the restart, or
   None: the job has failed for good.
2. How failures are counted differs on purpose. :class:`FixedDelay` counts all there ever were, :class:`FailureRate`
   those within an interval, :class:`ExponentialDelay` those since a quiet time.
3. Restarts are counted over the whole job. A failure before the restart that is already scheduled belongs to the same
   restart, whatever the policy (:class:`RestartBudget`): a lost machine takes many tasks, one after the other, and one
   machine is one failure.
4. No randomness: one coordinator restarts one job, there is no herd to spread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


def _require(policy: object, above_zero: tuple[str, ...], not_negative: tuple[str, ...]) -> None:
    """A policy is a user's word: it is checked where it is said."""
    for name in above_zero:
        if getattr(policy, name) <= 0:
            raise ValueError(f"{name} must be above 0, not {getattr(policy, name)}")
    for name in not_negative:
        if (getattr(policy, name) or 0) < 0:
            raise ValueError(f"{name} must not be negative, but is {getattr(policy, name)}")


@dataclass
class FailureHistory:
    """What one job has been through; a policy uses what it needs of it."""

    attempts: int = 0
    """Restarts that count: ever, or since the last quiet time."""
    times: list[float] = field(default_factory=list)
    """The newest failures, oldest first, as many as the policy remembers."""
    scheduled: float | None = None
    """When the newest restart happens or happened."""


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """So many restarts, each after the same delay in seconds. ``attempts`` None: no limit; 0: no restart at all."""

    attempts: int | None = 1
    delay: float = 1.0

    def __post_init__(self) -> None:
        _require(self, (), ("attempts", "delay"))

    def restart_at(self, history: FailureHistory, now: float) -> float | None:
        history.attempts += 1
        return None if self.attempts is not None and history.attempts > self.attempts else now + self.delay


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Any number of restarts, unless more than ``failures`` failures lie within ``interval`` seconds."""

    failures: int = 1
    interval: float = 60.0
    delay: float = 1.0

    def __post_init__(self) -> None:
        _require(self, ("interval",), ("failures", "delay"))

    def restart_at(self, history: FailureHistory, now: float) -> float | None:
        history.times = [*history.times, now][-(self.failures + 1) :]
        too_many = len(history.times) > self.failures and now - history.times[0] <= self.interval
        return None if too_many else now + self.delay


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """Each restart waits ``factor`` times longer than the one before; a quiet time after one forgives them all."""

    initial: float = 1.0
    maximum: float = 60.0
    factor: float = 1.5
    reset_after: float = 3600.0
    """Running this long after a restart begins anew."""
    attempts: int | None = None
    """Restarts without a quiet time in between. None: no limit."""

    def __post_init__(self) -> None:
        _require(self, ("factor", "reset_after"), ("initial", "maximum", "attempts"))

    def restart_at(self, history: FailureHistory, now: float) -> float | None:
        scheduled = history.scheduled
        if scheduled is not None and now < scheduled:
            return scheduled
        if scheduled is not None and now - scheduled >= self.reset_after:
            history.attempts = 0
        delay = self.initial
        for _ in range(history.attempts):  # step by step, so that a large number cannot overflow
            if delay >= self.maximum:
                break
            delay *= self.factor
        history.attempts += 1
        if self.attempts is not None and history.attempts > self.attempts:
            return None
        history.scheduled = now + min(max(self.initial, delay), self.maximum)
        return history.scheduled


RestartPolicy: TypeAlias = FixedDelay | FailureRate | ExponentialDelay


class RestartBudget:
    """How often a job has restarted, and whether it may again."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
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
        at = self._policy.restart_at(self._history, now)
        if at is not None:
            self.total += 1
            self._restart_at = at
        return at
