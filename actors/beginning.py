"""What a job begins with: its identity, what it goes on from, and outputs that it may write to. No Ray.

Both runners ask this before anything is started, so that whatever can be refused is refused at once. Nothing is
written; what another run does meanwhile is found by the coordinator's claim and when it takes the outputs over.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, replace

from ..coordinator.manifest import Claim as ClaimEntry
from ..coordinator.manifest import LogEntry
from ..coordinator.recovery import identity_in
from ..coordinator.restoring import Snapshot
from ..engine.identity import JobIdentity
from ..engine.plan import JobPlan
from .feed.rewinding import rewind_to_model
from .origin import Claim, find_start
from .ownership import examine_outputs
from .resuming import Resume, check_resume
from .storage.log import read_log
from .storage.opening import open_store


@dataclass(frozen=True, slots=True)
class Beginning:
    """``plan``: with the job's identity. ``start``: the snapshot that it starts from. ``resumes``: it has a past."""

    plan: JobPlan
    start: Snapshot | None
    resumes: bool


def begin_nowhere(plan: JobPlan, take_over: bool = False) -> JobPlan:
    """The plan, with an identity, of a job that keeps nothing beyond its end. Raises PenstockError."""
    plan = replace(plan, uuid=uuid.uuid4().hex)
    plan.check()
    examine_outputs(plan, JobIdentity(plan.uuid), (), "", take_over)
    return plan


def begin_in(
    folder: str,
    plan: JobPlan,
    *,
    resume: Resume = "auto",
    from_snapshot: str | os.PathLike[str] | None = None,
    claim: Claim = "no_claim",
    allow_changes: bool = False,
    resume_model: str | None = None,
    take_over: bool = False,
) -> Beginning:
    """The beginning of a job whose checkpoints go to ``folder``. Raises PenstockError."""
    entries: list[LogEntry] = read_log(open_store(folder), plan.name)
    found = identity_in(entries)
    plan = replace(plan, uuid=found.uuid if found is not None else uuid.uuid4().hex)
    if resume_model is not None:
        rewind_to_model(plan, folder, resume_model)
    goes_on = check_resume(folder, plan.name, resume)
    start = find_start(plan, folder, from_snapshot, claim=claim, allow_changes=allow_changes)
    resumes = goes_on or start is not None
    plan.check(resumes, folder)
    ancestors = () if found is None else found.ancestors
    if start is not None:
        ancestors = (*start.manifest.ancestors, start.manifest.uuid)
    claims = [entry.owner for entry in entries if isinstance(entry, ClaimEntry)]
    examine_outputs(plan, JobIdentity(plan.uuid, ancestors=ancestors), claims, folder, take_over)
    return Beginning(plan, start, resumes)
