"""Runs the part of a flow that leads to a feed until one batch is there: what ``replay`` is made of.

Rules:

1. The run is a job of its own, under another name and in a folder of its own. It takes no checkpoints.
2. It begins at the nearest checkpoint that serves (``actors.feed.retained``). If origins are wanted that must be one
   whose feed has not come to the batch, since kept rows have none; rows that another operator held at the checkpoint
   have none either, and then the next one before it is tried.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from ..actors.claims.place import temporary_place
from ..actors.feed.link import FeedLink
from ..actors.feed.retained import JobFolder, Retained, Start, copied
from ..actors.process.ending import print_interrupts_briefly
from ..engine.core.errors import ConfigurationError, StorageError
from ..engine.feed.messages import Ask, FeedEnded, Refused, Slice
from ..engine.feed.sink import FeedSink
from ..engine.flow.flow import Flow
from ..engine.lineage.origins import NOWHERE, spans_of
from ..engine.lineage.tracing import FeedGraph, without_origin
from ..engine.plan.plan import JobPlan
from ..engine.planner.pipelines import plan_job
from ..engine.scheduler.pool import PoolScheduler
from .local_run import start_job

NAME_LENGTH = 60
POLL = 1.0

STARTS = 3
"""So many checkpoints are tried, the nearest one first, then the beginning."""


class _GoneError(Exception):
    """The checkpoint does not serve."""


@dataclass(frozen=True)
class Found:
    """A batch with its origins. ``first``: the position of its first row; ``start``: in words."""

    rows: pa.Table
    first: int
    epoch: int
    start: str
    graph: FeedGraph


class Replaying:
    """Runs the feed's part of a flow until one batch is there."""

    def __init__(
        self,
        flow: Flow,
        plan: JobPlan,
        feed: str,
        folder: JobFolder | None,
        step: int,
        parallelism: int,
        timeout: float | None,
    ) -> None:
        self._flow, self._plan, self._feed, self._folder, self._step = flow, plan, feed, folder, step
        self._parallelism, self._timeout = parallelism, timeout
        config = flow.node(feed).config
        assert isinstance(config, FeedSink)
        self.config = config

    def batch(self, trace: bool) -> Found:
        """The batch, with its origins if they are wanted and can be known."""
        if trace and (traced := self._graph(traced=True)).is_traced:
            return self._batch(traced)
        found = self._batch(self._graph(traced=False))
        return replace(found, graph=traced) if trace else found

    def _graph(self, *, traced: bool) -> FeedGraph:
        skipped = frozenset() if self._folder is None else self._folder.skipped
        return FeedGraph(self._flow, self._feed, self._plan, traced=traced, skipped=skipped)

    def _batch(self, graph: FeedGraph) -> Found:
        for kept in self._starts(graph)[:STARTS]:
            with tempfile.TemporaryDirectory(prefix="penstock-replay-", ignore_cleanup_errors=True) as copy:
                try:
                    snapshot = copied(kept, self._plan.name, _names(graph), copy, graph.traced_state)
                except StorageError:
                    continue  # a job that runs has deleted it
                if snapshot is None:
                    continue
                try:
                    found = self._found(graph, self._run(graph, snapshot), f"checkpoint {kept.manifest.checkpoint}")
                except _GoneError:
                    continue
                if not graph.is_traced or _is_complete(found.rows):
                    return found
        return self._found(graph, self._run(graph, None), "the beginning")

    def _found(self, graph: FeedGraph, batch: Slice[pa.RecordBatch], start: str) -> Found:
        schema = graph.node(graph.node(self._feed).inputs[0]).schema
        return Found(pa.Table.from_batches(batch.rows, schema), batch.first, batch.epoch, start, graph)

    def _starts(self, graph: FeedGraph) -> list[Retained]:
        """The checkpoints to try, the nearest one first."""
        if self._folder is None:
            return []
        schema = self._flow.node(self._flow.node(self._feed).inputs[0]).schema
        assert schema is not None
        size, drop_last = self.config.batch_size, self.config.drop_last
        found = self._folder.checkpoints(self._feed, schema, size, drop_last)
        # rows that the feed had kept have no origins
        return [each for each in found if (each.next_batch if graph.is_traced else each.first_batch) <= self._step]

    def _as_planned(self, plan: JobPlan) -> JobPlan:
        """With rounds as the whole flow has them: what was left out may have had a say in their length."""
        sources = {
            id: replace(self._plan.sources[id], config=found.config, schema=found.schema, splits=found.splits)
            for id, found in plan.sources.items()
        }
        return replace(plan, sources=sources, epochs=self._plan.epochs)

    def _run(self, graph: FeedGraph, start: Start | None) -> Slice[pa.RecordBatch]:
        private = f"{self._plan.name[:NAME_LENGTH]}-replay-{uuid.uuid4().hex[:8]}"
        plan = self._as_planned(plan_job(graph, self._parallelism, job=private, rate=0.0, prune=False))
        place = temporary_place()
        scheduler = PoolScheduler(None)
        try:
            print_interrupts_briefly()
            job = start_job(plan, place, scheduler, start)
        except BaseException:
            scheduler.shutdown()
            place.release()
            raise
        with job:
            return self._read(job.feed(self._feed).route.open())

    def _read(self, link: FeedLink) -> Slice[pa.RecordBatch]:
        """The batch, as the only rank of a group that begins with it. Raises _GoneError if the start has come further
        than that, the job's error, or TimeoutError."""
        until = None if self._timeout is None else time.monotonic() + self._timeout
        ask = Ask("replay", 0, 1, self._step, 0, self._step, self._step, (self._step,))
        while True:
            reply = link.ask(ask, POLL if until is None else min(POLL, max(0.0, until - time.monotonic())))
            for answer in reply.answers:
                if isinstance(answer, Slice):
                    return answer
                if isinstance(answer, FeedEnded):
                    raise self._behind_the_end(answer.batches)
                if isinstance(answer, Refused):
                    raise _GoneError
            if reply.group is not None:
                ask = msgspec.structs.replace(ask, generation=reply.group.generation)
            if until is not None and time.monotonic() >= until:
                message = f"batch {self._step} of feed {self._feed!r} is not there after {self._timeout:g} s: waits for"
                raise TimeoutError(f"{message} {reply.reason}")

    def _behind_the_end(self, batches: int) -> ConfigurationError:
        last = f"the last one is {batches - 1}" if batches else "it has none"
        return ConfigurationError(
            f"feed {self._feed!r} has {batches:,} batches of {self.config.batch_size:,} rows, and none with number "
            f"{self._step}",
            f"steps count global batches from 0: {last}",
        )


def _names(graph: FeedGraph) -> frozenset[str]:
    return frozenset(node.id for node in graph.nodes)


def _is_complete(rows: pa.Table) -> bool:
    """Whether every origin is known."""
    _, origins = without_origin(rows)
    assert origins is not None
    return not bool((spans_of(origins.combine_chunks())[1] == NOWHERE).any())
