"""``run``: from a flow to a running job on Ray.

What can be refused without a cluster (the flow, the sinks, the settings) is refused before one is started. ray is
imported only after ``connect``, which sets what Ray reads when it is imported.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from ..engine.errors import ConfigurationError
from ..engine.flow import Flow
from ..engine.pipelines import plan_job
from ..engine.plan import JobPlan
from ..engine.sinks.collect import CollectSink
from ..engine.state.memory import DEFAULT_BUDGET
from .environment import connect
from .interrupts import tell_interrupts_briefly
from .resuming import check_resume, place_in
from .settings import Checkpoints

if TYPE_CHECKING:
    from .job import Job


def run(
    flow: Flow,
    *,
    parallelism: int = 2,
    checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
    name: str | None = None,
    address: str | None = None,
    rate: float | None = None,
    verbose: bool = False,
    memory_budget: int | None = DEFAULT_BUDGET,
    threads: int = 0,
    resume: Literal["auto", "never"] = "auto",
) -> Job:
    """Start ``flow`` on Ray and return its :class:`~penstock.actors.job.Job`.

    ``checkpoints``: where and how often, or just the folder; without any, nothing survives the end of this script.
    ``name``: the job's, by default the flow's. ``address``: of a running Ray cluster; by default a small one is started
    on this machine. ``rate`` paces the sources (rows/s). ``verbose`` shows Ray's own log.
    ``memory_budget``: bytes that the operators of one task may hold before they spill to disk; None: no bound.
    ``threads``: how many threads run the drivers of one actor; 0: the one that takes its messages.
    ``resume="auto"`` goes on from the last checkpoint in the folder; ``"never"`` refuses a folder that has one.
    """
    plan = plan_job(flow, parallelism, job=name, rate=rate, memory_budget=memory_budget, threads=threads)
    _refuse_collecting(plan)
    place = None if checkpoints is None else place_in(checkpoints)
    plan.check(resuming=place is not None and check_resume(place.folder, plan.name, resume))
    tell_interrupts_briefly()
    connect(address, verbose)
    from .starting import start_job

    return start_job(plan, place)


def _refuse_collecting(plan: JobPlan) -> None:
    """Rows that are collected in memory would stay in an actor's process."""
    for id, (_, config) in plan.sinks.items():
        if isinstance(config, CollectSink):
            raise ConfigurationError(
                "rows collected in an actor never reach this process",
                "end the stream in write_parquet(…), or run the flow with ps.run_local",
                id,
            )
