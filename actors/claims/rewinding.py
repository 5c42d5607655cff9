"""Brings a job's log back to where a model has come to, before the job starts.

Rules:

1. If the newest checkpoint still holds the batches that come next for the model, the job goes on from that.
2. Else the checkpoint that the model is bound to becomes the newest one: it is entered into the log again, under a new
   id of a newer generation, as a coordinator would do that had gone back to it. Nothing is deleted, and a coordinator
   that still lives finds its next number taken, and leaves.
3. Rows that other sinks have written since then would come twice: then it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...coordinator.log.recovery import generation_of
from ...coordinator.model.events import Failure
from ...coordinator.model.manifest import Ended, LogEntry, Manifest
from ...engine.core.errors import ConfigurationError
from ...engine.core.identity import CheckpointId
from ...engine.feed.state import read_state
from ...engine.plan.plan import JobPlan
from ..audit.audit import state_of
from ..feed.models import ModelRecord, pin_name, pins_of, record_of, sink_of
from ..protocol.translate import error_of
from ..storage.log import create_entry_in, read_log_in
from .origin import check_outputs
from .presence import in_words


def rewind_to_model(plan: JobPlan, folder: str, model: str) -> None:
    """See the module's rules. Raises ConfigurationError if the model is unknown here, or its checkpoint."""
    if not plan.feeds:
        raise ConfigurationError(f"job {plan.name!r} has no feed that a model could go on with", "end it in feed(…)")
    records = _records(plan, folder, model)
    entries = read_log_in(folder, plan.name)
    if any(isinstance(entry, Ended) for entry in entries):
        raise ConfigurationError(
            f"job {plan.name!r} is over, its log in {folder} is closed", "run it again in another checkpoint folder"
        )
    manifests = [entry for entry in entries if isinstance(entry, Manifest)]
    if manifests and all(_holds(plan, folder, manifests[-1], record) for record in records):
        return
    found = _bound(plan, entries, manifests, records)
    if not all(_holds(plan, folder, found, record) for record in records):
        raise ConfigurationError(
            f"the checkpoint of model {model!r} does not hold what comes after it in every feed",
            "commit the model for all feeds at the same time",
        )
    check_outputs(plan, found, state_of(found, found.root or folder, plan.name))
    newest = manifests[-1].checkpoint
    generation = max(generation_of(entry) for entry in entries) + 1
    entry = replace(
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
    """The checkpoint of the first record (feeds that one script reads are committed together)."""
    record = records[0]
    kept = pins_of(entries).get(pin_name(record.feed, record.model)) == record.checkpoint
    found = next((each for each in manifests if each.checkpoint == record.checkpoint), None)
    if found is None or not kept:
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
