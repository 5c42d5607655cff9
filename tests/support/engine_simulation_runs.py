"""One simulated job and its verdict.

A run is right if the visible rows are those of a run without failures in one process: behind a gather in the same
sequence, in a sink of parallel subtasks in the same sequence per lane; and if the audit finds no gap and no repeat.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

from msgspec.structs import replace as changed

from penstock.actors.audit.audit import make_audit
from penstock.coordinator.machine import Coordinator
from support.engine_simulation import FAULTS, INLINE, NO_FAULTS, SETTINGS, EngineSimulation, Faults, Sizes
from support.engine_simulation_flows import Row
from support.engine_simulation_shapes import DRAWN, WIDEST
from support.engine_simulation_storage import SimulatedSnapshots, last_tables

Rows = dict[str, list[Row]]


def rows_of(run: EngineSimulation) -> Rows:
    """The visible rows: by sink where it stands behind a gather, by sink and lane elsewhere."""
    rows: Rows = {}
    for sink, (stage, _) in run.plan.sinks.items():
        behind_gather = any(each.target == stage and each.pattern == "all_to_all" for each in run.plan.exchanges)
        rows.setdefault(sink, []) if behind_gather else None
        for lane, row in run.disk.written(sink):
            rows.setdefault(sink if behind_gather else f"{sink}, lane {lane}", []).append(row)
    return rows


@cache
def expected_rows(shape: int) -> Rows:
    """What the flow writes if nothing goes wrong."""
    return rows_of(EngineSimulation(0, shape, (1,), NO_FAULTS).run())


def check(run: EngineSimulation, shape: int) -> EngineSimulation:
    """Raises AssertionError unless the run is right."""
    expected, found = expected_rows(shape), rows_of(run)
    for key in sorted(expected.keys() | found.keys()):
        mine, theirs = found.get(key, []), expected.get(key, [])
        missing, extra = [row for row in theirs if row not in mine], [row for row in mine if row not in theirs]
        said = f"seed {run.seed}: {key}: {len(mine)} rows instead of {len(theirs)}, missing {missing}, extra {extra}"
        assert mine == theirs, f"{said}\nfound    {mine}\nexpected {theirs}\n{run.why()}"
    tables = last_tables(run.storage, SimulatedSnapshots(run, run.storage))
    audit = make_audit(run.plan, tables, changed(run.coordinator.core.status(), state="finished"))
    assert audit.gaps == audit.repeats == 0, f"seed {run.seed}: {audit}"
    return run


def shape_of(seed: int) -> int:
    return seed % DRAWN


def varied(
    seed: int, faults: Faults = FAULTS, core: type[Coordinator] = Coordinator, shape: int | None = None
) -> EngineSimulation:
    """The run of a seed: sizes, checkpoints and the number of faults differ, and every start draws a parallelism."""
    draw = random.Random(seed)
    sizes = Sizes(draw.choice((1, 1, 100, 10_000)), draw.choice((1, 3, 3, 100)))
    settings = replace(SETTINGS, interval=draw.choice((0.02, 0.06, 0.06, 0.3, None)))
    patience = min(faults.patience, draw.choice((2, 8, 8, 25)))
    parallelism = tuple(range(1, WIDEST + 1))
    sizes = replace(sizes, inline=draw.choice(INLINE))
    return EngineSimulation(
        seed,
        shape_of(seed) if shape is None else shape,
        parallelism,
        replace(faults, patience=patience),
        settings,
        sizes,
        core,
    )


def simulate(seed: int, shape: int | None = None) -> EngineSimulation:
    """One run with faults, checked; of the seed's shape, unless another one is given."""
    return check(varied(seed, shape=shape).run(), shape_of(seed) if shape is None else shape)
