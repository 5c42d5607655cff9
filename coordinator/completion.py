"""Completes checkpoints: orders their manifests into the log and savepoints into their folders, and what follows.

Rules:

1. Of the checkpoints that everybody has answered, the oldest is stored first. The log takes one entry at a time.
2. A savepoint is copied to its folder and is then complete, but for one: the savepoint that the job stops with also
   goes into the log, where it is the job's last checkpoint. Whoever finds it there commits what it holds and closes
   the log; nothing is deployed any more.
3. A manifest in the log makes older checkpoints superfluous, those in flight too.
4. Nothing is stored or copied whose books do not balance (``ledger.py``): the job fails.
5. The content may forbid a checkpoint (UNION state, part of the tasks over). It is given up quietly, and the next one
   tries again.
"""

from __future__ import annotations

from .checkpoints import Checkpoints
from .commands import DiscardEntries, DiscardSnapshot, StoreSavepoint
from .committing import Committing
from .completed import Gone
from .content import Rejected
from .context import Context
from .events import Failure, SavepointFailed, SavepointStored
from .failure_manager import Origin
from .job_states import TaskStatus
from .kinds import CheckpointKind
from .manifest import Manifest
from .manifest_making import make_manifest, make_savepoint
from .pending import PendingCheckpoint, Phase
from .reasons import FailureReason
from .requests import Cause


class Completion:
    """The second half of a checkpoint's life."""

    def __init__(self, context: Context, checkpoints: Checkpoints, committing: Committing) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._committing = committing
        self.completed = checkpoints.completed
        #: The checkpoint that the job stops with, once it stands.
        self.stopped_with: Manifest | None = None

    def store_due(self) -> None:
        """Order what everybody has answered; give up what nobody is left to answer."""
        for pending in list(self._checkpoints.pendings.values()):
            copied = pending.phase is Phase.COPYING and bool(pending.location)
            if not (copied or pending.is_acknowledged):
                continue
            if pending.unbalanced is not None:
                self._checkpoints.unbalanced(pending, pending.unbalanced)
            elif not pending.acked:
                self._checkpoints.abort(pending, Failure("every task has finished", retry=True))
            elif pending.kind.is_savepoint and not copied:
                self._copy(pending)
            elif self._context.log.is_idle:
                self._store(pending)

    def _store(self, pending: PendingCheckpoint) -> None:
        manifest = self._manifest(pending)
        if manifest is not None:
            pending.move(Phase.STORING)
            self._context.order(self._context.log.store(manifest))

    def _copy(self, pending: PendingCheckpoint) -> None:
        manifest = self._manifest(pending)
        if manifest is not None:
            pending.move(Phase.COPYING)
            savepoint, copies = make_savepoint(manifest)
            self._context.order(StoreSavepoint(pending.id, pending.request.target, savepoint, copies))

    def _manifest(self, pending: PendingCheckpoint) -> Manifest | None:
        made = make_manifest(self._context, pending, self.completed, self._committing.ledger.uncommitted())
        if isinstance(made, Manifest):
            pending.named = {handle.location: handle for state in made.tasks for handle in state.state}
        if isinstance(made, Rejected):
            self._checkpoints.failed(pending, Failure(made.message, retry=True), made.reason)
            return None
        return made

    # --- savepoints ----------------------------------------------------------------------------------------------

    def copied(self, event: SavepointStored) -> None:
        """The savepoint stands in its folder."""
        pending = self._checkpoints.pendings.get(event.checkpoint)
        if pending is None or pending.phase is not Phase.COPYING:
            if self._checkpoints.was_aborted(event.checkpoint):
                self._context.order(DiscardSnapshot(event.location, ()))
            return
        pending.location = event.location
        if pending.request.cause is Cause.STOP:
            return
        self._complete(pending)
        self._checkpoints.failures.completed(pending.id)
        self._checkpoints.discard(pending.handles())

    def copy_failed(self, event: SavepointFailed) -> None:
        """The savepoint could not be written."""
        pending = self._checkpoints.pendings.get(event.checkpoint)
        if pending is not None and pending.phase is Phase.COPYING and not pending.location:
            reason = FailureReason.FINALIZE_CHECKPOINT_FAILURE
            self._checkpoints.failed(pending, event.failure, reason, Origin.COORDINATOR)

    def _complete(self, pending: PendingCheckpoint) -> None:
        checkpoints, now = self._checkpoints, self._context.now
        checkpoints.close(pending, Phase.COMPLETED)
        checkpoints.decider.completed(now)
        checkpoints.history.completed(pending, now)
        if pending.kind.is_savepoint:
            checkpoints.savepoints.taken(pending.request, pending.id, pending.location)

    # --- the log's answers ---------------------------------------------------------------------------------------

    def stored(self, manifest: Manifest) -> None:
        """The manifest stands in the log: the checkpoint is complete, the sinks may commit."""
        pending = self._checkpoints.pendings.get(manifest.checkpoint)
        if pending is None:
            raise AssertionError(f"the manifest of {manifest.checkpoint} was stored, which is not pending")
        self._complete(pending)
        self.adopt(manifest)

    def adopt(self, manifest: Manifest) -> None:
        """The manifest is the newest in the log, whether it is a pending checkpoint's or one given up as failed.

        Every running task descends from it: no region is deployed while a manifest is doubtful.
        """
        tasks, stops = self._context.tasks, manifest.kind == CheckpointKind.STOP_WITH_SAVEPOINT.value
        self._checkpoints.failures.completed(manifest.checkpoint)
        self.let_go(self.completed.add(manifest))
        for state in manifest.tasks:
            record = tasks[state.task]
            if state.data_ended and record.state is not TaskStatus.STOPPED:
                tasks.cover(record, manifest.checkpoint)
            if stops:
                self._committing.ledger.add(manifest.checkpoint, state.task, state.committables)
            elif not state.finished:
                self._committing.completed(manifest.checkpoint, state.task, state.committables)
        self._checkpoints.subsume(manifest.checkpoint)
        self._checkpoints.open_ends.look_again()
        if stops:
            self.stopped_with = manifest

    def let_go(self, gone: Gone) -> None:
        """Order deleted what nobody needs any more."""
        if gone.numbers:
            self._context.order(DiscardEntries(gone.numbers))
        self._checkpoints.history.discarded(gone.checkpoints)
        for snapshot in gone.snapshots:
            handles = tuple(handle for state in snapshot.tasks for handle in state.state)
            self._context.order(DiscardSnapshot(snapshot.root, handles))
        self._checkpoints.discard(gone.handles)

    def settled(self) -> None:
        """Another entry took the number that a doubtful manifest might have had."""
        self._checkpoints.discard(self.completed.settle())

    def store_failed(self, failure: Failure) -> None:
        """The manifest failed to be written and is not in the log; it may still come, so its files stay."""
        manifest = self._context.log.in_flight
        if not isinstance(manifest, Manifest) or manifest.checkpoint not in self._checkpoints.pendings:
            raise AssertionError("a manifest failed that was not ordered")
        self.completed.doubt(manifest)
        self._context.log.failed()
        pending = self._checkpoints.pendings[manifest.checkpoint]
        self._checkpoints.failed(pending, failure, FailureReason.FINALIZE_CHECKPOINT_FAILURE)
