"""Penstock feeds trainers and sinks from Spark on Ray: exactly once, in an order that depends on the data alone.

::

    import penstock as ps

    flow = ps.Flow("features")
    flow.read_parquet("events/").filter(ps.field("value") > 0).write_parquet("out/")
    ps.run(flow, checkpoints=ps.Checkpoints("state/", every="5s")).wait()

The names below are the public face. They are imported when they are first used, so that ``import penstock`` is quick
and needs neither Ray nor Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.actors import spark_bridge as spark
    from penstock.actors.job import Job
    from penstock.actors.job_face import Savepoint
    from penstock.actors.launch import attach, list_jobs, run
    from penstock.actors.retiring import retire_output
    from penstock.actors.runtime import Runtime
    from penstock.actors.settings import Checkpoints
    from penstock.engine import errors, index
    from penstock.engine.expressions import field
    from penstock.engine.flow import Flow, Stream
    from penstock.engine.operators import Aggregate, SortKey, WindowFunction
    from penstock.engine.plan_task import PlanTask
    from penstock.jobs.local_run import LocalJob, run_local
    from penstock.jobs.replay import ReplayedBatch, replay

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "Checkpoints",
    "Flow",
    "Job",
    "LocalJob",
    "PlanTask",
    "ReplayedBatch",
    "Runtime",
    "Savepoint",
    "SortKey",
    "Stream",
    "WindowFunction",
    "attach",
    "errors",
    "field",
    "index",
    "list_jobs",
    "replay",
    "retire_output",
    "run",
    "run_local",
    "spark",
]

_HOMES = {
    "Aggregate": "penstock.engine.operators",
    "Checkpoints": "penstock.actors.settings",
    "Flow": "penstock.engine.flow",
    "Job": "penstock.actors.job",
    "LocalJob": "penstock.jobs.local_run",
    "PlanTask": "penstock.engine.plan_task",
    "ReplayedBatch": "penstock.jobs.replay",
    "Runtime": "penstock.actors.runtime",
    "Savepoint": "penstock.actors.job_face",
    "SortKey": "penstock.engine.operators",
    "Stream": "penstock.engine.flow",
    "WindowFunction": "penstock.engine.operators",
    "attach": "penstock.actors.launch",
    "field": "penstock.engine.expressions",
    "list_jobs": "penstock.actors.launch",
    "replay": "penstock.jobs.replay",
    "retire_output": "penstock.actors.retiring",
    "run": "penstock.actors.launch",
    "run_local": "penstock.jobs.local_run",
}
_MODULES = {
    "errors": "penstock.engine.errors",
    "index": "penstock.engine.index",
    "spark": "penstock.actors.spark_bridge",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    message = f"module 'penstock' has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted(__all__)
