"""``ps.replay``: one batch of a feed once more, as its ranks got it, and where its rows come from.

Rules:

1. The sequence of global batches is a function of the inputs and the flow. So the flow runs again, in this process,
   from the nearest checkpoint that serves or from the beginning, until the batch is there; sinks other than the feed
   are left out, and so is what leads to them alone.
2. The job's folder is only read: its log, its checkpoints (copied first) and its digests. The job may run meanwhile.
3. The batch is compared with the digest that the job recorded when it was delivered; what differs is refused.
4. The run is a job of its own, under another name and in a folder of its own. It takes no checkpoints.
5. Origins travel with the rows (``engine.lineage.tracing``). A checkpoint's state has none. So a run that is to
   find them begins at a checkpoint whose feed has not come to the batch; and at the one before that, if the batch has
   rows that another operator held.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..actors.claims.inputs import settle
from ..actors.claims.place import temporary_place
from ..actors.feed.link import FeedLink
from ..actors.feed.models import ModelBook
from ..actors.feed.retained import JobFolder, Retained, Start, copied
from ..actors.process.ending import print_interrupts_briefly
from ..actors.protocol.settings import Checkpoints
from ..actors.storage.digest_files import DigestFiles
from ..actors.storage.stores import checkpoint_folder
from ..engine.core.arguments import Parallelism, Seconds, checked
from ..engine.core.errors import ConfigurationError, DataError, StorageError
from ..engine.feed.digests import OrderHash
from ..engine.feed.messages import Ask, FeedEnded, Refused, Slice
from ..engine.feed.sink import CONTIGUOUS, FeedSink
from ..engine.flow import handoff
from ..engine.flow.flow import Flow
from ..engine.flow.handoff import Destination
from ..engine.kernels.hashing import hashes
from ..engine.lineage.lineage import lineage, summary, unknown
from ..engine.lineage.origins import NOWHERE, spans_of
from ..engine.lineage.tracing import FeedGraph, find_feed, without_origin
from ..engine.plan.plan import JobPlan
from ..engine.planner.pipelines import plan_job
from ..engine.planner.split_draws import as_planned
from .local_run import start_job

NAME_LENGTH = 60
POLL = 1.0

STARTS = 3
"""So many checkpoints are tried, the nearest one first, then the beginning."""


T = TypeVar("T", pa.Table, pa.ChunkedArray)


@dataclass(frozen=True)
class ReplayedBatch:
    """One batch, or a rank's slice of it.

    ``first``: the position of the first row; ``batch_rows``: rows of the whole global batch. ``verified``: it equals
    what was delivered; None: that is not recorded, or there is no job to compare with. ``start``: where the replay
    began. ``lineage``: see ``engine.lineage.lineage``; ``untraced``: why rows have none. ``skipped_by``: the models
    that have not seen it, or will not, because they skip it. ``epoch``: None in a feed of one. ``layout``: how the
    batch is divided among ranks; unless it is contiguous, other rows stand between those of a rank."""

    job: str
    feed: str
    step: int
    rank: int | None
    world_size: int | None
    rows: pa.Table
    first: int
    batch_rows: int
    verified: bool | None
    start: str
    lineage: pa.Table | None
    untraced: tuple[str, ...] = ()
    skipped_by: tuple[str, ...] = ()
    epoch: int | None = None
    layout: str = CONTIGUOUS

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """What is to be said of it."""
        whose = "" if self.rank is None else f", rank {self.rank} of {self.world_size}"
        part = "" if self.rank is None else f" of {self.batch_rows:,}"
        last = self.first + self.rows.num_rows - 1
        which = f"positions {self.first:,} to {last:,}" if self.rows.num_rows else "no position"
        if self.rank is not None and self.rows.num_rows and self.layout != CONTIGUOUS:
            which = f"{self.layout}, from position {self.first:,} on"
        count = f"{self.rows.num_rows:,} rows{part}"
        step = f"{self.step}" if self.epoch is None else f"{self.step} (epoch {self.epoch})"
        yield f"batch {step} of feed {self.feed}, job {self.job}{whose}: {count}, {which}"
        for who in self.skipped_by:
            yield f"SKIPPED by {who}: ranks take this batch and do not hand it out"
        verdict = {
            True: "equal to what was delivered",
            False: "NOT what was delivered: another digest",
            None: "not compared: no digest of it is recorded",
        }
        yield f"replayed from {self.start}; {verdict[self.verified]}"
        if self.lineage is not None:
            yield "its rows come from"
            yield from (f"  {line}" for line in summary(self.lineage))
            yield from (f"  {line}" for line in self.untraced)


@checked(ConfigurationError)
def replay(
    flow: Flow,
    *,
    step: int,
    checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    feed: str | None = None,
    name: str | None = None,
    state: Mapping[str, Any] | None = None,
    trace: bool = True,
    check: bool = True,
    parallelism: Parallelism = 1,
    timeout: Seconds | None = None,
) -> ReplayedBatch:
    """Rebuild global batch ``step`` of a flow's feed, or the slice of ``rank`` out of ``world_size``. In a
    mesh these are the rank's place among those that divide a batch, and how many they are.

    ``checkpoints``: the job's folder, which is only read; without it the batch is computed from the beginning, and
    compared with nothing. ``feed``: which, if the flow has several. ``name``: the job's, if it is not the flow's.
    ``state``: a ``state_dict()`` of a reader: does it skip the batch? (Of committed models that is known.) ``trace``:
    find out where the rows come from. ``check``: raise DataError if the batch is not what was delivered. ``timeout``:
    seconds to wait for the batch. Raises ConfigurationError if there is no such batch, or if the job was one of another
    flow or other data.
    """
    _check_place(step, rank, world_size)
    sink = find_feed(flow, feed)
    job = name or flow.name
    folder = None if checkpoints is None else JobFolder(_folder_of(checkpoints), job)
    flow = _handed_over(flow if folder is None else flow.with_parts_of(folder.parts), job, folder)
    settled = settle(flow, folder.inputs() if folder is not None and check else None, keeps=folder is not None)
    flow, plan = settled.flow, settled.planned(partial(plan_job, parallelism=parallelism, job=job, rate=0.0))
    if plan.fed:
        message = f"the sources {', '.join(plan.fed)} were fed by the caller, and cannot be read again"
        raise ConfigurationError(message, "replay a flow that reads its inputs itself")
    if folder is not None:
        folder.check(plan)
    run = _Run(flow, plan, sink.id, folder, step, parallelism, timeout)
    found = run.batch(trace)
    batch, origins = without_origin(found.rows)
    size = run.config.batch_size
    verified = None if folder is None else _verified(folder, sink.id, step, batch)
    if verified is False and check:
        raise _differs(folder, job, sink.id, step, found)
    share = np.arange(len(batch)) if rank is None else run.config.share(batch, rank, world_size or 1)
    table = None
    if trace:
        column = None if origins is None else _picked(origins, share).combine_chunks()
        positions = found.first + share
        table = unknown(positions) if column is None else lineage(column, positions, found.graph.splits)
    return ReplayedBatch(
        job,
        sink.id,
        step,
        rank,
        world_size,
        _picked(batch, share),
        found.first + (int(share[0]) if len(share) else 0),
        batch.num_rows,
        verified,
        found.start,
        table,
        tuple(found.graph.ends.values()) if trace else (),
        tuple(_skipped_by(folder, state, sink.id, size, step)),
        None if plan.epochs is None else found.epoch,
        run.config.layout,
    )


def _picked(rows: T, share: npt.NDArray[np.int64]) -> T:
    """These rows; those that follow each other are not copied."""
    first, count = (int(share[0]), len(share)) if len(share) else (0, 0)
    if not count or int(share[-1]) - first + 1 == count:
        return rows.slice(first, count)
    return rows.take(pa.array(share))


def _check_place(step: int, rank: int | None, world_size: int | None) -> None:
    if step < 0:
        raise ConfigurationError(f"step {step}", "steps count global batches from 0")
    if (rank is None) != (world_size is None):
        raise ConfigurationError(
            "a rank's slice depends on the number of ranks", "give rank and group size, or neither for the whole batch"
        )
    if rank is not None and world_size is not None and not 0 <= rank < world_size:
        raise ConfigurationError(f"rank {rank} of {world_size}", "ranks count from 0 to the group size - 1")


def _folder_of(checkpoints: Checkpoints | str | os.PathLike[str]) -> str:
    return checkpoint_folder(checkpoints.folder if isinstance(checkpoints, Checkpoints) else checkpoints)


def _handed_over(flow: Flow, job: str, folder: JobFolder | None) -> Flow:
    """The flow with what it had staged in the job's folder; nothing is staged anew."""
    if not handoff.has_deferred(flow):
        return flow
    if folder is None:
        raise ConfigurationError(
            f"flow {flow.name!r} reads a frame that was handed over when its job started",
            "pass the job's checkpoints: the rows are staged there",
        )
    to = Destination(job, folder.folder, folder.description, resuming=True, detached=True, keeps_checkpoints=True)
    return handoff.hand_over(flow, to)


