"""Simulated jobs of which every checkpoint is a cut: no round is agreed on, and what is in flight is state.

A cut comes whenever the coordinator's clock says so: in the middle of rounds, of what an operator emits, of ends that
are on their way, also while messages of an earlier one still are. What is in flight belongs to the task that had it, so
a job that is to go on at another parallelism goes on as it was, until it has a checkpoint with nothing in flight
(``actors/client/moving.py``), unless it has no exchange: then lanes take it with them. Rows, and their order, are those
of a run that was never cut.
"""

from __future__ import annotations

import random
from dataclasses import replace

from penstock.actors.protocol.translate import execution_graph
from penstock.coordinator.model import events
from penstock.coordinator.model.commands import DeployTask
from penstock.coordinator.model.events import Event, Failure
from penstock.coordinator.restore.stored_channels import fits, flights
from penstock.engine.core.identity import Holds
from support.engine_simulation import FAULTS, INLINE, SETTINGS, EngineSimulation, Faults, Sizes
from support.engine_simulation_runs import check
from support.engine_simulation_shapes import SHAPES, WIDEST


class CutSimulation(EngineSimulation):
    """``seen`` says whether tasks were cut, restored in the middle of something, and whether the job moved."""

    #: whether some checkpoints are by agreement, even if the job never moves
    may_agree = False

    def _start_job(self) -> None:
        """As the runners do: by way of the shape that fits what is in flight."""
        wanted, newest = self._plan_for(self.random.choice(self._parallelism)), self.storage.newest()
        moves = newest is not None and not fits(execution_graph(wanted), newest)
        self._settings = replace(self._settings, moves=moves)
        self.seen |= {"moves"} if moves else set()
        if newest is not None and not moves and flights(newest) and newest.parallelism != wanted.parallelism:
            self.seen.add("moves in the middle")
        self._start_processes(self._plan_for(max(newest.parallelism.values())) if moves and newest else wanted)

    def _is_excused(self, failure: Failure) -> bool:
        """A manifest of another shape that lands late is refused; whoever starts the job again finds it."""
        return super()._is_excused(failure) or "the plan has another shape now" in failure.message

    def check_report(self, event: Event) -> None:
        if isinstance(event, events.TaskAcked):
            self.seen |= {"cut" for handle in event.state if handle.holds is Holds.FLIGHT}
        agrees = self.may_agree or len(self._parallelism) > 1
        assert agrees or not isinstance(event, events.RoundProposed), "a cut asks nobody for a round"
        super().check_report(event)

    def check_restore(self, order: DeployTask) -> None:
        self.seen |= {"restored" for handle in order.state if handle.holds is Holds.FLIGHT}
        super().check_restore(order)


def varied(seed: int, faults: Faults = FAULTS, shape: int | None = None) -> CutSimulation:
    """The run of a seed: shapes, sizes, checkpoints, the number of faults and the parallelism differ."""
    draw = random.Random(seed)
    sizes = Sizes(draw.choice((1, 1, 100, 10_000)), draw.choice((1, 3, 3, 100)))
    settings = replace(SETTINGS, interval=draw.choice((0.02, 0.02, 0.06, 0.3)), unaligned=True)
    patience = min(faults.patience, draw.choice((2, 8, 8, 25)))
    parallelism = tuple(range(1, WIDEST + 1)) if draw.randrange(4) == 0 else (draw.randrange(1, WIDEST + 1),)
    sizes = replace(sizes, inline=draw.choice(INLINE))
    shape = seed % len(SHAPES) if shape is None else shape
    return CutSimulation(seed, shape, parallelism, replace(faults, patience=patience), settings, sizes)


MOVES = Faults(30, restart_job=0.012, cancel=0.002, packet=0.0, commit=0.0)
"""The job is often started again."""


def simulate_moves(seed: int, shape: int) -> EngineSimulation:
    """One run, checked, every start at a parallelism drawn anew."""
    run = varied(seed, MOVES, shape)
    run._parallelism = tuple(range(1, WIDEST + 1))
    return check(run.run(), shape)


def simulate(seed: int, shape: int | None = None, faults: Faults = FAULTS) -> EngineSimulation:
    """One run, checked; of the seed's shape, unless another one is given."""
    run = varied(seed, faults, shape)
    return check(run.run(), run._shape)
