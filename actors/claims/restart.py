"""Begins a job anew that is over, in its own checkpoint folder (``resume="restart"``). No Ray.

Rules:

1. Only a job that has finished or was stopped: its log is closed, so nobody goes on with it. Any other may.
2. One entry of the log does it (``Restarted``): of several runs that restart a job one creates it. It is there before
   anything is deleted, and nothing is refused behind it that can be refused before.
3. What goes are the entries before it and the former job's states, the rest of them when the job is restarted once
   more, if a run dies over it before its claim. Savepoints stay; what was committed is the sinks'.
4. Of a job that was fed, or whose rows ranks have read, more lies in the folder that others go by: split sets, models,
   digests. That is refused.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...coordinator.log.recovery import generation_of
from ...coordinator.model.manifest import LogEntry, Restarted, closing_entry, split_dropped
from ...engine.core.errors import ConfigurationError
from ...engine.core.identity import JobIdentity
from ...engine.files.paths import absolute, safe_name
from ...engine.flow.flow import Flow
from ...engine.flow.handoff import has_deferred, not_handed_over
from ...engine.plan.plan import JobPlan
from ..storage.log import create_entry, is_before, naming_log, read_entries
from ..storage.stores import open_store
from .inputs import settle
from .ownership import check_stores, examine_outputs
from .place import Place, Resume
from .start import Claim, examine_snapshot, manifest_of, refuse_words_about

_OTHERS = {"splits": "was fed split sets", "feeds": "was read by ranks", "models": "was read by ranks"}
"""What lies below the job's folder of which somebody else may depend, and why."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the new run is told to begin with, as in ``penstock.run``."""

    from_snapshot: str | os.PathLike[str] | None = None
    claim: Claim = "no_claim"
    allow_changes: bool = False
    resume_model: str | None = None
    take_over: bool = False


def start_over(
    flow: Flow,
    place: Place | None,
    job: str,
    resume: Resume,
    planned: Callable[[Flow], JobPlan],
    given: Given = Given(),
) -> None:
    """Begin the log in ``place`` anew if that was asked for and there is one. Raises PenstockError. The job will begin
    with what is ``planned`` and ``given``."""
    if resume != "restart" or place is None or not place.stays:
        return
    store = open_store(place.folder)
    with naming_log("read", place.folder, job):
        keys = store.list(f"{safe_name(job)}/")  # before the entries: none of what is listed is of a run behind them
        entries = read_entries(store, job)
    if not entries:
        return
    begun = entries[-1]
    if not isinstance(begun, Restarted):
        _check(entries, keys, place.folder, job, given)
        _check_beginning(flow, planned, place.folder, given)
        begun = Restarted(
            number=entries[-1].number + 1, generation=max(map(generation_of, entries)), by=uuid.uuid4().hex
        )
    with naming_log("write into", place.folder, job):
        if create_entry(store, job, begun) == "refused":
            raise ConfigurationError(
                f"job {job!r} in {place.folder} is being run again by somebody else",
                "let one run at a time begin it anew, or give each a checkpoint folder of its own",
            )
        former = [key for key in keys if key.startswith(f"{safe_name(job)}/state/")]
        for key in (*former, *sorted(key for key in keys if is_before(key, job, begun.number))):
            store.delete(key)


def _check(entries: list[LogEntry], keys: list[str], folder: str, job: str, given: Given) -> None:
    if closing_entry(split_dropped(entries)[0]) is None:
        raise ConfigurationError(
            f"job {job!r} in {folder} is not over: its log is open, and a run may go on from it",
            'pass resume="auto" to go on; to begin anew choose another checkpoint folder, or remove this one if no '
            "run does",
        )
    for kind, why in _OTHERS.items():
        if any(key.startswith(f"{safe_name(job)}/{kind}/") for key in keys):
            raise ConfigurationError(
                f"job {job!r} in {folder} {why}: what they depend on lies there, in {kind}/",
                "choose another checkpoint folder to run it again, or remove this one",
            )
    snapshot = given.from_snapshot
    if snapshot is not None and absolute(snapshot).rstrip("/") == f"{folder.rstrip('/')}/{safe_name(job)}":
        raise ConfigurationError(
            f"job {job!r} is to begin anew, and to start from its own last checkpoint in {folder}, which goes then",
            "start from a savepoint, or give the new run another checkpoint folder",
        )
    if given.resume_model is not None:
        raise ConfigurationError(
            f'resume="restart" begins job {job!r} anew, and resume_model={given.resume_model!r} goes back into it',
            'leave one out: to go on from the model pass resume="auto"',
        )
    refuse_words_about(snapshot, given.claim, given.allow_changes)


def _check_beginning(flow: Flow, planned: Callable[[Flow], JobPlan], folder: str, given: Given) -> None:
    """Refuse inputs, outputs and a plan that the new run would be refused for, while the former job is still there."""
    plan = planned(not_handed_over(flow)) if has_deferred(flow) else settle(flow, None, keeps=False).planned(planned)
    ancestors: tuple[str, ...] = ()
    if (snapshot := given.from_snapshot) is not None:
        if has_deferred(flow):
            manifest = manifest_of(snapshot)
        else:
            _, manifest = examine_snapshot(snapshot, plan, given.claim, given.allow_changes)
        ancestors = (*manifest.ancestors, manifest.uuid)
    plan = replace(plan, uuid=uuid.uuid4().hex)
    plan.check(bool(ancestors), folder)
    examine_outputs(plan, JobIdentity(plan.uuid, ancestors=ancestors), (), folder, given.take_over)
    check_stores(plan, folder)