def _verified(folder: JobFolder, feed: str, step: int, batch: pa.Table) -> bool | None:
    """Whether the batch has the digest that was recorded for it; None: none was."""
    recorded = None
    with suppress(ConfigurationError):
        recorded, _ = DigestFiles(folder.folder, folder.job, feed).read()
    if recorded is None:
        return None
    known = recorded.digests[recorded.batches == step]
    if not len(known):
        return None
    found = OrderHash()
    for records in batch.to_batches():
        found = found.extended(hashes(records.columns))
    return bool(known[0] == found.value)


def _differs(folder: JobFolder | None, job: str, feed: str, step: int, found: _Found) -> DataError:
    assert folder is not None
    skipped = "".join(f"; split {split} of {source} was given up while it ran" for source, split in folder.skipped)
    return DataError(
        f"batch {step} of feed {feed!r}, job {job!r}, replayed from {found.start}, is not what was delivered: its "
        f"{found.rows.num_rows:,} rows have another digest than those that were recorded{skipped}",
        "either an input was changed in place, or a function of the flow gives other results than it did (random "
        "numbers, the time, another version of a library); check=False (--no-check) shows what comes now",
    )


def _skipped_by(
    folder: JobFolder | None, state: Mapping[str, Any] | None, feed: str, size: int, step: int
) -> Iterator[str]:
    """Who skips the batch: models whose records say so, and the state that was given."""
    records = [] if folder is None else ModelBook(folder.folder, folder.job).records(feed)
    for record in records:
        if any(first <= step < end for first, end in record.skipped or ()):
            yield f"model {record.model!r}"
    if state is None:
        return
    if (state.get("feed"), state.get("batch_size")) != (feed, size):
        raise ConfigurationError(
            f"the state is that of feed {state.get('feed')!r} with batches of {state.get('batch_size')}, not of "
            f"{feed!r} with batches of {size}",
            "give what state_dict() of one of this feed's readers gave",
        )
    if any(int(first) <= step < int(end) for first, end in state.get("skipped", ())):
        yield "the state that was given"


