"""``penstock shuffle-quality``: reads two epochs of a flow's feed, and says how well its rows are mixed.

The flow runs in this process, alone, with rows that say where they are from (``engine.lineage``), as a replay does; its
other sinks are left out, and nothing is kept. Three figures:

1. The rank correlation of the order in which rows are fed with the order in which they lie in the inputs: 1 as they
   lie, about 0 mixed.
2. Of how many splits the rows of a batch are: on average, and at least. The last batch of an epoch is left aside.
3. How much the first 1 % of two epochs have in common: 1 % if they are drawn of all rows, everything if only their
   order differs.

A row that is made of several counts as the first one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..actors.claims.place import temporary_place
from ..engine.core.errors import ConfigurationError, FlowError
from ..engine.feed.sink import FeedSink
from ..engine.flow import handoff
from ..engine.flow.flow import Flow
from ..engine.lineage.origins import ORIGIN, spans_of, split_numbers
from ..engine.lineage.tracing import FeedGraph, find_feed
from ..engine.plan.plan import JobPlan
from ..engine.planner.pipelines import plan_job
from ..engine.planner.split_draws import as_planned
from .flow_finder import find_flow
from .local_run import start_job
from .replay import NAME_LENGTH

Origins = npt.NDArray[np.int64]
PART = 100
"""Of the rows of an epoch, so many parts: the first one of two epochs is compared."""


@dataclass(frozen=True)
class ShuffleQuality:
    """See the module. ``common`` is None where a second epoch could not be read, and ``why`` says why."""

    rows: int
    splits: int
    batches: int
    correlation: float
    splits_a_batch: float
    fewest_splits: int
    common: float | None
    why: str = ""

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.rows:,} rows of {self.splits:,} splits in {self.batches:,} batches"
        yield f"  rank correlation with the inputs    {self.correlation:.4f}"
        yield f"  splits in a batch                   {self.splits_a_batch:.1f}, at least {self.fewest_splits}"
        told = f"not compared: {self.why}" if self.common is None else f"{self.common:.2%}"
        yield f"  first 1 % of two epochs, in common  {told}"


def shuffle_quality(flow: Flow, feed: str | None = None, *, parallelism: int = 1) -> ShuffleQuality:
    """The figures of a flow's feed. Raises ConfigurationError if rows cannot be traced, or not be read again."""
    sink = find_feed(flow, feed)
    if handoff.has_deferred(flow):
        raise ConfigurationError(
            "the flow reads a frame that is handed over when its job starts", "write it to files first, and read these"
        )
    config, why = sink.config, ""
    assert isinstance(config, FeedSink)
    if config.epochs == 1:
        try:
            twice = flow.with_nodes([replace(sink, config=replace(config, epochs=2))])
            plan_job(twice, parallelism, rate=0.0)
            flow = twice
        except FlowError as error:
            why = error.message
    epochs = _epochs_of(flow, sink.id, parallelism, 1 if why else 2)
    return quality_of(epochs, why)


def quality_of(epochs: Sequence[Sequence[Origins]], why: str = "") -> ShuffleQuality:
    """The figures of one epoch, or two: for each batch where its rows are from."""
    batches = epochs[0]
    whole = np.concatenate(batches) if batches else np.zeros(0, dtype=np.int64)
    if not len(whole):
        raise ConfigurationError("the feed has no rows", "measure a flow that has some")
    splits = [len(np.unique(split_numbers(each))) for each in batches[: max(1, len(batches) - 1)]]
    common = None
    if len(epochs) > 1:
        size = max(1, len(whole) // PART)
        common = len(np.intersect1d(whole[:size], np.concatenate(epochs[1])[:size])) / size
    return ShuffleQuality(
        rows=len(whole),
        splits=len(np.unique(split_numbers(whole))),
        batches=len(batches),
        correlation=_correlation(whole),
        splits_a_batch=float(np.mean(splits)),
        fewest_splits=min(splits),
        common=common,
        why=why,
    )


def _correlation(whole: Origins) -> float:
    """Of the order of numbers with their places; 1 of a single one."""
    ranks = np.argsort(np.argsort(whole, kind="stable"), kind="stable")
    return float(np.corrcoef(ranks, np.arange(len(whole)))[0, 1]) if len(whole) > 1 else 1.0


def _epochs_of(flow: Flow, feed: str, parallelism: int, count: int) -> list[list[Origins]]:
    """Where the rows of so many epochs are from, batch by batch."""
    plan = plan_job(flow, parallelism, rate=0.0)
    if plan.fed:
        raise ConfigurationError("the flow's sources are fed by the caller", "measure a flow that reads its inputs")
    graph = FeedGraph(flow, feed, plan)
    if not graph.is_traced:
        raise ConfigurationError(
            f"it is not known where the rows of feed {feed} are from: {'; '.join(graph.ends.values())}",
            "measure a flow without that operator",
        )
    traced = _as_planned(plan_job(graph, parallelism, job=_private(plan), rate=0.0, prune=False), plan)
    place = temporary_place()
    try:
        job = start_job(traced, place, None, None)
    except BaseException:
        place.release()
        raise
    with job, job.feed(feed).reader(0, 1) as reader:
        return [[_origins(records) for records in reader] for _ in range(count)]


def _private(plan: JobPlan) -> str:
    return f"{plan.name[:NAME_LENGTH]}-quality-{uuid.uuid4().hex[:8]}"


def _as_planned(traced: JobPlan, plan: JobPlan) -> JobPlan:
    """Read as the whole flow reads."""
    sources = {id: as_planned(plan.sources[id], each) for id, each in traced.sources.items()}
    return replace(traced, sources=sources, epochs=plan.epochs)


def _origins(records: pa.RecordBatch) -> Origins:
    """Where each row is from that is from anywhere."""
    counts, spans = spans_of(records.column(ORIGIN))
    firsts = np.cumsum(counts) - counts
    found: Origins = spans[firsts[counts > 0], 0]
    return found[found >= 0]


def shuffle_quality_command(flow: str, feed: str | None, parallelism: int, show: Callable[[str], None]) -> int:
    """Print the figures."""
    for line in shuffle_quality(find_flow(flow), feed, parallelism=parallelism).lines():
        show(line)
    return 0
