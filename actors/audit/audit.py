"""The audit of a job: every input row read once, every output row visible once, as far as that can be known.

Rules:

1. It compares independent counts: the lengths that the splits had when the job was planned, the counters in the last
   checkpoint (cursors of the sources, rows per lane of the sinks: part of the cut, so exactly once by construction),
   and what a reader of the outputs finds. A row too few is a gap, a row too many a repeat. Between sources and sinks
   every checkpoint was checked by the ledger (``coordinator/checkpoint/row_accounts.py``) before it was stored.
2. Of each source and sink it says what it knows: *counted*, *unknown* (and why), or *wrong*. A sink of which it is not
   known what a reader sees is unknown, and so is everything of a job that is not over.
3. With ``audit="content"`` sources digest the rows that they hand on, and sinks those that they take
   (``engine/integrity/row_digests.py``). At the end the splits are read again (``reading_again``): a source whose
   digests agree is *proven*, from its splits to the first operator. What is visible is read back: a sink whose digests
   agree is *proven*, from its input to its readers; and from its sources on, if no operator between them changes rows
   and both digests agree (``origins``). Else the way between them is the ledger's.
4. What does not balance at the end of a job is an error (:func:`check_balance`), not a line in a text.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import pyarrow as pa

from ...coordinator.model.manifest import LogEntry, Manifest
from ...coordinator.model.split_sets import SplitName
from ...coordinator.model.statistics import JobStatus
from ...engine.core.errors import AuditError, ConfigurationError
from ...engine.core.operator import SinkConfig
from ...engine.core.source import Split
from ...engine.integrity.lane_digests import digested
from ...engine.integrity.row_digests import ContentSink
from ...engine.operators.rowwise.bad_rows import BadRows
from ...engine.plan.plan import JobPlan, SourcePlan
from ...engine.plan.rounds import LaneCursor, SplitAssignment, cursor_of
from ...engine.sources.repeated import again
from ..storage.log import read_log_in
from ..storage.snapshots import SnapshotFiles
from ..storage.stores import is_gone
from .origins import Origin, compare, origins, pipelines_of, wanted
from .reading_again import Reading, read_again

SPLITS_PER_LINE = 16

_log = logging.getLogger(__name__)

Grade = Literal["proven", "counted", "unknown", "wrong"]
"""*proven*: the content that is visible was read back, and is what the sink took; the splits were read again, and hold
what the source handed on. *counted*: all counts agree. *unknown*: some could not be compared. *wrong*: something does
not agree."""

OVER = ("finished", "stopped")
"""States of a job in which its outputs hold what its last checkpoint counts."""


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
    because a limit had been reached, say. ``unknown``: what could not be compared, in words. ``same``: whether the rows
    that it handed on are those of its splits, read again; None: only their number was compared, and ``unproven`` says
    why if more was wanted. ``other``: the splits among which they differ."""

    id: str
    splits: tuple[SplitAudit, ...]
    rows: int
    gaps: int
    repeats: int
    needless: int = 0
    unknown: tuple[str, ...] = ()
    same: bool | None = None
    unproven: str = ""
    other: tuple[str, ...] = ()

    @property
    def grade(self) -> Grade:
        """What is known of its rows."""
        if self.gaps or self.repeats or self.same is False:
            return "wrong"
        return "unknown" if self.unknown else "proven" if self.same else "counted"


@dataclass(frozen=True, slots=True)
class SinkAudit:
    """One sink: the rows that it took, and those that a reader sees (None: not known). ``unknown``: what
    could not be compared, in words. ``same``: whether the visible rows are those that it took; None: only their number
    was compared, and ``unproven`` says why if more was wanted. ``from_sources``: whether it took what its sources
    handed on; None: that was not compared, and ``untraced`` says why if the visible rows were."""

    id: str
    guarantee: str
    rows: int
    visible: int | None
    unknown: tuple[str, ...] = ()
    same: bool | None = None
    unproven: str = ""
    from_sources: bool | None = None
    untraced: str = ""

    @property
    def grade(self) -> Grade:
        """What is known of its rows."""
        if self.unknown:
            return "unknown"
        if self.gaps or self.repeats or self.same is False or self.from_sources is False:
            return "wrong"
        return "proven" if self.same else "counted"

    @property
    def gaps(self) -> int:
        return 0 if self.visible is None else max(0, self.rows - self.visible)

    @property
    def repeats(self) -> int:
        return 0 if self.visible is None else max(0, self.visible - self.rows)