# ---------------------------------------------------------------------- the run


class _GoneError(Exception):
    """The checkpoint does not serve."""


@dataclass(frozen=True)
class _Found:
    """A batch with its origins. ``first``: the position of its first row; ``start``: in words."""

    rows: pa.Table
    first: int
    epoch: int
    start: str
    graph: FeedGraph


class _Run:
    """Runs the feed's part of a flow until one batch is there. ``plan``: of the whole flow."""

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

    def batch(self, trace: bool) -> _Found:
        """The batch, with its origins if they are wanted and can be known."""
        if trace and (traced := self._graph(traced=True)).is_traced:
            return self._batch(traced)
        found = self._batch(self._graph(traced=False))
        return replace(found, graph=traced) if trace else found

    def _graph(self, *, traced: bool) -> FeedGraph:
        skipped = frozenset() if self._folder is None else self._folder.skipped
        return FeedGraph(self._flow, self._feed, self._plan, traced=traced, skipped=skipped)

    def _batch(self, graph: FeedGraph) -> _Found:
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

    def _found(self, graph: FeedGraph, batch: Slice[pa.RecordBatch], start: str) -> _Found:
        schema = graph.node(graph.node(self._feed).inputs[0]).schema
        assert schema is not None
        return _Found(
            pa.Table.from_batches(batch.rows, self.config.output_schema([schema])),
            batch.first,
            batch.epoch,
            start,
            graph,
        )

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
        """Read as the whole flow reads: what was left out may have had a say in that."""
        sources = {id: as_planned(self._plan.sources[id], found) for id, found in plan.sources.items()}
        reweights = () if self._folder is None else self._folder.reweights
        return replace(plan, sources=sources, epochs=self._plan.epochs, reweights=reweights)

    def _run(self, graph: FeedGraph, start: Start | None) -> Slice[pa.RecordBatch]:
        private = f"{self._plan.name[:NAME_LENGTH]}-replay-{uuid.uuid4().hex[:8]}"
        plan = self._as_planned(plan_job(graph, self._parallelism, job=private, rate=0.0, prune=False))
        place = temporary_place()
        try:
            print_interrupts_briefly()
            job = start_job(plan, place, None, start)
        except BaseException:
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
            f"feed {self._feed!r} has {batches:,} {self.config.describe_batches}, and none with number {self._step}",
            f"steps count global batches from 0: {last}",
        )


def _names(graph: FeedGraph) -> frozenset[str]:
    return frozenset(node.id for node in graph.nodes)


def _is_complete(rows: pa.Table) -> bool:
    """Whether every origin is known."""
    _, origins = without_origin(rows)
    assert origins is not None
    return not bool((spans_of(origins.combine_chunks())[1] == NOWHERE).any())
