"""When a job restarts after a failure, and when it may not any more.

A policy is a value that the user chose; what happened so far stands in a :class:`FailureHistory`. Rules:

1. ``restart_at(history, now, chance)`` is called once for every failure, notes it, and answers the time of the
   restart, or None: the job has failed for good.
2. Time and chance come in as arguments: ``chance()`` gives a number between -1 and 1 for the jitter.
3. How failures are counted differs on purpose. :class:`FixedDelay` counts all there ever were, :class:`FailureRate`
   those within an interval, :class:`ExponentialDelay` those since a quiet time, and takes failures before a restart
   that is already scheduled for one and the same. :class:`EagerExponentialDelay` does not: every failure doubles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

Chance: TypeAlias = Callable[[], float]


def no_chance() -> float:
    """No jitter."""
    return 0.0


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
    """So many restarts, each after the same delay. ``attempts`` None: no limit; 0: no restart at all."""

    attempts: int | None = 1
    delay: float = 1.0

    def __post_init__(self) -> None:
        _require(self, (), ("attempts", "delay"))

    def restart_at(self, history: FailureHistory, now: float, chance: Chance = no_chance) -> float | None:
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

    def restart_at(self, history: FailureHistory, now: float, chance: Chance = no_chance) -> float | None:
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
    jitter: float = 0.1
    """This share of the delay, up or down by chance, but never below the first delay or above the longest."""
    attempts: int | None = None
    """Restarts without a quiet time in between. None: no limit."""

    def __post_init__(self) -> None:
        _require(self, ("factor", "reset_after"), ("initial", "maximum", "jitter", "attempts"))

    def restart_at(self, history: FailureHistory, now: float, chance: Chance = no_chance) -> float | None:
        scheduled = history.scheduled
        if scheduled is not None and now < scheduled:
            return scheduled
        if scheduled is not None and now - scheduled >= self.reset_after:
            history.attempts = 0
        delay = grown(self.initial, self.factor, history.attempts, self.maximum)
        delay = max(self.initial, delay * (1 + self.jitter * chance()))
        history.attempts += 1
        if self.attempts is not None and history.attempts > self.attempts:
            return None
        history.scheduled = now + min(delay, self.maximum)
        return history.scheduled


@dataclass(frozen=True, slots=True)
class EagerExponentialDelay:
    """As it used to be: every failure multiplies the delay, whether or not a restart is under way. No limit."""

    initial: float = 1.0
    maximum: float = 300.0
    factor: float = 2.0
    reset_after: float = 3600.0
    """A time without failures longer than this *and* the current delay begins anew."""
    jitter: float = 0.1

    def __post_init__(self) -> None:
        _require(self, ("factor", "reset_after"), ("initial", "maximum", "jitter"))

    def restart_at(self, history: FailureHistory, now: float, chance: Chance = no_chance) -> float | None:
        delay = grown(self.initial, self.factor, history.attempts, self.maximum)
        if history.times and now - history.times[-1] < self.reset_after + delay:
            history.attempts += 1
            delay = grown(self.initial, self.factor, history.attempts, self.maximum)
        else:
            history.attempts, delay = 0, self.initial
        history.times = [now]
        return now + min(delay * (1 + self.jitter * chance()), self.maximum)


RestartPolicy: TypeAlias = FixedDelay | FailureRate | ExponentialDelay | EagerExponentialDelay


def grown(initial: float, factor: float, times: int, maximum: float) -> float:
    """``initial`` multiplied so often, up to the maximum; step by step, so that a large number cannot overflow."""
    delay = initial
    for _ in range(times):
        if delay >= maximum:
            break
        delay *= factor
    return min(delay, maximum)
