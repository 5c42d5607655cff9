"""``ps.replay``: one batch of a feed once more, as its ranks got it, and where its rows come from.

Rules:

1. The sequence of global batches is a function of the inputs and the flow. So the flow runs again, in this process,
   from the nearest checkpoint that serves or from the beginning, until the batch is there; sinks other than the feed
   are left out, and so is what leads to them alone.
2. The job's folder is only read: its log, its checkpoints (copied first) and its digests. The job may run meanwhile.
3. The batch is compared with the digest that the job recorded when it was delivered; what differs is refused.
4. Origins travel with the rows (``engine.lineage.tracing``). A checkpoint's state has none: one that serves the rows
   may be too near for their lineage, and then the next one before it is taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from ..actors.claims.inputs import settle
from ..actors.feed.models import ModelBook
from ..actors.feed.retained import JobFolder
from ..actors.protocol.settings import Checkpoints
from ..actors.storage.digest_files import DigestFiles
from ..actors.storage.stores import checkpoint_folder
from ..engine.core.arguments import Parallelism, Seconds, checked
from ..engine.core.errors import ConfigurationError, DataError
from ..engine.feed.digests import BatchDigests
from ..engine.feed.messages import RankGroup
from ..engine.flow import handoff
from ..engine.flow.flow import Flow
from ..engine.flow.handoff import Destination
from ..engine.kernels.hashing import hashes
from ..engine.lineage.lineage import lineage, summary, unknown
from ..engine.lineage.tracing import find_feed, without_origin
from ..engine.planner.pipelines import plan_job
from .replay_run import Found, Replaying


@dataclass(frozen=True)
class ReplayedBatch:
    """One batch, or a rank's slice of it.

    ``first``: the position of the first row; ``batch_rows``: rows of the whole global batch. ``verified``: it equals
    what was delivered; None: that is not recorded, or there is no job to compare with. ``start``: where the replay
    began. ``lineage``: see ``engine.lineage.lineage``; ``untraced``: why rows have none. ``skipped_by``: the models
    that have not seen it, or will not, because they skip it. ``epoch``: None in a feed of one."""

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

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """What is to be said of it."""
        whose = "" if self.rank is None else f", rank {self.rank} of {self.world_size}"
        part = "" if self.rank is None else f" of {self.batch_rows:,}"
        last = self.first + self.rows.num_rows - 1
        which = f"positions {self.first:,} to {last:,}" if self.rows.num_rows else "no position"
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
    """Rebuild global batch ``step`` of a flow's feed, or the slice of ``rank`` out of ``world_size``.

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
    flow = _handed_over(flow, job, folder)
    settled = settle(flow, folder.inputs() if folder is not None and check else None, keeps=folder is not None)
    flow, plan = settled.flow, settled.planned(partial(plan_job, parallelism=parallelism, job=job, rate=0.0))
    if plan.fed:
        message = f"the sources {', '.join(plan.fed)} were fed by the caller, and cannot be read again"
        raise ConfigurationError(message, "replay a flow that reads its inputs itself")
    if folder is not None:
        folder.check(plan)
    replaying = Replaying(flow, plan, sink.id, folder, step, parallelism, timeout)
    found = replaying.batch(trace)
    batch, origins = without_origin(found.rows)
    size = replaying.config.batch_size
    verified = None if folder is None else _verified(folder, sink.id, step, batch, size)
    if verified is False and check:
        raise _differs(folder, job, sink.id, step, found)
    share = range(batch.num_rows) if rank is None else RankGroup(1, world_size or 1, 0).share(rank, batch.num_rows)
    first = found.first + share.start
    table = None
    if trace:
        column = None if origins is None else origins.slice(share.start, len(share)).combine_chunks()
        table = unknown(first, len(share)) if column is None else lineage(column, first, found.graph.splits)
    return ReplayedBatch(
        job,
        sink.id,
        step,
        rank,
        world_size,
        batch.slice(share.start, len(share)),
        first,
        batch.num_rows,
        verified,
        found.start,
        table,
        tuple(found.graph.ends.values()) if trace else (),
        tuple(_skipped_by(folder, state, sink.id, size, step)),
        None if plan.epochs is None else found.epoch,
    )


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


def _verified(folder: JobFolder, feed: str, step: int, batch: pa.Table, size: int) -> bool | None:
    """Whether the batch has the digest that was recorded for it; None: none was."""
    recorded = None
    with suppress(ConfigurationError):
        recorded, _ = DigestFiles(folder.folder, folder.job, feed).read()
    if recorded is None:
        return None
    known = recorded.digests[recorded.batches == step]
    if not len(known):
        return None
    digests = BatchDigests(size)
    for records in batch.to_batches():
        digests.add(hashes(records.columns))
    digests.end()
    return bool(known[0] == digests.take().digests[0])


def _differs(folder: JobFolder | None, job: str, feed: str, step: int, found: Found) -> DataError:
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
            f"the state is that of feed {state.get('feed')!r} with batches of {state.get('batch_size')} rows, not of "
            f"{feed!r} with {size}",
            "give what state_dict() of one of this feed's readers gave",
        )
    if any(int(first) <= step < int(end) for first, end in state.get("skipped", ())):
        yield "the state that was given"
