"""The request decider against what its history says, in any order of events.

The model keeps the history only: who asked when, what started and ended when. From it follows what must be the next
time and the next request, by the rules of ``requests.py`` read literally.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.coordinator.checkpoint import requests
from penstock.coordinator.checkpoint.requests import RequestDecider
from penstock.coordinator.model.kinds import FINAL, PERIODIC, USER, Cause, FailureReason, Request, StopMode
from penstock.coordinator.model.settings import Settings

NEVER = float("-inf")
SPANS = st.sampled_from([0.0, 0.25, 1.0, 3.0, 10.0])


class DeciderMachine(RuleBasedStateMachine):
    """Times are multiples of 1/4, so that sums are exact."""

    @initialize(
        interval=st.sampled_from([None, 1.0, 4.0]),
        min_pause=st.sampled_from([0.0, 2.0]),
        retry_pause=st.sampled_from([0.0, 0.5, 5.0]),
        after_restart=st.sampled_from([0.0, 0.25, 2.0]),
    )
    def begin(
        self,
        interval: float | None,
        min_pause: float,
        retry_pause: float,
        after_restart: float,
    ) -> None:
        self.settings = Settings(
            interval=interval,
            min_pause=min_pause,
            retry_pause=retry_pause,
            after_restart=after_restart,
        )
        self.decider = RequestDecider(self.settings)
        self.now = 100.0
        self.running = self.final = self.stopping = False
        self.in_flight: Request | None = None
        self.savepoints: list[Request] = []
        #: Whether a user waits for a checkpoint that has not started.
        self.user_waits = False
        self.clock_began = self.ended = self.failed = NEVER
        self.interval = interval
        self.asked = 0

    @rule(span=SPANS)
    def time_passes(self, span: float) -> None:
        self.now += span

    @rule(resumed=st.booleans())
    def job_runs(self, resumed: bool) -> None:
        if not self.running:
            self.clock_began, self.interval = self.now, self.settings.interval
            if resumed and self.interval is not None:
                self.interval = min(self.interval, self.settings.after_restart)
        self.running = True
        self.decider.job_runs(self.now, resumed)

    @precondition(lambda self: self.running)
    @rule()
    def job_stops(self) -> None:
        self.running = False
        self.decider.job_stops()

    @rule()
    def user_asks_for_a_checkpoint(self) -> None:
        self.user_waits = True
        self.decider.request()

    @rule(stop=st.booleans())
    def user_asks_for_a_savepoint(self, stop: bool) -> None:
        self.asked += 1
        cause = Cause.STOP if stop else Cause.SAVEPOINT
        request = Request(cause, f"request {self.asked}", "", StopMode.DRAIN if stop else None)
        assert self.decider.request_savepoint(request) is None
        self.savepoints.append(request)

    @rule(wanted=st.booleans())
    def branch_ends_or_is_covered(self, wanted: bool) -> None:
        self.final = wanted
        self.decider.want_final(wanted)

    @precondition(lambda self: self.decider.choose(self.now) is not None)
    @rule()
    def checkpoint_starts(self) -> None:
        request = self.decider.choose(self.now)
        assert request is not None
        self.check_start(request)
        self.decider.started(request, self.now)
        self.in_flight = request
        if request in self.savepoints:
            self.savepoints.remove(request)
            self.stopping |= request.cause is Cause.STOP
        else:
            self.user_waits, self.clock_began, self.interval = False, self.now, self.settings.interval

    def check_start(self, request: Request) -> None:
        """By the words of the rules, not by the times."""
        assert self.running
        assert not self.stopping, "something starts though the job stops"
        assert self.in_flight is None
        assert self.now >= self.failed + self.settings.retry_pause, "a broken disk is asked in a hot loop"
        if request.kind.is_savepoint:
            assert request is self.savepoints[0]
            return
        assert not self.savepoints, "a savepoint waits behind a checkpoint"
        if request is not USER:
            assert not self.user_waits, "a user waits behind a periodic checkpoint"
            assert self.now >= self.ended + self.settings.min_pause
        if request is FINAL:
            assert self.final
        if request is PERIODIC:
            assert self.interval is not None
            assert self.now >= self.clock_began + self.interval

    @precondition(lambda self: self.in_flight)
    @rule()
    def checkpoint_completes(self) -> None:
        self.in_flight = None
        self.ended = self.now
        self.decider.completed(self.now)

    @precondition(lambda self: self.in_flight)
    @rule()
    def checkpoint_fails(self) -> None:
        request, self.in_flight = self.in_flight, None
        assert request is not None
        self.ended = self.failed = self.now
        self.user_waits |= request is USER
        if request.cause is Cause.STOP:
            self.stopping = False
        self.decider.aborted(request, self.now)

    @precondition(lambda self: self.savepoints)
    @rule()
    def job_is_over(self) -> None:
        assert self.decider.drop_queued() == tuple(self.savepoints)
        self.savepoints = []

    @invariant()
    def next_time_is_the_earliest_that_the_rules_allow(self) -> None:
        if not hasattr(self, "decider"):
            return
        assert self.decider.queued == tuple(self.savepoints)
        retry = self.failed + self.settings.retry_pause
        pause = max(retry, self.ended + self.settings.min_pause)
        allowed = []
        if self.running and not self.stopping and self.in_flight is None:
            allowed += [retry] if self.savepoints else []
            allowed += [retry] if self.user_waits else []
            allowed += [pause] if self.final else []
            if self.interval is not None:
                allowed.append(max(self.clock_began + self.interval, pause))
        assert self.decider.next_at() == min(allowed, default=None)


TestDecider = DeciderMachine.TestCase
TestDecider.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)


def test_too_many_savepoints_are_refused() -> None:
    decider = RequestDecider(Settings())
    for number in range(requests.MOST_QUEUED):
        assert decider.request_savepoint(Request(Cause.SAVEPOINT, str(number))) is None
    refused = decider.request_savepoint(Request(Cause.SAVEPOINT, "one more"))
    assert refused is FailureReason.TOO_MANY_CHECKPOINT_REQUESTS
    assert len(decider.queued) == requests.MOST_QUEUED
