"""The audit of a job: every input row read once, every output row visible once.

It compares three independent counts: the lengths that the splits had when the job was planned, the counters in the
last checkpoint (cursors of the sources, rows per lane of the sinks: part of the cut, so exactly once by construction),
and what a reader of the outputs finds. A row too few is a gap, a row too many a repeat.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass

import pyarrow as pa

from ..coordinator.manifest import Manifest
from ..coordinator.statistics import JobStatus
from ..engine.dealing import Deal
from ..engine.errors import ConfigurationError
from ..engine.plan import JobPlan, SourcePlan
from ..engine.rounds import LaneCursor, cursor_of
from ..engine.sources.repeated import again
from .snapshots import SnapshotFiles
from .storage.log import read_log
from .storage.opening import open_store

SPLITS_PER_LINE = 16


@dataclass(frozen=True, slots=True)
class SplitAudit:
    """One split: its length when planned (None: unknown) and the rows of it that the last checkpoint covers.

    ``read`` is None for a split of unknown length that has been read to its end.
    """

    id: str
    planned: int | None
    read: int | None


@dataclass(frozen=True, slots=True)
class SourceAudit:
    """One source. ``rows`` counts what its lanes have read, in all; ``needless``: rows that nobody needed any more,
    because a limit had been reached, say."""

    id: str
    splits: tuple[SplitAudit, ...]
    rows: int
    gaps: int
    repeats: int
    needless: int = 0


@dataclass(frozen=True, slots=True)
class SinkAudit:
    """One sink: the rows that it took, and those that a reader sees (None: the sink cannot tell)."""

    id: str
    guarantee: str
    rows: int
    visible: int | None

    @property
    def gaps(self) -> int:
        return 0 if self.visible is None else max(0, self.rows - self.visible)

    @property
    def repeats(self) -> int:
        return 0 if self.visible is None else max(0, self.visible - self.rows)


@dataclass(frozen=True, slots=True)
class Audit:
    """What became of a job's rows."""

    job: str
    status: str
    checkpoints: int
    restarts: int
    sources: tuple[SourceAudit, ...]
    sinks: tuple[SinkAudit, ...]
    ignored: tuple[str, ...] = ()
    """Files that came after the job's inputs were recorded, and are not read."""

    @property
    def gaps(self) -> int:
        """Rows that are missing somewhere."""
        return sum(source.gaps for source in self.sources) + sum(sink.gaps for sink in self.sinks)

    @property
    def repeats(self) -> int:
        """Rows that are somewhere more than once."""
        return sum(source.repeats for source in self.sources) + sum(sink.repeats for sink in self.sinks)

    @property
    def clean(self) -> bool:
        """Whether every row was read once and is visible once."""
        return self.gaps == 0 and self.repeats == 0

    def to_json(self) -> str:
        """The whole audit as JSON."""
        totals = {"gaps": self.gaps, "repeats": self.repeats}
        return json.dumps({**asdict(self), **totals}, indent=2)

    def __str__(self) -> str:
        lines = [f"audit of job {self.job} ({self.status})"]
        for source in self.sources:
            left = f", {source.needless:,} more not needed" if source.needless else ""
            lines.append(
                f"  read     {source.id}: {source.rows:,} rows in {len(source.splits)} splits{left}; rows per split:"
            )
            lines += _table([split.read for split in source.splits])
        if self.ignored:
            lines.append(
                f"  not read {len(self.ignored):,} files that came since: {', '.join(self.ignored[:SPLITS_PER_LINE])}"
            )
        for sink in self.sinks:
            seen = "" if sink.visible is None else f", {sink.visible:,} visible"
            lines.append(f"  written  {sink.id}: {sink.rows:,} rows{seen} ({sink.guarantee})")
        lines.append(
            f"  checkpoints {self.checkpoints}, restarts {self.restarts}, gaps {self.gaps}, repeats {self.repeats}"
        )
        return "\n".join(lines)


def audit_job(plan: JobPlan, folder: str, status: JobStatus) -> Audit:
    """Audit a job as of the last checkpoint in ``folder``. Raises ConfigurationError if none was kept."""
    state = last_state(plan, folder)
    if status.is_over and status.checkpoints_completed and not state:
        raise ConfigurationError(
            f"the checkpoints of job {plan.name!r} were deleted at its end, so there is nothing to audit it by",
            'run it with Checkpoints(…, retention="always")',
        )
    return make_audit(plan, state, status)


