"""Wrong cores, each with one rule left out: the simulated scheduler must find every one of them within a few seeds."""

from __future__ import annotations

import pytest

from penstock.engine.core.errors import InternalError
from penstock.engine.scheduler.core import Core
from penstock.engine.scheduler.entries import Entry
from penstock.engine.scheduler.protocol import DriverState
from support.simulated_scheduler import SimulatedScheduler
from support.simulated_scheduling import run_asking, run_cancelled, run_chain


class ForgetsWakes(Core):
    """A wake-up during a turn is lost."""

    def must_run_again(self, entry: Entry) -> bool:
        entry.notified = False
        return False


class QueuesTheRunning(Core):
    """A wake-up during a turn puts the runnable into the queue."""

    def wake(self, entry: Entry, now: float, worker: int | None = None) -> None:
        if entry.state is DriverState.RUNNING:
            entry.state = DriverState.WAITING
        super().wake(entry, now, worker)


class RevivesTheFinished(Core):
    """A wake-up makes ready whatever the state."""

    def wake(self, entry: Entry, now: float, worker: int | None = None) -> None:
        if entry.state is DriverState.FINISHING:
            self.moves.make_ready(entry, now, worker)
        super().wake(entry, now, worker)


class ForgetsOutstanding(Core):
    """Background work does not hold the end."""

    def background_started(self, entry: Entry) -> None:
        super().background_started(entry)
        entry.outstanding = 0


class LeavesTheWaiting(Core):
    """A cancel forgets those that wait."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        end_all = self.endings._end_all

        def end_some(query, now) -> None:
            kept = query.entries
            query.entries = [entry for entry in kept if entry.state is not DriverState.WAITING]
            end_all(query, now)
            query.entries = kept

        self.endings._end_all = end_some


@pytest.mark.parametrize(
    ("core", "work"),
    [
        (ForgetsWakes, run_chain),
        (QueuesTheRunning, run_chain),
        (RevivesTheFinished, run_chain),
        (ForgetsOutstanding, run_asking),
        (LeavesTheWaiting, run_cancelled),
    ],
)
def test_wrong_core_is_found_out_within_a_few_seeds(core: type[Core], work) -> None:
    found = 0
    for seed in range(60):
        try:
            work(SimulatedScheduler(seed, core=core(3), stray=0.05 if core is RevivesTheFinished else 0.0))
        except (InternalError, AssertionError):
            found += 1
    assert found >= 3


def test_what_goes_wrong_is_told_with_the_seed_and_the_step() -> None:
    scheduler = SimulatedScheduler(11, stray=0.0, core=QueuesTheRunning(3))
    with pytest.raises(InternalError, match="invariants of the scheduler do not hold") as caught:
        run_chain(scheduler)
    [note] = caught.value.__notes__
    assert note.startswith(f"seed 11, step {scheduler.steps}, ")
    assert "producer [" in note
