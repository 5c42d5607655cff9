"""The request decider against what its history says, in any order of events.

The model keeps the history only: who asked when, what started and ended when. From it follows what must be the next
time, by the rules of ``request_decider.py`` read literally.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.coordinator.request_decider import RequestDecider
from penstock.coordinator.settings import Settings

NEVER = float("-inf")
SPANS = st.sampled_from([0.0, 0.25, 1.0, 3.0, 10.0])


class DeciderMachine(RuleBasedStateMachine):
    """Times are multiples of 1/4, so that sums are exact."""

    @initialize(
        interval=st.sampled_from([None, 1.0, 4.0]),
        min_pause=st.sampled_from([0.0, 2.0]),
        retry_pause=st.sampled_from([0.0, 0.5, 5.0]),
    )
    def begin(self, interval: float | None, min_pause: float, retry_pause: float) -> None:
        self.settings = Settings(interval=interval, min_pause=min_pause, retry_pause=retry_pause)
        self.decider = RequestDecider(self.settings)
        self.now = 100.0
        self.running = self.in_flight = self.final = False
        #: Users' requests that no completed checkpoint has answered, and those of them that the one in flight answers.
        self.open_requests = 0
        self.being_answered = 0
        self.clock_began = self.ended = self.failed = NEVER
        self.requests = 0

    @rule(span=SPANS)
    def time_passes(self, span: float) -> None:
        self.now += span

    @rule()
    def job_runs(self) -> None:
        if not self.running:
            self.clock_began = self.now
        self.running = True
        self.decider.job_runs(self.now)

    @precondition(lambda self: self.running)
    @rule()
    def job_stops(self) -> None:
        self.running = False
        self.decider.job_stops()

    @rule()
    def user_asks(self) -> None:
        self.open_requests += 1
        self.decider.request()

    @rule(wanted=st.booleans())
    def branch_ends_or_is_covered(self, wanted: bool) -> None:
        self.final = wanted
        self.decider.want_final(wanted)

    @precondition(lambda self: self.decider.is_due(self.now))
    @rule()
    def checkpoint_starts(self) -> None:
        assert self.running
        assert not self.in_flight
        assert self.now >= self.failed + self.settings.retry_pause, "a broken disk is asked in a hot loop"
        if not self.open_requests:
            assert self.now >= self.ended + self.settings.min_pause
            assert self.final or self.now >= self.clock_began + (self.settings.interval or float("inf"))
        self.in_flight, self.clock_began = True, self.now
        self.being_answered = self.open_requests
        self.decider.started(self.now)

    @precondition(lambda self: self.in_flight)
    @rule()
    def checkpoint_completes(self) -> None:
        self.in_flight, self.ended = False, self.now
        self.open_requests -= self.being_answered
        self.decider.completed(self.now)

    @precondition(lambda self: self.in_flight)
    @rule()
    def checkpoint_fails(self) -> None:
        self.in_flight, self.ended, self.failed = False, self.now, self.now
        self.decider.aborted(self.now)

    @invariant()
    def next_time_is_the_earliest_that_the_rules_allow(self) -> None:
        if not hasattr(self, "decider"):
            return
        pause, retry = self.ended + self.settings.min_pause, self.failed + self.settings.retry_pause
        allowed = []
        if self.running and not self.in_flight:
            allowed += [retry] if self.open_requests else []
            allowed += [max(pause, retry)] if self.final else []
            if self.settings.interval is not None:
                allowed.append(max(self.clock_began + self.settings.interval, pause, retry))
        assert self.decider.next_at() == min(allowed, default=None)


TestDecider = DeciderMachine.TestCase
TestDecider.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
