"""Whose a checkpoint folder is, in words: for the errors of those who may not have it.

That a run is going on is said where it is known, and nowhere else. Of any other claim is said who made it, and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..model.events import Failure
from ..model.manifest import Claim, Claimant, Ended, LogEntry

END_IT = "end it first, or give this run a folder of its own"


def newest_claim(entries: Sequence[LogEntry]) -> Claim | None:
    """The claim of whoever has taken the job over last."""
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
    is_over = claim is None or any(isinstance(entry, Ended) for entry in entries)
    return None if is_over or claim is None or not running or claim.owner != running else claim.by


def say_whose(refusal: Failure, entries: Sequence[LogEntry], running: str, folder: str) -> Failure:
    """The refusal of whoever wants ``folder`` (in words), with who has it."""
    by = running_claimant(entries, running)
    if by is None:
        return replace(refusal, message=f"{refusal.message}{last_claim(entries)}")
    detail = "\n".join(part for part in (refusal.message, refusal.detail) if part)
    return replace(refusal, message=f"{folder} is in use: {find_run(by)}", remedy=END_IT, detail=detail)
