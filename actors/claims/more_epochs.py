"""A job of feeds that goes on for more epochs than it began with. No Ray.

How many epochs there are is no part of a flow's fingerprint, so a checkpoint fits whatever is asked for. Rules:

1. Where the sources had not said the end of their data, they go on to the new one: nothing need be done. One that had
   been started anew, and had not said it again, had said it if who gets its rows has come to the end.
2. Where all tasks had come to the end, the last epoch has left nothing behind: operators let go of what they hold in
   its last round. So what is kept is where the sources stand, what the feeds hold, and what mixtures have counted; that
   is entered into the log as a new checkpoint, in which nobody has ended and nothing is in flight. It may follow the
   entry that closed the log.
3. In between, what belongs to the end is on its way through the operators. Then the job goes on for its former epochs
   until it has a checkpoint behind the end (``client/moving.py``).
4. Models that were bound when the job was over have no checkpoint of their own. That of rule 2 is theirs, and kept for
   them, because the job may be asked to go back to them when it is further on.
5. Right sides of hash joins are built once and gone at the end: those are refused, and so are fewer epochs than a
   checkpoint was taken with.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar, cast

from msgspec import structs

from ...coordinator.log.recovery import generation_of
from ...coordinator.model.manifest import Claim, LogEntry, Manifest, Pinned, TaskState, closing_entry
from ...coordinator.restore.finished_check import FinishedState
from ...engine.core.channel_states import EndState
from ...engine.core.errors import ConfigurationError
from ...engine.core.identity import Attempt, CheckpointId
from ...engine.feed.sink import ANY_ROWS, FeedSink
from ...engine.feed.state import read_counters
from ...engine.operators.sequence.mix import Mix, begun_again
from ...engine.plan.plan import JobPlan
from ...engine.planner.graph import Graph
from ..audit.audit import state_of
from ..audit.origins import sources_of
from ..feed.models import FINISHED, NO_CHECKPOINT, ModelBook, pin_name, pins_of, sink_of
from ..storage.log import create_entry_in, read_log_in
from ..storage.snapshots import SnapshotFiles

G = TypeVar("G", bound=Graph)


def in_epochs(flow: G, count: int) -> G:
    """The flow with feeds of so many epochs, which have room for all that comes: it ends though nobody reads."""
    feeds = [node for node in flow.nodes if isinstance(node.config, FeedSink)]
    own: dict[str, Any] = {"epochs": count, "room": ANY_ROWS, "room_bytes": None}
    return flow.with_nodes([replace(node, config=replace(cast(FeedSink, node.config), **own)) for node in feeds])


def is_behind_the_end(folder: str, job: str) -> bool:
    """Whether all tasks had come to the end at the newest checkpoint."""
    entries = reversed(read_log_in(folder, job))
    return not any(_left(newest) for newest in islice((each for each in entries if isinstance(each, Manifest)), 1))


def go_on_for_more_epochs(plan: JobPlan, folder: str, *, only_closed: bool = False) -> int | None:
    """See the module's rules; of rule 3 the former epochs, of which the job has to come to the end first.
    ``only_closed``: a log that is open is left alone. Raises ConfigurationError."""
    if plan.epochs is None:
        return None
    entries = read_log_in(folder, plan.name)
    newest = next((entry for entry in reversed(entries) if isinstance(entry, Manifest)), None)
    closed = closing_entry(entries)
    if newest is None or newest.fingerprint != plan.fingerprint:
        return None
    if (only_closed and closed is None) or (closed is not None and closed.status != FINISHED):
        return None
    if not _has_to_begin_again(plan, newest.root or folder, newest):
        if not any(isinstance(each, Claim) and each.generation == newest.checkpoint.generation for each in entries):
            _keep_for_models(plan, folder, entries, newest)  # whoever has entered it may have died over that
        return None
    if _left(newest):
        return newest.epochs
    checkpoint = CheckpointId(max(map(generation_of, entries)) + 1, newest.checkpoint.number + 1)
    again = _begun_again(plan, newest.root or folder, newest, checkpoint)
    again = structs.replace(again, number=entries[-1].number + 1)
    _enter(plan, folder, again)
    _keep_for_models(plan, folder, [*entries, again], again)
    return None


def _enter(plan: JobPlan, folder: str, entry: LogEntry) -> None:
    if create_entry_in(folder, plan.name, entry) != "stored":
        raise ConfigurationError(
            f"another run of job {plan.name!r} has written to its log in {folder} meanwhile",
            "end it before the job goes on for more epochs",
        )


def _keep_for_models(plan: JobPlan, folder: str, entries: Sequence[LogEntry], manifest: Manifest) -> None:
    """Rule 4."""
    pins, book, number = pins_of(entries), ModelBook(folder, plan.name), entries[-1].number
    for feed, table in state_of(manifest, manifest.root or folder, plan.name, plan.feeds).items():
        state, drop_last = read_counters(table), sink_of(plan, feed).drop_last
        for record in book.records(feed):
            name = pin_name(feed, record.model)
            if record.checkpoint != NO_CHECKPOINT or name in pins:
                continue
            if record.step == state.next_batch(record.batch_size, drop_last):
                number, checkpoint = number + 1, manifest.checkpoint
                pin = Pinned(number=number, generation=checkpoint.generation, checkpoint=checkpoint, name=name)
                _enter(plan, folder, pin)


def snapshot_for_more_epochs(plan: JobPlan, manifest: Manifest, root: str) -> Manifest:
    """The snapshot that another job starts from, as it is or as rule 2 says. Raises ConfigurationError."""
    if plan.epochs is None or not _has_to_begin_again(plan, root, manifest):
        return manifest
    if left := _left(manifest):
        raise ConfigurationError(
            f"the snapshot in {root} lies where the last of {manifest.epochs} epochs was coming to its end: "
            f"{', '.join(left)} had not got all of it",
            f"start from a savepoint that was taken before, or behind the end; or run it with epochs={manifest.epochs}",
        )
    return _begun_again(plan, root, manifest, manifest.checkpoint)


def _has_to_begin_again(plan: JobPlan, root: str, manifest: Manifest) -> bool:
    """Whether there are to be more epochs than the sources had, which had said their end (rule 1)."""
    assert plan.epochs is not None
    if manifest.epochs <= 1 or manifest.epochs == plan.epochs.count:
        return False
    if manifest.epochs > plan.epochs.count:
        raise ConfigurationError(
            f"job {plan.name!r} goes on from a checkpoint of {manifest.epochs} epochs: {plan.epochs.count} are fewer",
            f"give epochs={manifest.epochs}, or more, and stop the job when the training has had enough",
        )
    repeated = {id for id, source in plan.sources.items() if source.repeats}
    mine = [state for state in manifest.tasks if any(each.operator in repeated for each in state.state)]
    tables = state_of(manifest, root, plan.name, repeated).values()
    said = [each for table in tables if "said" in table.column_names for each in table.column("said").to_pylist()]
    ended = {each.operator for state in manifest.tasks for each in state.ended}
    if not (
        any(state.data_ended or state.finished for state in mine)
        or set(said) - {None, EndState.OPEN.value}
        or (ended and not ended.isdisjoint(repeated | _behind(plan, repeated)))
    ):
        return False
    if once := sorted(plan.sources.keys() - repeated):
        raise ConfigurationError(
            f"job {plan.name!r} had read its {manifest.epochs} epochs, and what it had built of {', '.join(once)} for "
            "a hash join is gone",
            "ask for as many epochs as may be needed before the last one ends, or run it in another checkpoint folder",
        )
    return True


def _behind(plan: JobPlan, sources: Collection[str]) -> set[str]:
    """The operators that get rows of these sources."""
    pipelines = (pipeline for stage in plan.stages.values() for pipeline in stage.pipelines)
    fed = (
        each for each in pipelines if any(not set(sources_of(plan, port)).isdisjoint(sources) for port in each.ports)
    )
    return {operator.id for pipeline in fed for operator in pipeline.operators}


def _left(manifest: Manifest) -> list[str]:
    """The tasks that had not come to the end."""
    return [str(state.task) for state in manifest.tasks if not (state.data_ended or state.finished)]


def _begun_again(plan: JobPlan, root: str, manifest: Manifest, checkpoint: CheckpointId) -> Manifest:
    """Rule 2."""
    assert plan.epochs is not None
    return structs.replace(
        manifest,
        checkpoint=checkpoint,
        tasks=tuple(_going_on(plan, root, state, checkpoint) for state in manifest.tasks),
        operators=tuple(structs.replace(each, finished=FinishedState.ALL_RUNNING.value) for each in manifest.operators),
        epochs=plan.epochs.count,
        shape="",
        request="",
    )


def _going_on(plan: JobPlan, root: str, state: TaskState, checkpoint: CheckpointId) -> TaskState:
    """A task's state, as nobody has ended. Positions of mixtures are written anew: they are a few numbers."""
    mixtures = {
        operator.id
        for stage in plan.stages.values()
        for pipeline in stage.pipelines
        for operator in pipeline.operators
        if isinstance(operator.config, Mix)
    }
    kept = [each for each in state.state if not each.is_flight]
    files = SnapshotFiles(root, plan.name)
    found = files.read([each for each in kept if each.operator in mixtures])
    kept = [each for each in kept if each.operator not in found]
    tables = {id: begun_again(table) for id, table in found.items()}
    again = files.write(state.task, checkpoint, Attempt(checkpoint.generation, 1), tables) if tables else ()
    return TaskState(task=state.task, state=(*kept, *again))