@dataclass(frozen=True, slots=True)
class BadRowsAudit:
    """How many rows ``of`` a source could not be read, or of an operator could not be computed, as of the last
    checkpoint. ``left_out``: else they have gone on, with the reason (``on_error``)."""

    of: str
    rows: int
    left_out: bool


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
    bad: tuple[BadRowsAudit, ...] = ()
    """Where bad rows are left out or kept (``on_error``): how many there were."""

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
        """Whether nothing was found to be wrong. ``grades`` says where that was looked for."""
        return self.gaps == 0 and self.repeats == 0 and not self.altered and not self.strayed

    @property
    def altered(self) -> tuple[str, ...]:
        """The sinks of which other rows are visible than they took, though as many."""
        return tuple(sink.id for sink in self.sinks if sink.same is False)

    @property
    def strayed(self) -> tuple[str, ...]:
        """The sources that handed on other rows than their splits hold, and the sinks that took other ones than their
        sources handed on."""
        sources = tuple(source.id for source in self.sources if source.same is False)
        return sources + tuple(sink.id for sink in self.sinks if sink.from_sources is False)

    @property
    def grades(self) -> dict[str, Grade]:
        """What is known, by source and sink."""
        audited: tuple[SourceAudit | SinkAudit, ...] = (*self.sources, *self.sinks)
        return {each.id: each.grade for each in audited}

    def to_json(self) -> str:
        """The whole audit as JSON."""
        totals = {"gaps": self.gaps, "repeats": self.repeats, "grades": self.grades}
        return json.dumps({**asdict(self), **totals}, indent=2)

    def __str__(self) -> str:
        lines = [f"audit of job {self.job} ({self.status})"]
        for source in self.sources:
            left = f", {source.needless:,} more not needed" if source.needless else ""
            count = f"{source.rows:,} rows in {len(source.splits)} splits{left}"
            lines.append(f"  read     {source.id}: {count}, {_told(source)}; rows per split:")
            lines += _table([split.read for split in source.splits])
        if self.ignored:
            lines.append(
                f"  not read {len(self.ignored):,} files that came since: {', '.join(self.ignored[:SPLITS_PER_LINE])}"
            )
        for each in self.bad:
            lines.append(f"  bad      {each.of}: {each.rows:,} rows {'left out' if each.left_out else 'kept'}")
        for sink in self.sinks:
            seen = "" if sink.visible is None else f", {sink.visible:,} visible"
            lines.append(f"  written  {sink.id}: {sink.rows:,} rows{seen} ({sink.guarantee}), {_told(sink)}")
        lines.append(
            f"  checkpoints {self.checkpoints}, restarts {self.restarts}, gaps {self.gaps}, repeats {self.repeats}"
        )
        return "\n".join(lines)


class NothingLeftError(ConfigurationError):
    """A job's checkpoints are gone, so there is nothing to audit it by."""


def check_what_is_left(job: str, audit: Callable[[], Audit]) -> None:
    """Raise AuditError if what a job has left does not balance. Where nothing is left to audit it by, the log says so:
    a detached job that keeps no checkpoint has ended by itself. It also says how many rows were left out as bad ones:
    whoever waits in a script that prints nothing has no other sign that a function fails for all of them."""
    try:
        found = audit()
        for each in found.bad:
            if each.left_out:
                _log.warning("job %s: %s has left out %s rows as bad ones (on_error)", job, each.of, f"{each.rows:,}")
        check_balance(found)
    except NothingLeftError as gone:
        _log.warning("job %s is not audited: %s; %s", job, gone.message, gone.remedy)


