"""All flows for simulated jobs, and their plans with rounds of a few rows."""

from __future__ import annotations

from dataclasses import replace

from penstock.engine.flow.flow import Flow
from penstock.engine.plan.plan import JobPlan
from penstock.engine.planner.pipelines import plan_job
from support.engine_simulation_flows import JOB, LANES, PLAIN, QUOTA, Disk
from support.exchange_flows import EXCHANGES, FORWARDS
from support.join_flows import JOINS
from support.moved_flows import MOVED
from support.sequence_flows import SEQUENCES
from support.trailer_flows import TRAILERS

SHAPES = (*PLAIN, *EXCHANGES, *SEQUENCES, *TRAILERS, *FORWARDS, *JOINS, *MOVED)
DRAWN = len(PLAIN) + len(EXCHANGES)
"""Seeds draw among so many; those behind them have tests of their own, so that seeds keep their shapes."""

WIDEST = 4
PARTS = 6


def plan_of(shape: int, parallelism: int, disk: Disk) -> JobPlan:
    """The plan of a shape, with rounds of a few rows."""
    flow = Flow(JOB, lanes=LANES, parts=PARTS)
    SHAPES[shape % len(SHAPES)](disk, flow)
    plan = plan_job(flow, parallelism)
    sources = {id: replace(each, quota=each.quota and QUOTA) for id, each in plan.sources.items()}
    return replace(plan, sources=sources)
