"""The sources of a plan that is fed from outside: their splits so far, and whether more may come.

Rules:

1. Each split is a split set of its own, as if a job were fed one after the other (``split_places``): a round, in one of
   the flow's lanes. So the ``k``-th splits of all sources stand in the same round and lane, and the rows and their
   order are those of a job that is fed the same, at any parallelism.
2. Where sources meet they go through the rounds in step, so every window must begin in the same round for all of them:
   ``even_out`` gives those with fewer splits empty rounds.
3. Not locked: the owner does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from ..core.errors import ConfigurationError, FlowError, PenstockError
from ..core.source import Split
from ..plan.partitioning import Gather
from ..plan.plan import JobPlan
from ..plan.split_places import places
from ..planner.graph import Graph, Node
from ..planner.pipelines import plan_job
from ..runtime.task import Task
from ..sinks.output import OutputSink
from ..sources.given import NewSplit, split_of


class StreamLike(Protocol):
    """What a task wants of a ``ps.Stream``."""

    @property
    def flow(self) -> Graph:
        """The flow that it is of."""

    @property
    def id(self) -> str:
        """The node that gives its rows."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of its rows."""


def plan_stream(stream: StreamLike, sink: OutputSink, parallelism: int) -> JobPlan:
    """The plan of the flow that ends in ``stream``, with its rows in one place, and sources that have no splits yet.

    The flow itself stays as it is. Raises FlowError if it has sinks.
    """
    if any(node.schema is None for node in stream.flow.nodes):
        raise FlowError("a task gives out its rows itself", "build it from a flow without sinks")
    flow = _ending_in(stream, sink, in_order=parallelism > 1)
    plan = plan_job(flow, parallelism, rate=0.0, prune=False, fused=True)
    return replace(plan, sources={id: replace(source, splits=()) for id, source in plan.sources.items()})


def plan_look(stream: StreamLike, sink: OutputSink) -> JobPlan:
    """The plan of what ``stream`` needs and no more, with the splits that its sources have: as in a job, but no source
    is paced. What else the flow has, its sinks above all, is left out."""
    return plan_job(_ending_in(stream, sink, in_order=True), 1, rate=0.0, fused=True)


def _ending_in(stream: StreamLike, sink: OutputSink, *, in_order: bool) -> Graph:
    """A flow like that of ``stream``, whose only sink gets its rows. ``in_order``: in one subtask, by their tags."""
    flow, exit = stream.flow.leading_to(stream.id), stream.id
    if in_order and flow.placement(exit).place != "one":
        flow.put(Node(flow.free("gather"), Gather(), (exit,), stream.schema))
        exit = flow.nodes[-1].id
    flow.put(Node(flow.free("output"), sink, (exit,), None))
    return flow


class PlanInputs:
    """See the module's rules. ``schemas``: of the sources; ``tasks``: of the plan, which read some of the ``lanes``."""

    def __init__(self, schemas: Mapping[str, pa.Schema], tasks: Sequence[Task], lanes: int) -> None:
        self._schemas = schemas
        self._sources = {source: [task for task in tasks if task.reads(source)] for source in sorted(schemas)}
        self._lanes = lanes
        #: rounds of each source
        self._counts = dict.fromkeys(self._sources, 0)
        #: sources whose splits are complete
        self._complete: set[str] = set()

    @property
    def complete(self) -> list[str]:
        """The sources that get no more splits."""
        return sorted(self._complete)

    @property
    def missing(self) -> list[str]:
        """The sources that may get more splits."""
        return sorted(set(self._sources) - self._complete)

    def check(self, source: str) -> None:
        """There is such a source."""
        if source not in self._sources:
            raise ConfigurationError(f"there is no source {source!r}", f"the sources are: {', '.join(self._sources)}")

    def check_open(self, source: str) -> None:
        """There is such a source, and it gets more splits."""
        self.check(source)
        if source in self._complete:
            raise ConfigurationError(f"source {source!r} was told that no more splits come", "add splits before that")

    def split(self, source: str, given: NewSplit) -> Split:
        """What was given for the source, if it is a split that fits it."""
        try:
            return split_of(given, self._schemas[source], f"{source}/{self._counts[source]}")
        except PenstockError as error:
            raise error.at(source) from None

    def add(self, source: str, split: Split) -> None:
        """One more split, which was looked at."""
        [place] = places(1, self._lanes, self._counts[source])
        self._add(source, 1, {place: split})

    def end(self, source: str) -> None:
        """The splits of the source, which is one, are complete."""
        self._complete.add(source)
        for task in self._sources[source]:
            task.no_more_splits(source)

    def even_out(self) -> None:
        """A window ends here: give every source as many rounds as the one with most of them."""
        longest = max(self._counts.values(), default=0)
        for source, count in self._counts.items():
            if count < longest:
                self._add(source, longest - count, {})

    def _add(self, source: str, rounds: int, splits: Mapping[int, Split]) -> None:
        self._counts[source] += rounds
        for task in self._sources[source]:
            task.add_splits(source, rounds, splits)