class LastAudit:
    """The audit that is made when a job ends, as long as its checkpoints are there; or the error that prevented it, for
    who asks when they are gone."""

    def __init__(self) -> None:
        self._made: Audit | None = None
        self._error: Exception | None = None

    def make(self, look: Callable[[], Audit], *, is_closed: bool) -> Audit:
        """Make it now, and keep it for when the job ``is_closed``; ``look`` is :func:`audit_job`. Raises what that
        raises, or has raised before."""
        if is_closed and self._made is not None:
            return self._made
        try:
            self._made = look()
        except NothingLeftError as gone:
            raise self._error or gone from None
        except Exception as error:
            self._error = error
            raise
        return self._made


def log_left(folder: str, job: str) -> list[LogEntry]:
    """The entries that count of the job's log in a checkpoint folder, which may be gone: then none. Raises
    ConfigurationError or StorageError."""
    return [] if is_gone(folder) else read_log_in(folder, job)


def audit_job(plan: JobPlan, folder: str, status: JobStatus, entries: Sequence[LogEntry]) -> Audit:
    """Audit a job as of the last checkpoint in ``folder``, among the ``entries`` of its log. Raises NothingLeftError if
    none was kept."""
    if status.checkpoints_completed and not entries:
        raise NothingLeftError(
            f"the checkpoints of job {plan.name!r} are no longer in {folder}: they were removed, not by the job",
            "put the folder back from a copy, or audit a job before its checkpoints are removed",
        )
    last = last_manifest(entries)
    looked_at = {*plan.sources, *plan.sinks, *(id for id, _ in _counting_bad(plan))}
    state = {} if last is None else state_of(last, last.root or folder, plan.name, looked_at)
    if status.is_over and status.checkpoints_completed and not state:
        raise NothingLeftError(
            f"the checkpoints of job {plan.name!r} were deleted at its end, so there is nothing to audit it by",
            'run it with Checkpoints(…, retention="always")',
        )
    return make_audit(plan, state, status, descends=last is not None and bool(last.ancestors or last.root))


def last_manifest(entries: Sequence[LogEntry]) -> Manifest | None:
    """The last checkpoint in a log; None before the first one."""
    return next((entry for entry in reversed(entries) if isinstance(entry, Manifest)), None)


def last_state(plan: JobPlan, folder: str) -> dict[str, pa.Table]:
    """The tables of the last checkpoint, by operator, all tasks together; empty before the first one."""
    manifest = last_manifest(read_log_in(folder, plan.name))
    return {} if manifest is None else state_of(manifest, manifest.root or folder, plan.name)


def state_of(manifest: Manifest, folder: str, job: str, operators: Container[str] | None = None) -> dict[str, pa.Table]:
    """The tables of a checkpoint whose files lie below ``folder``, by operator (all, or these), all tasks together."""
    handles = [
        handle
        for task in manifest.tasks
        for handle in task.state
        if not handle.is_flight and (operators is None or handle.operator in operators)
    ]
    return SnapshotFiles(folder, job).read(handles)


def check_balance(audit: Audit) -> None:
    """Raises AuditError, which holds the audit, if something is wrong."""
    wrong = [name for name, grade in audit.grades.items() if grade == "wrong"]
    if wrong:
        other = (
            f"; as many rows, but not those that were written, at {', '.join(audit.altered)}" if audit.altered else ""
        )
        if audit.strayed:
            other += f"; rows were lost, repeated or altered on their way, at {', '.join(audit.strayed)}"
        error = AuditError(
            f"job {audit.job!r} is {audit.status}, but its audit does not balance: {audit.gaps:,} rows are missing and "
            f"{audit.repeats:,} are there too often, at {', '.join(wrong)}{other}",
            "use no output of this job; a source of your own must give the same rows whenever it is read; if they all "
            "do, this is a bug of Penstock: report it"
            if audit.strayed
            else "find out whether something else wrote into the outputs or took files away; the checkpoints still say "
            "what belongs there",
            detail=str(audit),
        )
        error.audit = audit
        raise error