def last_state(plan: JobPlan, folder: str) -> dict[str, pa.Table]:
    """The tables of the last checkpoint, by operator, all tasks together; empty before the first one."""
    entries = read_log(open_store(folder), plan.name)
    manifest = next((entry for entry in reversed(entries) if isinstance(entry, Manifest)), None)
    return {} if manifest is None else state_of(manifest, manifest.root or folder, plan.name)


def state_of(manifest: Manifest, folder: str, job: str, operators: Container[str] | None = None) -> dict[str, pa.Table]:
    """The tables of a checkpoint whose files lie below ``folder``, by operator (all, or these), all tasks together."""
    handles = [
        handle
        for task in manifest.tasks
        for handle in task.state
        if not handle.is_channel_file and (operators is None or handle.operator in operators)
    ]
    return SnapshotFiles(folder, job).read(handles)


def make_audit(plan: JobPlan, state: Mapping[str, pa.Table], status: JobStatus) -> Audit:
    """Audit a job by its plan and ``state``, the last checkpoint's tables by operator."""
    finished = status.state == "finished"
    return Audit(
        job=plan.name,
        status=status.state,
        checkpoints=status.checkpoints_completed,
        restarts=status.restarts,
        sources=tuple(_audit_source(plan, source, state.get(source.id), finished) for source in plan.sources.values()),
        sinks=tuple(
            SinkAudit(id, config.guarantee, _sum(state.get(id)), config.visible_rows(plan.key))
            for id, (_, config) in plan.sinks.items()
        ),
        ignored=plan.ignored,
    )


def _audit_source(plan: JobPlan, source: SourcePlan, cursors: pa.Table | None, finished: bool) -> SourceAudit:
    """A finished job must have read every split to its end; the counters must agree with the cursors at any time."""
    if source.id in plan.fed:  # the cursors are all that is known of what was fed, and went
        return SourceAudit(source.id, (), _sum(cursors), 0, 0)
    epochs = plan.epochs.count if plan.epochs is not None and source.repeats else 1
    planned = [again(split, epoch) for epoch in range(epochs) for split in source.splits]
    read: list[int | None] = [0] * len(planned)
    gaps = repeats = needless = 0
    lanes_left: set[int] = set()
    found = [cursor_of(row) for row in ([] if cursors is None else cursors.to_pylist())]
    deal = Deal(plan.lanes, next((cursor.dealt for cursor in found), 0))
    for cursor in found:
        lane = list(_splits_up_to(cursor, deal, len(source.splits), source.repeats))
        for at in lane[:-1]:
            read[at] = planned[at].rows
        if cursor.needless:
            lanes_left.add(cursor.lane)
        if lane and lane[-1] < len(read):
            read[lane[-1]] = cursor.row
        covered = [read[at] for at in lane if at < len(read)]
        if None not in covered:
            difference = sum(rows or 0 for rows in covered) - cursor.rows
            gaps, repeats = gaps + max(0, difference), repeats + max(0, -difference)
    splits = tuple(SplitAudit(split.id, split.rows, rows) for split, rows in zip(planned, read, strict=True))
    if finished:
        for at, split in enumerate(splits):
            missing = 0 if split.planned is None else max(0, split.planned - (split.read or 0))
            if deal.lane_of(at % len(source.splits)) in lanes_left:
                needless += missing
            else:
                gaps += missing
    return SourceAudit(source.id, splits, _sum(cursors), gaps, repeats, needless)


def _splits_up_to(cursor: LaneCursor, deal: Deal, count: int, repeats: bool) -> Iterator[int]:
    """The positions of a lane's splits up to the one that it stands in, those of all epochs one behind the other."""
    mine = deal.count(cursor.lane, count)
    for ordinal in range(cursor.ordinal + 1 if mine or not repeats else 0):
        epoch, inside = divmod(ordinal, mine) if repeats else (0, ordinal)
        yield epoch * count + deal.position(cursor.lane, inside)


def _sum(table: pa.Table | None) -> int:
    return 0 if table is None else sum(table.column("rows").to_pylist())


def _table(numbers: list[int | None]) -> list[str]:
    """Numbers in lines, each with the position of its first."""
    return [
        f"    {at:>5}: "
        + " ".join(f"{'?' if number is None else number:>6}" for number in numbers[at : at + SPLITS_PER_LINE])
        for at in range(0, len(numbers), SPLITS_PER_LINE)
    ]
