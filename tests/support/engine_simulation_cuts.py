"""Simulated jobs of which every checkpoint is a cut: no round is agreed on, and what is in flight is state.

A cut comes whenever the coordinator's clock says so: in the middle of rounds, of what an operator emits, of ends that
are on their way, also while messages of an earlier one still are. A job that dies goes on at the same parallelism, as
what is in flight belongs to the task that had it. Rows, and their order, are those of a run that was never cut.
"""

from __future__ import annotations

import random
from dataclasses import replace

from penstock.coordinator.model import events
from penstock.coordinator.model.commands import DeployTask
from penstock.coordinator.model.events import Event
from penstock.engine.core.identity import Holds
from support.engine_simulation import FAULTS, INLINE, SETTINGS, EngineSimulation, Faults, Sizes
from support.engine_simulation_runs import check
from support.engine_simulation_shapes import SHAPES, WIDEST


class CutSimulation(EngineSimulation):
    """``seen`` says whether tasks were cut as a whole, and restored in the middle of something."""

    def check_report(self, event: Event) -> None:
        if isinstance(event, events.TaskAcked):
            self.seen |= {"cut" for handle in event.state if handle.holds is Holds.FLIGHT}
        assert not isinstance(event, events.RoundProposed), "a cut asks nobody for a round"
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
    parallelism = (draw.randrange(1, WIDEST + 1),)
    sizes = replace(sizes, inline=draw.choice(INLINE))
    shape = seed % len(SHAPES) if shape is None else shape
    return CutSimulation(seed, shape, parallelism, replace(faults, patience=patience), settings, sizes)


def simulate(seed: int, shape: int | None = None, faults: Faults = FAULTS) -> EngineSimulation:
    """One run, checked; of the seed's shape, unless another one is given."""
    run = varied(seed, faults, shape)
    return check(run.run(), run._shape)
