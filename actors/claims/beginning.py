"""What a job begins with: its identity, what it goes on from, and outputs that it may write to. No Ray.

Both runners ask this before anything is started, so that whatever can be refused is refused at once. Nothing is
written; what another run does meanwhile is found by the coordinator's claim and when it takes the outputs over.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from ...coordinator.log.recovery import identity_in
from ...coordinator.model.manifest import Claim as ClaimEntry
from ...coordinator.model.manifest import LogEntry
from ...coordinator.restore.stored_state import Snapshot
from ...engine.core.identity import JobIdentity
from ...engine.flow.flow import Flow
from ...engine.flow.handoff import has_deferred, not_handed_over
from ...engine.plan.plan import JobPlan
from ...engine.planner.overtaking import check_alignment
from ..storage.log import read_log_in
from .origin import Claim, find_start, manifest_of
from .ownership import examine_outputs
from .resuming import Place, Resume, check_resume
from .rewinding import rewind_to_model

G = TypeVar("G", bound=Flow)


@dataclass(frozen=True, slots=True)
class Beginning:
    """``plan``: with the job's identity. ``start``: the snapshot that it starts from. ``resumes``: it has a past."""

    plan: JobPlan
    start: Snapshot | None
    resumes: bool


def check_first(
    flow: G,
    planned: Callable[[G], JobPlan],
    place: Place | None,
    *,
    resume: Resume = "auto",
    from_snapshot: str | os.PathLike[str] | None = None,
    take_over: bool = False,
) -> JobPlan | None:
    """Refuse what can be refused before the rows of deferred sources are handed over, which may take hours. Nothing is
    written. The plan, without these rows; None if there are none. Raises PenstockError."""
    if not has_deferred(flow):
        return None
    plan = planned(not_handed_over(flow))
    if place is None:
        return begin_nowhere(plan, take_over)
    check_alignment(flow.order == "deterministic", place.alignment_timeout)
    entries: list[LogEntry] = read_log_in(place.folder, plan.name)
    found = identity_in(entries)
    ancestors = () if found is None else found.ancestors
    resumes = check_resume(place.folder, plan.name, resume)
    if from_snapshot is not None and not resumes:
        manifest = manifest_of(from_snapshot)
        ancestors, resumes = (*manifest.ancestors, manifest.uuid), True
    plan = replace(plan, uuid=found.uuid if found is not None else uuid.uuid4().hex)
    plan.check(resumes, place.folder)
    claims = [entry.owner for entry in entries if isinstance(entry, ClaimEntry)]
    examine_outputs(plan, JobIdentity(plan.uuid, ancestors=ancestors), claims, place.folder, take_over)
    return plan


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
    entries: list[LogEntry] = read_log_in(folder, plan.name)
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
