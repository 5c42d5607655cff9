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
    from penstock.actors.claims.ownership import retire_output
    from penstock.actors.client.job import Job, Savepoint
    from penstock.actors.job.launch import attach, list_jobs, run, warm
    from penstock.actors.job.runtime import Runtime
    from penstock.actors.protocol.settings import Checkpoints
    from penstock.engine.core import errors
    from penstock.engine.core.elements import Batch
    from penstock.engine.core.identity import Committable
    from penstock.engine.core.operator import OperatorConfig as Operator
    from penstock.engine.core.operator import SinkConfig as Sink
    from penstock.engine.core.operator import Stateless
    from penstock.engine.core.source import SourceConfig as Source
    from penstock.engine.core.traits import Columns, Cut, Emission, Lineage, Multiplicity, State, Traits
    from penstock.engine.expressions.expressions import field
    from penstock.engine.expressions.fluent import Expression, col, fn, lit, when
    from penstock.engine.flow import index
    from penstock.engine.flow.flow import Flow, Stream
    from penstock.engine.flow.shuffling import ShuffleOptions as Shuffle
    from penstock.engine.kernels.aggregate_protocol import AggregateFunction
    from penstock.engine.local.plan_task import PlanTask
    from penstock.engine.operators import Aggregate, Schedule, SortKey, WindowFunction
    from penstock.engine.operators.aggregate.own_aggregates import aggregate_function
    from penstock.engine.operators.join.index_protocol import Index
    from penstock.engine.sinks.lane_counts import LaneCounts
    from penstock.jobs.local_run import run_local
    from penstock.jobs.replay import ReplayedBatch, replay

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "AggregateFunction",
    "Batch",
    "Checkpoints",
    "Columns",
    "Committable",
    "Cut",
    "Emission",
    "Expression",
    "Flow",
    "Index",
    "Job",
    "LaneCounts",
    "Lineage",
    "Multiplicity",
    "Operator",
    "PlanTask",
    "ReplayedBatch",
    "Runtime",
    "Savepoint",
    "Schedule",
    "Shuffle",
    "Sink",
    "SortKey",
    "Source",
    "State",
    "Stateless",
    "Stream",
    "Traits",
    "WindowFunction",
    "aggregate_function",
    "attach",
    "col",
    "errors",
    "field",
    "fn",
    "index",
    "list_jobs",
    "lit",
    "replay",
    "retire_output",
    "run",
    "run_local",
    "spark",
    "warm",
    "when",
]

_HOMES = {
    "Aggregate": "penstock.engine.operators",
    "AggregateFunction": "penstock.engine.kernels.aggregate_protocol",
    "aggregate_function": "penstock.engine.operators.aggregate.own_aggregates",
    "Batch": "penstock.engine.core.elements",
    "Checkpoints": "penstock.actors.protocol.settings",
    "Columns": "penstock.engine.core.traits",
    "Committable": "penstock.engine.core.identity",
    "Cut": "penstock.engine.core.traits",
    "Emission": "penstock.engine.core.traits",
    "Multiplicity": "penstock.engine.core.traits",
    "Expression": "penstock.engine.expressions.fluent",
    "Flow": "penstock.engine.flow.flow",
    "Index": "penstock.engine.operators.join.index_protocol",
    "Job": "penstock.actors.client.job",
    "LaneCounts": "penstock.engine.sinks.lane_counts",
    "Lineage": "penstock.engine.core.traits",
    "Operator": "penstock.engine.core.operator",
    "PlanTask": "penstock.engine.local.plan_task",
    "ReplayedBatch": "penstock.jobs.replay",
    "Runtime": "penstock.actors.job.runtime",
    "Savepoint": "penstock.actors.client.job",
    "Schedule": "penstock.engine.operators",
    "Shuffle": "penstock.engine.flow.shuffling",
    "Sink": "penstock.engine.core.operator",
    "SortKey": "penstock.engine.operators",
    "Source": "penstock.engine.core.source",
    "State": "penstock.engine.core.traits",
    "Stateless": "penstock.engine.core.operator",
    "Stream": "penstock.engine.flow.flow",
    "Traits": "penstock.engine.core.traits",
    "WindowFunction": "penstock.engine.operators",
    "attach": "penstock.actors.job.launch",
    "col": "penstock.engine.expressions.fluent",
    "field": "penstock.engine.expressions.expressions",
    "fn": "penstock.engine.expressions.fluent",
    "list_jobs": "penstock.actors.job.launch",
    "lit": "penstock.engine.expressions.fluent",
    "replay": "penstock.jobs.replay",
    "retire_output": "penstock.actors.claims.ownership",
    "run": "penstock.actors.job.launch",
    "run_local": "penstock.jobs.local_run",
    "warm": "penstock.actors.job.launch",
    "when": "penstock.engine.expressions.fluent",
}
_CALLED_THERE = {
    "Operator": "OperatorConfig",
    "Shuffle": "ShuffleOptions",
    "Sink": "SinkConfig",
    "Source": "SourceConfig",
}
_MODULES = {
    "errors": "penstock.engine.core.errors",
    "index": "penstock.engine.flow.index",
    "spark": "penstock.actors.spark_bridge",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), _CALLED_THERE.get(name, name))
    message = f"module 'penstock' has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted(__all__)