def make_audit(plan: JobPlan, state: Mapping[str, pa.Table], status: JobStatus, *, descends: bool = False) -> Audit:
    """Audit a job by its plan and ``state``, the last checkpoint's tables by operator. ``descends``: it goes on from a
    snapshot. Of a job that is over it reads all inputs and outputs again, if their content is to be audited."""
    compared = plan.audit == "content" and status.state in OVER
    found = origins(plan) if compared else {}
    readings = {
        id: _read_again(plan, source, state.get(id), status, found) if compared else Reading()
        for id, source in plan.sources.items()
    }
    sinks = (_audit_sink(plan, id, config, state.get(id), status) for id, (_, config) in plan.sinks.items())
    return Audit(
        job=plan.name,
        status=status.state,
        checkpoints=status.checkpoints_completed,
        restarts=status.restarts,
        sources=tuple(
            _audit_source(plan, source, state.get(id), status, readings[id]) for id, source in plan.sources.items()
        ),
        sinks=tuple(_with_origin(sink, state.get(sink.id), found, readings, status, descends) for sink in sinks),
        ignored=plan.ignored,
        bad=tuple(BadRowsAudit(each.of, each.counted(state.get(id)), each.drops) for id, each in _counting_bad(plan)),
    )


def _counting_bad(plan: JobPlan) -> Iterator[tuple[str, BadRows]]:
    for pipeline in pipelines_of(plan):
        for operator in pipeline.operators:
            if isinstance(operator.config, BadRows):
                yield operator.id, operator.config


def _read_again(
    plan: JobPlan, source: SourcePlan, state: pa.Table | None, status: JobStatus, found: Mapping[str, Origin]
) -> Reading:
    if any(_is_skipped(status, source.id, split.id) for split in _planned(plan, source)):
        return Reading(unproven="splits were skipped")
    finished = status.state == "finished"
    return read_again(plan, source, state, _cursors(state), whole=finished, also=wanted(found, source.id))


def _with_origin(
    sink: SinkAudit,
    counts: pa.Table | None,
    found: Mapping[str, Origin],
    readings: Mapping[str, Reading],
    status: JobStatus,
    descends: bool,
) -> SinkAudit:
    """Whether a sink whose readers see what it took has taken what its sources handed on."""
    if not sink.same:
        return sink
    same, why = compare(found[sink.id], digested(counts)[1], readings, status.state, descends)
    return replace(sink, from_sources=same, untraced=why)


def _audit_sink(plan: JobPlan, id: str, config: SinkConfig, counts: pa.Table | None, status: JobStatus) -> SinkAudit:
    visible = config.visible_rows(plan.key)
    unknown: list[str] = []
    if visible is None:
        unknown.append("it is not known which rows a reader has or sees")
    if status.state not in OVER:
        unknown.append(f"the job is {status.state}: outputs follow its checkpoints")
    rows = _sum(counts)
    if unknown or visible != rows or plan.audit != "content" or not isinstance(config, ContentSink):
        return SinkAudit(id, config.guarantee, rows, visible, tuple(unknown))
    seen, (known, taken) = config.visible_digest(plan.key), digested(counts)
    if isinstance(seen, int) and known < rows:
        seen = f"{rows - known:,} of {rows:,} rows were taken without a look at their content, before a restore"
    if isinstance(seen, str):
        return SinkAudit(id, config.guarantee, rows, visible, unproven=seen)
    return SinkAudit(id, config.guarantee, rows, visible, same=seen == taken)


def _audit_source(
    plan: JobPlan, source: SourcePlan, cursors: pa.Table | None, status: JobStatus, reading: Reading
) -> SourceAudit:
    """A finished job must have read every split to its end; the counters must agree with the cursors at any time."""
    finished = status.state == "finished"
    if source.id in plan.fed:  # the cursors are all that is known of what was fed, and went
        return SourceAudit(source.id, (), _sum(cursors), 0, 0, unknown=("its splits were fed while the job ran",))
    planned = _planned(plan, source)
    lengths = [None if _is_skipped(status, source.id, split.id) else split.rows for split in planned]
    read: list[int | None] = [0] * len(planned)
    gaps = repeats = needless = 0
    lanes_left: set[int] = set()
    found = _cursors(cursors)
    assignment = SplitAssignment(plan.lanes, next((cursor.dealt for cursor in found), 0))
    for cursor in found:
        lane = list(_splits_up_to(cursor, assignment, len(source.splits), source.repeats))
        for at in lane[:-1]:
            read[at] = lengths[at]
        if cursor.needless:
            lanes_left.add(cursor.lane)
        if lane and lane[-1] < len(read):
            read[lane[-1]] = None if _is_skipped(status, source.id, planned[lane[-1]].id) else cursor.row
        covered = [read[at] for at in lane if at < len(read)]
        if None not in covered:
            difference = sum(rows or 0 for rows in covered) - cursor.rows
            gaps, repeats = gaps + max(0, difference), repeats + max(0, -difference)
    splits = tuple(SplitAudit(*each) for each in zip((split.id for split in planned), lengths, read, strict=True))
    if finished:
        for at, split in enumerate(splits):
            missing = 0 if split.planned is None else max(0, split.planned - (split.read or 0))
            if assignment.lane_of(at % len(source.splits)) in lanes_left:
                needless += missing
            else:
                gaps += missing
    unknown = _unknown(source, splits, status, reading)
    compared = (reading.same, reading.unproven, reading.other)
    return SourceAudit(source.id, splits, _sum(cursors), gaps, repeats, needless, unknown, *compared)


