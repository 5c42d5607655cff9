"""The scheduler on one thread, in an order that a seed chooses: thousands of interleavings in seconds, each repeatable.

What a thread of the pool does in one go is cut into steps: claim, run, complete; claim for closing, close, closed; the
telling of errors and ends. Between any two steps of one worker those of others, wake-ups, background work, time, and
actions given to ``later`` may come in. So a wake-up can arrive before the blocked thread has left, an end be told while
something else already begins, and so on. Rules:

1. Each step is one of the legal ones, chosen by the seed. Some are stray: a wake-up of any runnable at any time.
2. Time is virtual. It passes in small seeded steps, and jumps to the next timer only if nothing else can happen.
3. After each step the invariants of the core are checked. What goes wrong is raised with the seed and the step.
4. If nothing can happen while a query is open, :class:`StuckError` tells the chain of waiting.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from penstock.engine.core.errors import InternalError
from penstock.engine.scheduler.core import Core
from penstock.engine.scheduler.entries import Effect, Entry
from penstock.engine.scheduler.observation import Trace, dump
from penstock.engine.scheduler.protocol import Outcome
from penstock.engine.scheduler.shell import Shell, close, perform_background, run
from penstock.engine.scheduler.validation import validate

STRAY = 0.05
"""How many of the steps are wake-ups that mean nothing."""
YIELD = 0.3
"""How probable it is that a turn is over, whenever it is asked."""
LONGEST_TURN = 0.02
LONGEST_STEP = 0.001
MOST_STEPS = 1_000_000

Action = Callable[[], None]


class StuckError(InternalError):
    """Nothing can happen any more, but there is work left."""


class SimulatedQuantum:
    """A turn that is over when the seed says so."""

    def __init__(self, entry: Entry, now: float, chance: random.Random) -> None:
        self._entry = entry
        self._chance = chance
        self.now = now

    def expired(self) -> bool:
        return self._entry.yield_asked or self._chance.random() < YIELD


class SimulatedScheduler(Shell):
    """See the module's docstring. ``core``: another one than the right one, to see that it is found out."""

    def __init__(
        self,
        seed: int,
        workers: int = 3,
        *,
        stray: float = STRAY,
        core: Core | None = None,
        trace: Trace | None = None,
    ) -> None:
        super().__init__(core or Core(workers, trace), nullcontext(), lambda: self.now)
        self.seed = seed
        self.now = 0.0
        self.steps = 0
        self._chance = random.Random(seed)
        self._stray = stray
        # Per worker: what it does next, having claimed something; None: it looks for something.
        self._workers: list[Action | None] = [None] * workers
        # What other threads do next.
        self._others: list[Action] = []

    # ------------------------------------------------------------------ what threads besides the workers do

    def later(self, action: Action) -> None:
        """Do it between two steps, some time from now, as another thread would."""
        self._others.append(action)

    def background(
        self, entry: Entry, work: Callable[[], Any], done: Callable[[Any], None], *, is_long: bool = False
    ) -> None:
        self.change(lambda now: self._core.background_started(entry))

        def perform() -> None:
            error = perform_background(entry, work, done)
            self.later(lambda: self.background_over(entry, error))

        self.later(perform)

    def wake(self, entry: Entry) -> None:
        self._core.wake(entry, self.now)

    def perform(self, effects: Sequence[Effect]) -> None:
        if effects:
            self.later(partial(super().perform, effects))

    # ------------------------------------------------------------------ steps

    def step(self) -> bool:
        """Do one legal thing. False: there is nothing to do, not even to wait for."""
        self.steps += 1
        try:
            done = self._step()
            validate(self._core)
        except Exception as error:
            error.add_note(
                f"seed {self.seed}, step {self.steps}, {self.now:.3f} s:\n{dump(self._core.queries.values())}"
            )
            raise
        return done

    def _step(self) -> bool:
        choices = self._choices()
        if not choices:
            return self._pass_time()
        if self._stray and self._chance.random() < self._stray:
            self._wake_anyone()
            return True
        self.now += self._chance.random() * LONGEST_STEP
        deadline = self._core.timers.next()
        if deadline is not None and deadline <= self.now:
            self._core.tick(self.now)
            self.perform(self._core.take_effects())
        else:
            self._chance.choice(choices)()
        return True

    def _choices(self) -> list[Action]:
        core = self._core
        choices: list[Action] = [partial(self._take_other, number) for number in range(len(self._others))]
        work = bool(core.endings.eager) or any(
            group.active and group.may_run(self.now) for group in core.shares.groups.values()
        )
        for number, following in enumerate(self._workers):
            if following is not None:
                choices.append(following)
            elif work:
                choices.append(partial(self._claim, number))
        return choices

    def _take_other(self, number: int) -> None:
        self._others.pop(number)()

    def _wake_anyone(self) -> None:
        entries = [entry for query in self._core.queries.values() for entry in query.entries]
        if entries:
            self.wake(self._chance.choice(entries))

    def _pass_time(self) -> bool:
        deadline = self._core.next_deadline()
        if deadline is None:
            return False
        self.now = max(self.now, deadline)
        self._core.tick(self.now)
        self.perform(self._core.take_effects())
        return True

    # ------------------------------------------------------------------ a worker's steps

    def _claim(self, worker: int) -> None:
        core = self._core
        entry = core.endings.claim_closing(self.now)
        if entry is not None:
            self._workers[worker] = partial(self._close, worker, entry)
            return
        entry = core.claim(worker, self.now)
        if entry is not None:
            self._workers[worker] = partial(self._run, worker, entry)

    def _run(self, worker: int, entry: Entry) -> None:
        outcome = run(entry, SimulatedQuantum(entry, self.now, self._chance))
        self._workers[worker] = partial(self._complete, worker, entry, outcome)

    def _complete(self, worker: int, entry: Entry, outcome: Outcome) -> None:
        self._workers[worker] = None
        cost = self._chance.random() * LONGEST_TURN
        entry.cpu += cost
        self.now += cost / len(self._workers)
        self._core.complete(entry, outcome, cost, self.now)
        self.perform(self._core.take_effects())

    def _close(self, worker: int, entry: Entry) -> None:
        self._workers[worker] = partial(self._closed, worker, entry, close(entry))

    def _closed(self, worker: int, entry: Entry, error: BaseException | None) -> None:
        self._workers[worker] = None
        self._core.endings.closed(entry, error, self.now)
        self.perform(self._core.take_effects())

    # ------------------------------------------------------------------ whole runs

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Step until ``until`` holds, or, without it, until every query is closed."""
        while not (until() if until is not None else not self._open):
            if not self.step():
                text = f"nothing can happen any more (seed {self.seed}, step {self.steps})"
                raise StuckError(text, detail=self.dump())
            if self.steps > MOST_STEPS:
                raise StuckError(f"no end after {self.steps} steps (seed {self.seed})", detail=self.dump())

    def dump(self) -> str:
        """All queries with their runnables, and why those do not run."""
        return dump(self._core.queries.values())

    def shutdown(self) -> None:
        self._shut = True
        for query in list(self._open.values()):
            query.resume()
            query.cancel()
        self.run()
