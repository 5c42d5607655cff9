"""What a job starts with: its identity, what it goes on from, and outputs that it may write to. No Ray.

Both runners ask this before anything is started, so that whatever can be refused is refused at once. Nothing is written
but what rule 6 says; what another run does meanwhile is found by the coordinator's claim and when it takes the outputs.

Rules:

1. A savepoint is named by its folder, another job's checkpoint by the job's folder (``state/flights``).
2. A job whose own log holds a checkpoint goes on from that: a script with ``from_snapshot=`` can simply be run again.
3. The snapshot must be of the same flow over the same data, unless the user allows changes; then operators are found by
   their names, and state of those that are gone is left behind.
4. The outputs must be those that the snapshot's job wrote: they hold its committed rows, and what it prepared for the
   snapshot becomes visible when the new job begins. Rows that were written there after the snapshot would come twice.
5. Claimed, a savepoint belongs to the job, which deletes it when it does not need it any more. Another job's checkpoint
   cannot be claimed: that job's log names its files.
6. ``resume_model``: if the newest checkpoint still holds the batches that come next for the model, the job goes on from
   that. Else the checkpoint that the model is bound to becomes the newest one: it is entered into the log again, under
   a new id of a newer generation, as a coordinator would do that had gone back to it. Nothing is deleted, and a
   coordinator that still lives finds its next number taken, and leaves. It is refused if rows that other sinks have
   written since then would come twice. So it is where the job is over: its log is open again then. But with a model
   that has seen the whole feed of a job that has finished, the job is what it was, finished.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import pyarrow as pa
from msgspec import structs

from ...coordinator.log.recovery import generation_of, identity_in
from ...coordinator.model.events import Failure
from ...coordinator.model.kinds import ClaimMode
from ...coordinator.model.manifest import Claim as ClaimEntry
from ...coordinator.model.manifest import LogEntry, Manifest, closing_entry, committables_of, is_drained, reweights_in
from ...coordinator.restore.stored_state import Snapshot, check_snapshot, held_by
from ...engine.core.errors import ConfigurationError
from ...engine.core.identity import CheckpointId, JobIdentity
from ...engine.core.operator import SinkConfig
from ...engine.feed.state import read_state
from ...engine.files.paths import absolute
from ...engine.flow.flow import Flow
from ...engine.flow.handoff import has_deferred, not_handed_over
from ...engine.plan.plan import JobPlan
from ..audit.audit import state_of
from ..feed.models import NO_CHECKPOINT, ModelRecord, has_seen_all, pin_name, pins_of, record_of, sink_of
from ..protocol.translate import error_of, execution_graph
from ..storage.log import create_entry_in, read_log_in
from ..storage.stores import may_hold_log
from .changed_flow import former_shape, in_changed_flow
from .more_epochs import snapshot_for_more_epochs
from .ownership import check_stores, compare_outputs, examine_outputs, outputs_of
from .place import Place, Resume, check_resume
from .presence import in_words
from .savepoints import holds_savepoint, read_savepoint

_log = logging.getLogger(__name__)
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
    refuse_words_about(path, claim, allow_changes)
    if path is None or any(isinstance(entry, Manifest) for entry in read_log_in(folder, plan.name)):
        return None
    return find_snapshot(path, plan, claim=claim, allow_changes=allow_changes)


def refuse_words_about(path: str | os.PathLike[str] | None, claim: Claim, allow_changes: bool) -> None:
    """Refuse what is said of a snapshot that there is not. Raises ConfigurationError."""
    if path is None and (claim != "no_claim" or allow_changes):
        raise ConfigurationError("claim and allow_changes say nothing without a snapshot", "pass from_snapshot=")


def find_snapshot(
    path: str | os.PathLike[str], plan: JobPlan, *, claim: Claim = "no_claim", allow_changes: bool = False
) -> Snapshot:
    """The snapshot at ``path`` as a start for ``plan``. Raises ConfigurationError or StorageError."""
    snapshot, manifest = examine_snapshot(path, plan, claim, allow_changes)
    held = {each for found in execution_graph(plan).operators.values() for each in found}
    if left := held_by(manifest) - held:
        _log.warning(
            "job %s: what the snapshot in %s holds of %s is left behind: the flow has no such name. A source or "
            "an operator that has another name now begins anew",
            plan.name,
            snapshot.root,
            ", ".join(map(repr, sorted(left))),
        )
    check_outputs(plan, manifest, state_of(manifest, snapshot.root, plan.name, plan.sinks))
    return snapshot


def examine_snapshot(
    path: str | os.PathLike[str], plan: JobPlan, claim: Claim, allow_changes: bool
) -> tuple[Snapshot, Manifest]:
    """The snapshot at ``path`` as a start for ``plan``, and what it was. Raises ConfigurationError or StorageError."""
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
    graph, refused = execution_graph(plan), _refusal(snapshot, plan, allow_changes)
    if refused is None:
        if allow_changes:
            snapshot = replace(snapshot, manifest=in_changed_flow(manifest, root, plan, graph))
        refused = check_snapshot(graph, snapshot)
    if refused is not None:
        raise error_of(refused)
    return replace(snapshot, manifest=snapshot_for_more_epochs(plan, snapshot.manifest, root)), manifest


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
    return structs.replace(found, reweights=reweights_in(entries)), found.root or folder


def _refusal(snapshot: Snapshot, plan: JobPlan, allow_changes: bool) -> Failure | None:
    manifest = snapshot.manifest
    if is_drained(manifest):
        return Failure(
            f"the snapshot in {snapshot.root} was taken when its job was stopped with drain=True: it is behind the "
            "end of its data, though its sources may have more",
            retry=False,
            remedy="use what its job has written; to go on later, stop a job without drain=True",
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


def rewind_to_model(plan: JobPlan, folder: str, model: str) -> bool:
    """See the module's rules. Whether the job is over. Raises ConfigurationError if the model is unknown here, or its
    checkpoint."""
    if not plan.feeds:
        raise ConfigurationError(f"job {plan.name!r} has no feed that a model could go on with", "end it in feed(…)")
    records = _records(plan, folder, model)
    entries = read_log_in(folder, plan.name)
    is_over = closing_entry(entries) is not None
    if is_over:
        drops = {feed: sink_of(plan, feed).drop_last for feed in plan.feeds}
        if all(has_seen_all(record, folder, plan.name, entries, drops[record.feed]) for record in records):
            return True
    manifests = [entry for entry in entries if isinstance(entry, Manifest)]
    if not is_over and manifests and all(_holds(plan, folder, manifests[-1], record) for record in records):
        return False
    found = _bound(plan, entries, manifests, records)
    if not all(_holds(plan, folder, found, record) for record in records):
        raise ConfigurationError(
            f"the checkpoint of model {model!r} does not hold what comes after it in every feed",
            "commit the model for all feeds at the same time",
        )
    check_outputs(plan, found, state_of(found, found.root or folder, plan.name))
    newest = manifests[-1].checkpoint
    generation = max(generation_of(entry) for entry in entries) + 1
    entry = structs.replace(
        found, number=entries[-1].number + 1, checkpoint=CheckpointId(generation, newest.number + 1), request=""
    )
    if create_entry_in(folder, plan.name, entry) != "stored":
        refused = Failure(
            f"another run of job {plan.name!r} has written to its log in {folder} meanwhile",
            retry=False,
            remedy="end it before you go back to a model",
            kind="ConfigurationError",
        )
        raise error_of(in_words(refused, read_log_in(folder, plan.name), folder))
    return False


def _records(plan: JobPlan, folder: str, model: str) -> list[ModelRecord]:
    found: list[ModelRecord] = []
    refused: ConfigurationError | None = None
    for feed in plan.feeds:
        try:
            found.append(record_of(folder, plan.name, feed, model, sink_of(plan, feed).batch_size, plan.fingerprint))
        except ConfigurationError as error:
            refused = error
    if not found and refused is not None:
        raise refused
    return found


def _bound(
    plan: JobPlan, entries: Sequence[LogEntry], manifests: Sequence[Manifest], records: Sequence[ModelRecord]
) -> Manifest:
    """The checkpoint of the first record that needs one (feeds that one script reads are committed together)."""
    record = next((each for each in records if each.checkpoint != NO_CHECKPOINT), records[0])
    pinned = pins_of(entries).get(pin_name(record.feed, record.model))
    wanted = pinned if record.checkpoint == NO_CHECKPOINT else record.checkpoint
    if wanted is None:
        raise ConfigurationError(
            f"model {record.model!r} was bound when job {plan.name!r} was over, which went on for more epochs since, "
            "and no checkpoint was kept for the model: an earlier release kept none",
            "go on from another model",
        )
    found = next((each for each in manifests if each.checkpoint == wanted), None)
    if found is None or pinned != wanted:
        raise ConfigurationError(
            f"the checkpoint {record.checkpoint} of model {record.model!r} is not kept any more",
            "go on from a model that was not forgotten",
        )
    return found


def _holds(plan: JobPlan, folder: str, manifest: Manifest, record: ModelRecord) -> bool:
    """Whether the feed's state has the batches from the model's step on, or comes to them."""
    table = state_of(manifest, manifest.root or folder, plan.name).get(record.feed)
    if table is None:
        return True
    operator = next(
        operator
        for stage in plan.stages.values()
        for pipeline in stage.pipelines
        for operator in pipeline.operators
        if operator.id == record.feed
    )
    drop_last = sink_of(plan, record.feed).drop_last
    return read_state(table, operator.inputs[0]).first_batch(record.batch_size, drop_last) <= record.step


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
    check_stores(plan)
    return plan


def begin_in(
    folder: str,
    plan: JobPlan,
    *,
    resume: Resume = "auto",
    from_snapshot: str | os.PathLike[str] | None = None,
    claim: Claim = "no_claim",
    allow_changes: bool = False,
    take_over: bool = False,
    may_be_over: bool = False,
) -> Beginning:
    """The beginning of a job whose checkpoints go to ``folder``. Raises PenstockError."""
    entries: list[LogEntry] = read_log_in(folder, plan.name)
    found = identity_in(entries)
    plan = replace(plan, uuid=found.uuid if found is not None else uuid.uuid4().hex)
    goes_on = check_resume(folder, plan.name, resume, may_be_over)
    start = find_start(plan, folder, from_snapshot, claim=claim, allow_changes=allow_changes)
    resumes = goes_on or start is not None
    plan.check(resumes, folder)
    ancestors = () if found is None else found.ancestors
    if start is not None:
        ancestors = (*start.manifest.ancestors, start.manifest.uuid)
    claims = [entry.owner for entry in entries if isinstance(entry, ClaimEntry)]
    latest = next((entry for entry in reversed(entries) if isinstance(entry, Manifest)), None)
    if goes_on and latest is not None:
        shape = former_shape(latest, latest.root or folder, plan, execution_graph(plan))
        plan = replace(plan, former_shape=shape)
    examine_outputs(plan, JobIdentity(plan.uuid, ancestors=ancestors), claims, folder, take_over)
    check_stores(plan, folder)
    return Beginning(plan, start, resumes)
