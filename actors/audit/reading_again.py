"""Reads the splits of a source once more, and compares them with what the source has handed on. No Ray.

Rules:

1. What a source handed on is stored beside its cursors, per lane (``engine/integrity/lane_digests.py``); the other side
   are the rows of the lane's splits, as the plan has them (pruned, and for each epoch), opened at their beginning, one
   after the other, in this process. Of a job that has finished these are all splits to their ends, whatever the cursors
   say; of one that was stopped those that its cursors have passed.
2. If both agree the source is proven: from its splits to the first operator. If not, some row of that lane was lost,
   repeated or altered on this way.
3. A source is not compared, and it is said why, if it cannot be read twice (``reads_once``), if somebody left rows of
   it unread because nobody needed them, if some rows were handed on without a look (by a run without
   ``audit="content"``, or by another flow), or if its splits cannot be read now: that they are gone when the job is
   over makes no row of it wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ...engine.arrow.plain_types import plain_batches
from ...engine.core.errors import DataError
from ...engine.core.source import Split
from ...engine.integrity.lane_digests import Sum, added, digested, sums_by_lane, total
from ...engine.integrity.row_digests import RowDigest
from ...engine.plan.plan import JobPlan, SourcePlan
from ...engine.plan.rounds import LaneCursor, SplitAssignment
from ...engine.sources.repeated import again

Stretch = tuple[int, int | None]
"""A split, by its position behind those of earlier epochs, and how many rows of it; None: all."""


@dataclass(frozen=True, slots=True)
class Reading:
    """``same``: whether the source handed on what its splits hold; None: not compared, and ``unproven`` says why.
    ``other``: the splits of the lanes that disagree. ``digests``: of the rows that it handed on, by the salt of the
    digest, as far as known."""

    same: bool | None = None
    unproven: str = ""
    other: tuple[str, ...] = ()
    digests: Mapping[int, int] = field(default_factory=dict)


def handed_on(plan: JobPlan, source: SourcePlan, state: pa.Table | None, cursors: Sequence[LaneCursor]) -> Reading:
    """What is known of a source without reading it again. More rows handed on than read are none the less compared."""
    (known, found), rows = digested(state, plan.fingerprint), sum(cursor.rows for cursor in cursors)
    if any(cursor.needless for cursor in cursors):
        return Reading(unproven="rows that nobody needed were left")
    if known < rows:
        return Reading(unproven=f"{rows - known:,} of {rows:,} rows were handed on without a look at their content")
    if source.id in plan.fed:
        why = "its splits were fed while the job ran"
    else:
        why = "its rows can be read only once" if getattr(source.config, "reads_once", False) else ""
    return Reading(unproven=why, digests={RowDigest(source.schema).salt: found})


def read_again(
    plan: JobPlan,
    source: SourcePlan,
    state: pa.Table | None,
    cursors: Sequence[LaneCursor],
    *,
    whole: bool,
    also: Sequence[RowDigest] = (),
) -> Reading:
    """Compare a source with its splits. ``whole``: they are to have been read to their ends. ``also``: other digests
    that are wanted of the same rows."""
    known = handed_on(plan, source, state, cursors)
    if known.unproven:
        return known
    assignment = SplitAssignment(plan.lanes, next((cursor.dealt for cursor in cursors), 0))
    splits = _Splits(plan, source, (RowDigest(source.schema), *also))
    taken = {} if state is None else sums_by_lane(state, plan.fingerprint)
    stretches = splits.all(assignment) if whole else splits.passed(assignment, cursors)
    sums: list[dict[int, Sum]] = [{} for _ in splits.digests]
    try:
        for lane, stretch in stretches:
            for by_lane, found in zip(sums, splits.read(stretch), strict=True):
                by_lane[lane] = added(by_lane.get(lane, (0, 0)), found)
    except Exception as error:  # also whatever a user's source raises: rule 3
        return Reading(unproven=f"its splits cannot be read again: {error}", digests=known.digests)
    own = sums[0]
    wrong = [lane for lane in range(plan.lanes) if own.get(lane, (0, 0)) != taken.get(lane, (0, 0))]
    if wrong:
        other = tuple(split for lane in wrong for split in splits.of_lane(assignment, lane))
        return Reading(False, other=other, digests=known.digests)
    digests = {digest.salt: total(found)[1] for digest, found in zip(splits.digests, sums, strict=True)}
    return Reading(True, digests=digests)


class _Splits:
    """The splits of a source, in all epochs, and what they hold by some digests."""

    def __init__(self, plan: JobPlan, source: SourcePlan, digests: Sequence[RowDigest]) -> None:
        self.digests = digests
        self._source = source
        self._epochs = plan.epochs.count if plan.epochs is not None and source.repeats else 1
        #: of those that are the same in every epoch, and read in several: by position
        self._read: dict[int, list[Sum]] = {}

    def all(self, assignment: SplitAssignment) -> Iterator[tuple[int, Stretch]]:
        """Every split, with its lane."""
        count = len(self._source.splits)
        for at in range(self._epochs * count):
            yield assignment.lane_of(at % count), (at, None)

    def passed(self, assignment: SplitAssignment, cursors: Sequence[LaneCursor]) -> Iterator[tuple[int, Stretch]]:
        """What the cursors have passed, with its lane."""
        for cursor in cursors:
            lane = list(self._positions(assignment, cursor.lane))
            yield from ((cursor.lane, (at, None)) for at in lane[: cursor.ordinal])
            yield from ((cursor.lane, (at, cursor.row)) for at in lane[cursor.ordinal : cursor.ordinal + 1])

    def of_lane(self, assignment: SplitAssignment, lane: int) -> list[str]:
        """The ids of a lane's splits."""
        return [self._split(at).id for at in self._positions(assignment, lane)]

    def _positions(self, assignment: SplitAssignment, lane: int) -> Iterator[int]:
        count = len(self._source.splits)
        for epoch in range(self._epochs):
            yield from (epoch * count + at for at in assignment.positions(lane, assignment.count(lane, count)))

    def _split(self, at: int) -> Split:
        epoch, position = divmod(at, len(self._source.splits))
        return again(self._source.splits[position], epoch)

    def read(self, stretch: Stretch) -> list[Sum]:
        """The sums of a stretch, by digest."""
        at, rows = stretch
        position = at % len(self._source.splits)
        if rows == 0:
            return [(0, 0)] * len(self.digests)
        if rows is not None or self._epochs == 1 or hasattr(self._source.splits[position], "again"):
            return self._sums(self._split(at), rows)
        if position not in self._read:
            self._read[position] = self._sums(self._split(at), None)
        return self._read[position]

    def _sums(self, split: Split, rows: int | None) -> list[Sum]:
        sums = [(0, 0)] * len(self.digests)
        for records in plain_batches(split.open(0)):
            if not records.schema.equals(self._source.schema):
                raise DataError(f"split {split.id} has another schema now", "keep the inputs unchanged")
            wanted = records if rows is None else records.slice(0, rows - sums[0][0])
            found = [(wanted.num_rows, digest.of(wanted)) for digest in self.digests]
            sums = [added(*pair) for pair in zip(sums, found, strict=True)]
            if sums[0][0] == rows:
                break
        return sums
