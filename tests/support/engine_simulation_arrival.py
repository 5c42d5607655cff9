"""Simulated jobs whose order is that of arrival, of which checkpoints are cuts: at once, after a while, or never.

What is compared are rows without their order, so the flows compute nothing that depends on it, but for the order within
a lane, which stays even here. Sinks have a gate before them, so there is always something in flight.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from msgspec.structs import replace as changed

from penstock.actors.audit.audit import make_audit
from penstock.engine.flow.flow import Flow, Stream
from penstock.engine.plan.plan import JobPlan
from penstock.engine.planner.pipelines import plan_job
from support.engine_simulation import FAULTS, INLINE, NO_FAULTS, SETTINGS, EngineSimulation, Faults, Sizes
from support.engine_simulation_cuts import CutSimulation
from support.engine_simulation_flows import (
    JOB,
    LANES,
    QUOTA,
    Disk,
    DiskSink,
    aggregated,
    chained,
    forked,
    gathered,
    joined,
    numbers,
    separate,
)
from support.engine_simulation_shapes import PARTS, WIDEST
from support.engine_simulation_storage import SimulatedSnapshots, last_tables
from support.exchange_flows import FORWARDS, joined_by_key, joined_everywhere
from support.trailer_flows import TRAILERS


def _rows(flow: Flow) -> Stream:
    return flow.from_tables(numbers(), name="numbers").with_columns(g="x % 3")


def divided(disk: Disk, flow: Flow) -> None:
    """An exchange by key, a sink in every subtask, and groups behind it."""
    parts = _rows(flow).partition_by("g")
    flow.attach(DiskSink("parts", disk), parts.filter("x > 3"), name="parts")
    groups = parts.aggregate(["g"], n="count", total=("x", "sum"))
    flow.attach(DiskSink("all", disk), groups.gather(), name="all")


def passed_on(disk: Disk, flow: Flow) -> None:
    """Three exchanges in a row with hardly anything between: what is made waits for credit."""
    first = _rows(flow).filter("x > 1").partition_by("key").filter("x > 2")
    flow.attach(DiskSink("all", disk), first.rebalance().filter("x > 3").gather(), name="all")


def united(disk: Disk, flow: Flow) -> None:
    """A union in the middle: before it barriers keep their place, behind it they need not."""
    rows = _rows(flow)
    both = rows.filter("x < 60").rebalance().union(rows.partition_by("split"))
    flow.attach(DiskSink("all", disk), both.partition_by("g").aggregate(["g"], n="count").gather(), name="all")


ARRIVAL = (
    *(gathered, aggregated, joined, forked, chained, separate),
    *(divided, passed_on, united, joined_by_key, joined_everywhere),
)
SHAPES = (*ARRIVAL, *TRAILERS, *FORWARDS)
"""Seeds draw among the first; those behind them have a test of their own."""


class ArrivalSimulation(CutSimulation):
    """Every start of the job draws anew how long barriers may stand in order before tasks cut where they are
    (``patience``; 0: they cut at once, None: never)."""

    patience: tuple[float | None, ...] = (0.0,)
    may_agree = True

    def _plan_for(self, parallelism: int) -> JobPlan:
        flow = Flow(JOB, lanes=LANES, parts=PARTS, order="arrival")
        SHAPES[self._shape](self.disk, flow)
        plan = plan_job(flow, parallelism)
        sources = {id: replace(each, quota=each.quota and QUOTA) for id, each in plan.sources.items()}
        return replace(plan, sources=sources)

    def _start_job(self) -> None:
        timeout = self.random.choice(self.patience)
        self._settings = replace(self._settings, unaligned=timeout is not None, alignment_timeout=timeout or 0.0)
        super()._start_job()


def rows_of(run: EngineSimulation) -> dict[str, Counter[object]]:
    """The visible rows of each sink."""
    return {sink: Counter(row for _, row in run.disk.written(sink)) for sink in run.plan.sinks}


@cache
def expected_rows(shape: int) -> dict[str, Counter[object]]:
    """What the flow writes if nothing goes wrong and nothing is cut."""
    simulation = ArrivalSimulation(0, shape, (1,), NO_FAULTS)
    simulation.patience = (None,)
    return rows_of(simulation.run())


def check(run: EngineSimulation, shape: int) -> EngineSimulation:
    """Raises AssertionError unless the run is right."""
    expected, found = expected_rows(shape), rows_of(run)
    for sink, rows in expected.items():
        missing, extra = rows - found[sink], found[sink] - rows
        assert rows == found[sink], f"seed {run.seed}: {sink}: missing {missing}, extra {extra}\n{run.why()}"
    tables = last_tables(run.storage, SimulatedSnapshots(run, run.storage))
    audit = make_audit(run.plan, tables, changed(run.coordinator.core.status(), state="finished"))
    assert audit.gaps == audit.repeats == 0, f"seed {run.seed}: {audit}"
    return run


def varied(
    seed: int,
    faults: Faults = FAULTS,
    make: Callable[..., ArrivalSimulation] = ArrivalSimulation,
    timeouts: tuple[float | None, ...] = (0.0, 0.0, 0.01, None),
    shape: int | None = None,
) -> ArrivalSimulation:
    """The run of a seed: sizes, checkpoints and the number of faults differ, and every start draws a parallelism."""
    draw = random.Random(seed)
    sizes = Sizes(draw.choice((1, 1, 100, 10_000)), draw.choice((1, 3, 3, 100)))
    settings = replace(SETTINGS, interval=draw.choice((0.02, 0.06, 0.06, 0.3)))
    patience = min(faults.patience, draw.choice((2, 8, 8, 25)))
    parallelism = tuple(range(1, WIDEST + 1)) if draw.randrange(2) else (draw.randrange(1, WIDEST + 1),)
    sizes = replace(sizes, inline=draw.choice(INLINE))
    shape = seed % len(ARRIVAL) if shape is None else shape
    run = make(seed, shape, parallelism, replace(faults, patience=patience), settings, sizes)
    run.patience = timeouts
    return run


def simulate(seed: int, faults: Faults = FAULTS, shape: int | None = None) -> EngineSimulation:
    """One run with faults, checked; of the seed's shape, unless another one is given."""
    return check(varied(seed, faults, shape=shape).run(), seed % len(ARRIVAL) if shape is None else shape)
