"""The sources of a plan that is fed from outside: their splits so far, and whether more may come.

Rules:

1. A plan of p subtasks has p lanes, which take the splits of a source in turn: one after the other they are the
   rounds of a lane. Where sources meet they go through the rounds in step, so every window must begin in the same
   round for all of them: ``even_out`` gives those with fewer splits empty ones.
2. Not locked: the owner does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from ..core.errors import ConfigurationError, FlowError
from ..core.source import Split
from ..flow.flow import Stream
from ..plan.plan import JobPlan
from ..planner.pipelines import plan_job
from ..runtime.task import Task
from ..sinks.output import OutputSink
from ..sources.fed import NoRows
from ..sources.memory import MemorySource


def plan_stream(stream: Stream, sink: OutputSink, parallelism: int) -> JobPlan:
    """The plan of the flow that ends in ``stream``, with its rows in one place, and sources that have no splits yet.

    The flow itself stays as it is. Raises FlowError if it has sinks.
    """
    flow = stream.flow.copy()
    if any(node.schema is None for node in flow.nodes):
        raise FlowError("a task gives out its rows itself", "build it from a flow without sinks")
    exit = Stream(flow, stream.id)
    flow.attach(sink, exit if exit.is_gathered or parallelism == 1 else exit.gather(), name="output")
    plan = plan_job(flow, parallelism, rate=0.0, lanes=parallelism, prune=False)
    return replace(plan, sources={id: replace(source, splits=()) for id, source in plan.sources.items()})


class PlanInputs:
    """See the rules above. ``sources``: each with the tasks that read it, every one some of its lanes."""

    def __init__(self, sources: Mapping[str, Sequence[Task]]) -> None:
        self._sources = sources
        #: splits of each source
        self._counts = dict.fromkeys(sources, 0)
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

    def is_complete(self, source: str) -> bool:
        """Whether the source gets no more splits."""
        return source in self._complete

    def check(self, source: str) -> None:
        """There is such a source."""
        if source not in self._sources:
            raise ConfigurationError(f"there is no source {source!r}", f"the sources are: {', '.join(self._sources)}")

    def add(self, source: str, split: Split | pa.Table) -> None:
        """One more split; a table is one."""
        self.check(source)
        if isinstance(split, pa.Table):
            (split,) = MemorySource((split,)).splits()
        if source in self._complete:
            raise ConfigurationError(f"source {source!r} was told that no more splits come", "add splits before that")
        self._counts[source] += 1
        for task in self._sources[source]:
            task.add_split(source, split)

    def end(self, source: str) -> None:
        """The splits of the source are complete."""
        self.check(source)
        self._complete.add(source)
        for task in self._sources[source]:
            task.no_more_splits(source)

    def even_out(self) -> None:
        """A window ends here: give every source as many splits as the one with most of them."""
        longest = max(self._counts.values(), default=0)
        for source, count in self._counts.items():
            for _ in range(count, longest):
                self.add(source, NoRows())
