"""The audit of a feed: every input row handed out exactly once, by count and by content.

It compares two independent sides. What the feed has numbered is in its last checkpoint: the number of rows, and the
sum of their hashes, which does not depend on their order. What it should have numbered comes from the inputs: every
split is read again, from its beginning, and passes the operators that work row by row (filter, project, unnest), in
this process. What only changes the order or the place of rows (exchanges, sort, shuffle, union, a mixture that goes on
to its end) is left out. Every epoch is compared by itself, and must have given the same. Behind any other operator (a
join, an aggregation, a function of the user) it is not known what should come, and the counts of the sources must do
(``job.audit()``).

It also has what the ranks did with it: how far each had come at the last checkpoint, slices that a rank was never given
because a newer group started after them, and models that cover more than some rank had taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ...engine.arrow.plain_types import plain_batches
from ...engine.core.elements import Batch, Tag
from ...engine.core.errors import ConfigurationError
from ...engine.core.identity import Attempt, TaskId
from ...engine.core.operator import OperatorContext, exhaust
from ...engine.core.source import Split
from ...engine.feed.progress import RankProgress, Untaken
from ...engine.feed.state import SequencerState, read_state
from ...engine.kernels.hashing import hashes
from ...engine.operators.sequence.mix import Mix, rows_given, turns_begun
from ...engine.plan.plan import JobPlan, OperatorPlan, PipelinePlan
from ..audit.origins import UnknownRoute, pipelines_behind, pipelines_of, routes, sources_of
from .models import ModelRecord


@dataclass(frozen=True, slots=True)
class SplitContent:
    """What a split has, and how many of them the feed should have. ``content``: the sum of the hashes of those rows."""

    source: str
    split: str
    rows: int
    fed: int
    content: int


@dataclass(frozen=True, slots=True)
class EpochAudit:
    """One epoch: the ``rows`` that were numbered in it, and those ``expected``. ``same``: whether their content is that
    of the inputs; None: before its end, or if no column has a hash."""

    rows: int
    expected: int
    ended: bool
    same: bool | None

    @property
    def gaps(self) -> int:
        """Rows that are missing, at its end."""
        return max(0, self.expected - self.rows) if self.ended else 0

    @property
    def repeats(self) -> int:
        """Rows that are too many."""
        return max(0, self.rows - self.expected)

    def __str__(self) -> str:
        content = {True: ", the same content", False: ", OTHER CONTENT", None: ""}[self.same]
        return f"{self.rows:,} rows{'' if self.ended else ' so far'} of {self.expected:,}{content}"


@dataclass(frozen=True, slots=True)
class ModelAhead:
    """A model that was bound at a ``step`` which some ranks had not come to, and have not since."""

    model: str
    step: int
    behind: tuple[RankProgress, ...]

    def __str__(self) -> str:
        return f"model {self.model!r} covers the batches before {self.step}, but {'; '.join(map(str, self.behind))}"


@dataclass(frozen=True, slots=True)
class StreamRows:
    """A stream of a ``mixture``, which comes from these ``sources``: so many ``rows`` have left it, of ``all``
    that have. They may still be on their way to the feed, or be left out before. ``again``: how often it has begun
    again."""

    mixture: str
    stream: int
    sources: tuple[str, ...]
    rows: int
    all: int
    again: int = 0

    def __str__(self) -> str:
        share = f", {100 * self.rows / self.all:.1f} %" if self.all else ""
        again = f", begun again {self.again:,} times" if self.again else ""
        return f"{self.mixture}: {self.rows:,} rows of stream {self.stream} ({', '.join(self.sources)}){share}{again}"


@dataclass(frozen=True, slots=True)
class FeedAudit:
    """``rows``: numbered so far, that is handed out, or waiting; ``ended``: there will be no more. ``unknown``: why it
    is not known what the inputs should give; else ``expected`` rows, split by split, with the content ``same`` or not
    (None: before the end, or if no column has a hash). With several epochs that is what all of them should give, and
    ``epochs`` has the rows of each that has begun, and whether their content is that of the inputs."""

    feed: str
    rows: int
    ended: bool
    splits: tuple[SplitContent, ...] = ()
    expected: int | None = None
    same: bool | None = None
    unknown: str = ""
    epochs: tuple[EpochAudit, ...] = ()
    ranks: tuple[RankProgress, ...] = ()
    """What each rank of the newest group had taken at the last checkpoint."""
    untaken: tuple[Untaken, ...] = ()
    """Slices that a rank was never given."""
    models: tuple[ModelAhead, ...] = ()
    """Models that cover batches which some rank had not taken."""
    streams: tuple[StreamRows, ...] = ()
    """Of the mixtures before it."""

    @property
    def gaps(self) -> int:
        """Rows that are missing, in epochs that have ended."""
        return sum(each.gaps for each in self.epochs)

    @property
    def repeats(self) -> int:
        """Rows that are too many."""
        return sum(each.repeats for each in self.epochs)

    @property
    def clean(self) -> bool:
        """Whether nothing is known to be missing, repeated or altered, nor to have been left out by a rank."""
        taken = not self.untaken and not self.models
        return taken and self.gaps == 0 and self.repeats == 0 and self.same is not False

    def __str__(self) -> str:
        end = "" if self.ended else " so far"
        lines = [f"audit of feed {self.feed}: {self.rows:,} rows{end}"]
        for split in self.splits:
            lines.append(f"  {split.source} {split.split}: {split.rows:,} rows, of which {split.fed:,} belong here")
        lines += [f"  {each}" for each in (*self.streams, *self.ranks, *self.untaken, *self.models)]
        if self.unknown:
            return "\n".join([*lines, f"  not compared with the inputs: {self.unknown}"])
        if len(self.epochs) > 1:
            lines += [f"  epoch {number}: {each}" for number, each in enumerate(self.epochs)]
        content = {True: "the same content", False: "OTHER CONTENT", None: "content not compared"}[self.same]
        return "\n".join([*lines, f"  {self.expected:,} expected, gaps {self.gaps}, repeats {self.repeats}, {content}"])


def audit_feed(
    plan: JobPlan, state: Mapping[str, pa.Table], feed: str = "feed", models: Sequence[ModelRecord] = ()
) -> FeedAudit:
    """Audit a feed by ``state``, the last checkpoint's tables by operator, and the ``models`` that are bound to it. It
    reads all inputs. Raises ConfigurationError if there is no such feed, or no checkpoint yet."""
    pipeline, sink = _find(plan, feed)
    if feed not in state:
        raise ConfigurationError(f"feed {feed!r} is in no checkpoint yet", "audit it after the first checkpoint")
    (schema,) = sink.inputs
    reached = read_state(state[feed], schema)
    ahead = tuple(_ahead_of_ranks(models, reached.progress))
    found = FeedAudit(
        feed,
        reached.position,
        reached.ended,
        ranks=reached.progress,
        untaken=reached.untaken,
        models=ahead,
        streams=tuple(_streams(plan, pipeline, state)),
    )
    try:
        ways = list(routes(plan, pipeline, len(pipeline.operators) - 1))
    except UnknownRoute as unknown:
        return replace(found, unknown=str(unknown))
    splits = tuple(
        _content(source, split, operators) for source, operators in ways for split in plan.sources[source].own_splits
    )
    expected, content = sum(split.fed for split in splits), sum(split.content for split in splits) % 2**64
    epochs = tuple(_epochs(reached, expected, content))
    count = 1 if plan.epochs is None else plan.epochs.count
    same = all(each.same for each in epochs) and len(epochs) == count if reached.ended else None
    return replace(found, splits=splits, expected=count * expected, same=same, epochs=epochs)


def _epochs(reached: SequencerState[pa.RecordBatch], expected: int, content: int) -> Iterator[EpochAudit]:
    """The epochs that have begun. ``content``: that each should have."""
    position = before = 0
    ends = [(end.position, end.content) for end in reached.ends]
    if reached.ended:
        ends[-1:] = [(reached.position, reached.order.content)]
    for end, behind in ends:
        yield EpochAudit(end - position, expected, True, (behind - before) % 2**64 == content)
        position, before = end, behind
    if not reached.ended:
        yield EpochAudit(reached.position - position, expected, False, None)


def _streams(plan: JobPlan, pipeline: PipelinePlan, state: Mapping[str, pa.Table]) -> Iterator[StreamRows]:
    """What the mixtures before the feed have given, as far as the checkpoint says."""
    before = {each.name: each for each in pipelines_behind(plan, pipeline)}
    for each in before.values():
        for operator in each.operators:
            if not isinstance(operator.config, Mix) or operator.id not in state:
                continue
            given, turns = rows_given(state[operator.id]) or (), turns_begun(state[operator.id])
            for number, (port, rows, again) in enumerate(zip(each.ports, given, turns, strict=False), 1):
                yield StreamRows(operator.id, number, tuple(sources_of(plan, port)), rows, sum(given), again)


def _ahead_of_ranks(models: Sequence[ModelRecord], progress: Sequence[RankProgress]) -> Iterator[ModelAhead]:
    """The models that some rank has not caught up with."""
    now = {(each.generation, each.rank): each.taken for each in progress}
    for model in models:
        slow = tuple(each for each in model.behind if now.get((each.generation, each.rank), 0) < model.step)
        if slow:
            yield ModelAhead(model.model, model.step, slow)


def _find(plan: JobPlan, feed: str) -> tuple[PipelinePlan, OperatorPlan]:
    for pipeline in pipelines_of(plan):
        for operator in pipeline.operators:
            if operator.id == feed and feed in plan.feeds:
                return pipeline, operator
    known = ", ".join(plan.feeds) or "none"
    raise ConfigurationError(f"job {plan.name!r} has no feed {feed!r}", f"its feeds: {known}")


class _Through:
    """Rows on their way through operators that work row by row."""

    def __init__(self, operators: tuple[OperatorPlan, ...], out: list[pa.RecordBatch]) -> None:
        self._out = out
        self._next = _Through(operators[1:], out) if operators else None
        if operators:
            first = operators[0]
            context = OperatorContext(first.id, TaskId("audit", 0), Attempt(1, 1), 1, range(1))
            self._running = first.config.build(context, first.inputs, None)

    def emit(self, batch: Batch) -> None:
        if self._next is None:
            self._out.append(batch.records)
        else:
            exhaust(self._running.process(0, batch, self._next))


def _content(source: str, split: Split, operators: tuple[OperatorPlan, ...]) -> SplitContent:
    fed: list[pa.RecordBatch] = []
    through = _Through(operators, fed)
    rows = count = content = 0
    for number, records in enumerate(plain_batches(split.open(0))):
        if not records.num_rows:
            continue
        rows += records.num_rows
        through.emit(Batch(records, Tag(0, 0, number)))
        for found in fed:
            count += found.num_rows
            content += int(hashes(found.columns).sum(dtype=np.uint64))
        fed.clear()
    return SplitContent(source, split.id, rows, count, content % 2**64)
