"""What a new job starts from: a savepoint, or the newest checkpoint of another job. No Ray.

Rules:

1. A savepoint is named by its folder, another job's checkpoint by the job's folder (``state/flights``).
2. A job whose own log holds a checkpoint goes on from that: a script with ``from_snapshot=`` can simply be run again.
3. The snapshot must be of the same flow over the same data, unless the user allows changes; then operators are found by
   their names, and state of those that are gone is left behind.
4. The outputs must be those that the snapshot's job wrote: they hold its committed rows, and what it prepared for the
   snapshot becomes visible when the new job begins. Rows that were written there after the snapshot would come twice.
5. Claimed, a savepoint belongs to the job, which deletes it when it does not need it any more. Another job's checkpoint
   cannot be claimed: that job's log names its files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import pyarrow as pa

from ...coordinator.model.events import Failure
from ...coordinator.model.kinds import ClaimMode
from ...coordinator.model.manifest import LogEntry, Manifest, committables_of
from ...coordinator.restore.stored_state import Snapshot, check_snapshot
from ...engine.core.errors import ConfigurationError
from ...engine.core.operator import SinkConfig
from ...engine.files.paths import absolute
from ...engine.plan.plan import JobPlan
from ..audit.audit import state_of
from ..protocol.translate import error_of, execution_graph
from ..storage.log import read_log_in
from ..storage.stores import may_hold_log
from .ownership import compare_outputs, outputs_of
from .savepoints import holds_savepoint, read_savepoint

Claim = Literal["no_claim", "claim"]
_MODES = {"no_claim": ClaimMode.NO_CLAIM, "claim": ClaimMode.CLAIM}


def find_start(
    plan: JobPlan,
    folder: str,
    path: str | os.PathLike[str] | None,
    *,
    claim: Claim = "no_claim",
    allow_changes: bool = False,
) -> Snapshot | None:
    """The snapshot that the job in ``folder`` starts from; None if it has a checkpoint (rule 2) or is to have none."""
    if path is None:
        if claim != "no_claim" or allow_changes:
            raise ConfigurationError("claim and allow_changes say nothing without a snapshot", "pass from_snapshot=")
        return None
    if any(isinstance(entry, Manifest) for entry in read_log_in(folder, plan.name)):
        return None
    return find_snapshot(path, plan, claim=claim, allow_changes=allow_changes)


def find_snapshot(
    path: str | os.PathLike[str], plan: JobPlan, *, claim: Claim = "no_claim", allow_changes: bool = False
) -> Snapshot:
    """The snapshot at ``path`` as a start for ``plan``. Raises ConfigurationError or StorageError."""
    if claim not in _MODES:
        raise ConfigurationError(f"claim={claim!r} is unknown", 'give "no_claim" or "claim"')
    place = absolute(path)
    if holds_savepoint(place):
        manifest, root = read_savepoint(place), place
    else:
        manifest, root = newest_checkpoint(place)
        if claim == "claim":
            message = f"{place} holds checkpoints of a job, and these cannot be claimed: that job's log names them"
            raise ConfigurationError(message, 'pass claim="no_claim", or take a savepoint and claim that')
    snapshot = Snapshot(manifest, root, _MODES[claim], allow_left_behind=allow_changes)
    refused = _refusal(snapshot, plan, allow_changes) or check_snapshot(execution_graph(plan), snapshot)
    if refused is not None:
        raise error_of(refused)
    check_outputs(plan, manifest, state_of(manifest, root, plan.name, plan.sinks))
    return snapshot


def manifest_of(path: str | os.PathLike[str]) -> Manifest:
    """The snapshot's own. Raises ConfigurationError or StorageError."""
    place = absolute(path)
    return read_savepoint(place) if holds_savepoint(place) else newest_checkpoint(place)[0]


def newest_checkpoint(place: str) -> tuple[Manifest, str]:
    """The newest checkpoint in the log of the job whose folder this is, and where its files are."""
    folder, job = os.path.split(place.rstrip("/"))
    entries: list[LogEntry] = read_log_in(folder, job) if may_hold_log(place) else []
    found = next((entry for entry in reversed(entries) if isinstance(entry, Manifest)), None)
    if found is None:
        remedy = "name the folder of a savepoint (job.savepoint().path), or <checkpoint folder>/<job>"
        raise ConfigurationError(f"{place} holds neither a savepoint nor a checkpoint of a job", remedy)
    return found, found.root or folder


def _refusal(snapshot: Snapshot, plan: JobPlan, allow_changes: bool) -> Failure | None:
    manifest = snapshot.manifest
    ended = all(state.data_ended or state.finished for state in manifest.tasks)
    if ended and plan.feeds:
        return Failure(
            f"the snapshot in {snapshot.root} was taken after the sources of {', '.join(plan.feeds)} had ended: a rank "
            "that resumes nothing would get rows again that were read before",
            retry=False,
            remedy="run the flow without from_snapshot in an empty checkpoint folder, and let each rank load the "
            "state_dict() of its reader: it gets the batches behind that",
            kind="ConfigurationError",
        )
    if ended:
        return Failure(
            f"the snapshot in {snapshot.root} was taken after the end of all data: nothing is left to be done",
            retry=False,
            remedy="use what its job has written; to go on later, stop a job before its data end, without drain=True",
            kind="ConfigurationError",
        )
    if manifest.fingerprint == plan.fingerprint or allow_changes:
        return None
    return Failure(
        f"the snapshot in {snapshot.root} was taken of another flow, or of other data",
        retry=False,
        remedy="run the flow that it was taken of, or pass allow_changes=True: state is then found by operator names",
        kind="ConfigurationError",
    )


def check_outputs(plan: JobPlan, manifest: Manifest, state: Mapping[str, pa.Table]) -> None:
    """Rule 4: by their files, or else as far as rows can be counted."""
    compare_outputs(plan, manifest, state, (*manifest.ancestors, manifest.uuid))
    folders = outputs_of(plan)
    prepared = committables_of(manifest)
    for id, (_, config) in plan.sinks.items():
        table = state.get(id)
        visible = None if id in folders else _visible(config, manifest.uuid)
        if visible is None or table is None or "rows" not in table.column_names:
            continue
        taken = sum(table.column("rows").to_pylist())
        left = sum(each.rows for each in prepared if each.operator == id)
        if visible > taken:
            raise ConfigurationError(
                f"the output holds {visible:,} rows, the snapshot knows of {taken:,}: those since would come twice",
                "start from the newest snapshot, or take away what was written after this one",
                id,
            )
        if visible + left < taken:
            raise ConfigurationError(
                f"the output holds {visible:,} rows, but {taken - left:,} were committed when the snapshot was taken",
                "let the flow write where the snapshot's job wrote, or move that output here",
                id,
            )


def _visible(config: SinkConfig, job: str) -> int | None:
    try:
        return config.visible_rows(job)
    except ConfigurationError:
        return 0  # rows that were collected in another process
