"""What a coordinator that comes with nothing but the log does first, and whose a checkpoint folder is, in words.

A pure choice: entries in, decision out. The newest manifest in the log is where the job goes on, of any writer; the
generation is one more than any that the log names, and than that of the snapshot that the job starts from, so that what
it adds to the same outputs, where names are of checkpoints, sorts behind what was there; the claim takes the number
after the last. That a run is going on is said where it is known, and nowhere else. Of any other claim is said who made
it, and when.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ...engine.core.identity import JobIdentity, Reweight
from ..model.events import Failure
from ..model.manifest import (
    Claim,
    Claimant,
    Ended,
    LogEntry,
    Manifest,
    Pinned,
    Unpinned,
    closing_entry,
    reweights_in,
    split_dropped,
)

END_IT = "end it first, or give this run a folder of its own"


def newest_claim(entries: Sequence[LogEntry]) -> Claim | None:
    """The claim of the last that took the job over."""
    return max((entry for entry in entries if isinstance(entry, Claim)), key=lambda each: each.number, default=None)


def find_run(by: Claimant) -> str:
    """Which run it is, and where a user finds it."""
    return f"a run that began at {by.began} in process {by.process} on host {by.host}"


def last_claim(entries: Sequence[LogEntry]) -> str:
    """What follows a sentence about the log: who has claimed it last; empty if nobody has said so."""
    claim = newest_claim(entries)
    return "" if claim is None or claim.by is None else f"; it was claimed last by {find_run(claim.by)}"


def running_claimant(entries: Sequence[LogEntry], running: str) -> Claimant | None:
    """Whose run is going on, if it is that of the newest claim. ``running``: the owner of a claim of which that is
    known; empty: of none."""
    claim = newest_claim(entries)
    is_over = claim is None or closing_entry(entries) is not None
    return None if is_over or claim is None or not running or claim.owner != running else claim.by


def say_whose(refusal: Failure, entries: Sequence[LogEntry], running: str, folder: str) -> Failure:
    """The refusal of a claim on ``folder`` (in words), with who has it."""
    by = running_claimant(entries, running)
    if by is None:
        return replace(refusal, message=f"{refusal.message}{last_claim(entries)}")
    detail = "\n".join(part for part in (refusal.message, refusal.detail) if part)
    return replace(refusal, message=f"{folder} is in use: {find_run(by)}", remedy=END_IT, detail=detail)


OVER = frozenset({"finished", "stopped"})
"""What the closing entry of a job whose work is done says."""


@dataclass(frozen=True)
class TakeOver:
    """Claim entry ``number`` for ``generation``, then go on from the newest of ``manifests`` (none: begin anew)."""

    generation: int
    number: int
    next_checkpoint: int
    """Number of the next checkpoint: ids go on counting over generations, for people's sake."""
    manifests: tuple[Manifest, ...]
    pins: tuple[Pinned | Unpinned, ...] = ()
    claims: tuple[str, ...] = ()
    """The owners of all claims so far."""
    dropped: tuple[Manifest, ...] = ()
    """Manifests that an ending of the job has dropped and not deleted."""
    reweights: tuple[Reweight, ...] = ()
    """All that was changed of mixtures."""

    @property
    def latest(self) -> Manifest | None:
        return self.manifests[-1] if self.manifests else None


@dataclass(frozen=True)
class Over:
    """The job has finished or was stopped: a coordinator that died had closed the log and not yet said so."""

    generation: int
    ended: Ended
    manifests: tuple[Manifest, ...]
    pins: tuple[Pinned | Unpinned, ...] = ()


@dataclass(frozen=True)
class Refused:
    """This log is not ours to go on with."""

    failure: Failure


RecoveryDecision = TakeOver | Over | Refused

_HANDED_OVER = re.compile(r"staged:\w+")
_LEASED = re.compile(r"leased:\w+")
"""What a description says of rows that an outer system has handed over for one run, or hands over while it goes."""


def decide_recovery(
    entries: Sequence[LogEntry],
    fingerprint: str,
    job: str,
    description: str = "",
    uuid: str = "",
    running: str = "",
    behind: int = 0,
) -> RecoveryDecision:
    """Read the log: take it over, or say that nothing is left to do, or why not. ``uuid``: what the job's parts were
    told that its identity is; empty: nothing was. ``running``: the owner of a claim whose run is known to go on.
    ``behind``: the generation of the snapshot that the job starts from."""
    entries = sorted(entries, key=lambda entry: entry.number)
    refusal = _refusal(entries, fingerprint, job, description) or _other_identity(entries, job, uuid)
    if refusal is not None:
        return Refused(say_whose(refusal, entries, running, f"the checkpoint folder of job {job!r}"))
    standing, dropped = split_dropped(entries)
    manifests = tuple(entry for entry in standing if isinstance(entry, Manifest))
    newest = max((generation_of(entry) for entry in entries), default=0)
    ended = closing_entry(entries)
    pins = tuple(entry for entry in entries if isinstance(entry, Pinned | Unpinned))
    if ended is not None:
        return Over(newest, ended, manifests, pins)
    return TakeOver(
        generation=max(newest, behind) + 1,
        number=entries[-1].number + 1 if entries else 0,
        next_checkpoint=max((one.checkpoint.number for one in (*manifests, *dropped)), default=0) + 1,
        manifests=manifests,
        claims=tuple(entry.owner for entry in entries if isinstance(entry, Claim)),
        pins=pins,
        dropped=dropped,
        reweights=reweights_in(entries),
    )