def _planned(plan: JobPlan, source: SourcePlan) -> list[Split]:
    """The splits, as they are read in all epochs, one epoch behind the other."""
    epochs = plan.epochs.count if plan.epochs is not None and source.repeats else 1
    return [again(split, epoch) for epoch in range(epochs) for split in source.splits]


def _cursors(state: pa.Table | None) -> list[LaneCursor]:
    return [cursor_of(row) for row in ([] if state is None else state.to_pylist())]


def _unknown(source: SourcePlan, splits: Sequence[SplitAudit], status: JobStatus, reading: Reading) -> tuple[str, ...]:
    """What of a source could not be compared. The length of splits that were read again is known."""
    skipped = sum(_is_skipped(status, source.id, split.id) for split in splits)
    lengths = 0 if reading.same else sum(split.planned is None for split in splits) - skipped
    found = []
    if skipped:
        found.append(f"{skipped} of {len(splits)} splits were skipped, with the rows in them that were not read")
    if lengths:
        found.append(f"{lengths} of {len(splits)} splits had no known length beforehand")
    if status.state != "finished":
        found.append(f"the job is {status.state}: not everything was to be read")
    return tuple(found)


def _is_skipped(status: JobStatus, source: str, split: str) -> bool:
    begin = f"{SplitName(source, split)} was skipped:"
    return any(each.startswith(begin) for each in status.skipped)


def _splits_up_to(cursor: LaneCursor, assignment: SplitAssignment, count: int, repeats: bool) -> Iterator[int]:
    """The positions of a lane's splits up to the one that it is in, those of all epochs one behind the other."""
    mine = assignment.count(cursor.lane, count)
    for ordinal in range(cursor.ordinal + 1 if mine or not repeats else 0):
        epoch, inside = divmod(ordinal, mine) if repeats else (0, ordinal)
        yield epoch * count + assignment.position(cursor.lane, inside)


def _told(each: SourceAudit | SinkAudit) -> str:
    """The grade, and why it is no better, or what it is of."""
    why = "; ".join(each.unknown) or each.unproven
    if isinstance(each, SourceAudit):
        if each.same is False:
            why = f"other rows than in {', '.join(each.other[:SPLITS_PER_LINE])}"
        elif each.same and not why:
            why = f"{each.rows:,} rows read again"
        return f"{each.grade} ({why})" if why else each.grade
    if each.same is False:
        why = "other rows"
    elif each.from_sources is False:
        why = "other rows than its sources handed on"
    elif each.same and not why:
        way = "its sources on" if each.from_sources else f"its input on: {each.untraced}"
        return f"{each.grade} ({each.rows:,} rows read back), from {way}"
    return f"{each.grade} ({why})" if why else each.grade


def _sum(table: pa.Table | None) -> int:
    return 0 if table is None else sum(table.column("rows").to_pylist())


def _table(numbers: list[int | None]) -> list[str]:
    """Numbers in lines, each with the position of its first."""
    return [
        f"    {at:>5}: "
        + " ".join(f"{'?' if number is None else number:>6}" for number in numbers[at : at + SPLITS_PER_LINE])
        for at in range(0, len(numbers), SPLITS_PER_LINE)
    ]
