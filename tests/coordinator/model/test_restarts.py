"""The restart policies, each with its own way to count, and the budget that uses them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.coordinator.model.restarts import (
    ExponentialDelay,
    FailureHistory,
    FailureRate,
    FixedDelay,
    RestartBudget,
    RestartPolicy,
)
from penstock.coordinator.model.settings import Settings


def answers(policy: RestartPolicy, *times: float) -> list[float | None]:
    """The delay after each failure; None: the job fails."""
    history = FailureHistory()
    found = [policy.restart_at(history, now) for now in times]
    return [None if at is None else round(at - now, 6) for at, now in zip(found, times, strict=True)]


def test_fixed_delay_restarts_so_often_and_no_more_however_much_time_passes() -> None:
    assert answers(FixedDelay(2, delay=3.0), 0, 10, 1e9) == [3.0, 3.0, None]
    assert answers(FixedDelay(0), 0) == [None]
    assert answers(FixedDelay(None, delay=1.0), *range(50)) == [1.0] * 50


@pytest.mark.parametrize(("fourth", "restarts"), [(3, False), (5, False), (5.5, True)])
def test_failure_rate_refuses_one_failure_too_many_within_the_interval(fourth: float, restarts: bool) -> None:
    minutes = [60.0 * minute for minute in (0, 1, 2, fourth)]
    found = answers(FailureRate(3, interval=300.0, delay=1.0), *minutes)
    assert found == [1.0, 1.0, 1.0, 1.0 if restarts else None]


def test_exponential_delay_grows_with_each_restart_up_to_the_maximum() -> None:
    policy = ExponentialDelay(initial=1, maximum=5, factor=2)
    assert answers(policy, 0, 10, 20, 30, 40) == [1, 2, 4, 5, 5]


def test_exponential_delay_takes_failures_before_the_scheduled_restart_for_one() -> None:
    policy = ExponentialDelay(initial=10, maximum=100, factor=2, attempts=2)
    assert answers(policy, 0, 4, 9, 10, 29, 30) == [10, 6, 1, 20, 1, None]


def test_exponential_delay_forgives_after_a_quiet_time_since_the_restart() -> None:
    policy = ExponentialDelay(initial=1, maximum=100, factor=2, reset_after=50, attempts=2)
    assert answers(policy, 0, 50.9) == [1, 2]
    assert answers(policy, 0, 10, 62, 70, 80) == [1, 2, 1, 2, None]


def test_delays_of_very_many_failures_do_not_overflow() -> None:
    policy = ExponentialDelay(maximum=7, factor=1e9)
    assert answers(policy, *(100.0 * number for number in range(1000)))[-1] == 7


def test_failures_before_a_scheduled_restart_are_one_whatever_the_policy() -> None:
    budget = RestartBudget(Settings(restart=FixedDelay(1, delay=2.0)).restart_policy)
    assert [budget.next_restart(now) for now in (0.0, 0.5, 1.9, 2.0)] == [2.0, 2.0, 2.0, None]
    assert budget.total == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FixedDelay(-1), "attempts must not be negative"),
        (lambda: FailureRate(interval=0.0), "interval must be above 0"),
        (lambda: ExponentialDelay(factor=0.0), "factor must be above 0"),
    ],
)
def test_policies_refuse_what_cannot_work(make: Callable[[], RestartPolicy], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