def check_inputs(inputs: Sequence[str], latest: Manifest) -> Failure | None:
    """Refuse a checkpoint whose cursors refer to other files than those that this job reads: somebody else has recorded
    them since its plan was made. ``inputs``: see ``Context``."""
    if not inputs or not latest.inputs or latest.inputs in inputs:
        return None
    return Failure(
        message=f"checkpoint {latest.checkpoint} was taken over other files than those that this run has planned with",
        retry=False,
        remedy="another run has recorded them meanwhile: start the job again, and it plans with those",
        kind="ConfigurationError",
    )


def generation_of(entry: LogEntry) -> int:
    """The generation of the entry's writer."""
    return entry.checkpoint.generation if isinstance(entry, Manifest) else entry.generation


def identity_in(entries: Sequence[LogEntry]) -> JobIdentity | None:
    """The identity of the job whose log this is, as of its newest claim; None: nobody has claimed it."""
    claims = [entry for entry in entries if isinstance(entry, Claim)]
    if not claims:
        return None
    newest = max(claims, key=lambda claim: claim.number)
    return JobIdentity(newest.uuid, newest.generation, newest.owner, newest.ancestors)


def _other_identity(entries: Sequence[LogEntry], job: str, uuid: str) -> Failure | None:
    found = identity_in(entries)
    if found is None or not uuid or found.uuid == uuid:
        return None
    return Failure(
        message=f"another run of job {job!r} has claimed the checkpoint folder while this one was starting",
        retry=False,
        remedy="wait for it to end, or give each run a checkpoint folder of its own",
        kind="ConfigurationError",
    )


def _refusal(entries: Sequence[LogEntry], fingerprint: str, job: str, description: str) -> Failure | None:
    for entry in entries:
        if isinstance(entry, Claim) and entry.job != job:
            return Failure(
                message=f"the checkpoint folder belongs to job {entry.job!r}, not to {job!r}",
                retry=False,
                remedy="choose another checkpoint folder, or use the job's own name",
                kind="ConfigurationError",
            )
    claims = [entry for entry in entries if isinstance(entry, Claim)]
    manifests = [entry for entry in entries if isinstance(entry, Manifest)]
    ended = closing_entry(entries)
    # before its first checkpoint a job begins with the flow and the data that are there
    signed: list[Claim | Manifest] = [*claims[-1:], *manifests] if ended is not None else [*manifests]
    strangers = [entry for entry in signed if entry.fingerprint != fingerprint]
    if ended is not None and (strangers or not signed or ended.status not in OVER):
        return Failure(
            message=f"job {job!r} is over: its log says {ended.status!r}",
            retry=False,
            remedy='to run it again, pass resume="restart", or choose another checkpoint folder',
            kind="ConfigurationError",
        )
    if not strangers:
        return None
    theirs = claims[-1].description if claims else ""
    if theirs and _without_data(theirs) == _without_data(description):
        return Failure(
            message=f"another run of job {job!r} has begun in the checkpoint folder with other rows of the same flow: "
            "its frames were handed over while this run was handing over its own",
            retry=False,
            remedy="if that run is still there, the script was started twice: wait for it to end; else start this one "
            "again, and it goes on with the rows of that run; or choose another checkpoint folder",
            detail=f"the folder's flow:\n{theirs}\nthis flow:\n{description}",
            kind="ConfigurationError",
        )
    if theirs and _LEASED.sub("", theirs) == _LEASED.sub("", description):
        return Failure(
            message=f"job {job!r} in the checkpoint folder read another evaluation of a leased frame",
            retry=False,
            remedy="nothing goes on from a lease: remove the checkpoint folder and the outputs, or choose others, and "
            'begin anew; a job goes on from a frame that is staged (handoff="stage")',
            kind="ConfigurationError",
        )
    return Failure(
        message=f"the checkpoint folder of job {job!r} belongs to another flow",
        retry=False,
        remedy="choose another checkpoint folder or another job name, or run the flow that wrote it",
        detail=f"the folder's flow:\n{theirs}\nthis flow:\n{description}" if theirs else "",
        kind="ConfigurationError",
    )


def _without_data(description: str) -> str:
    """A flow's description but for which rows were handed over to it."""
    return _HANDED_OVER.sub("staged", description)
