"""What a coordinator has read, stored, committed and deleted for it, on threads of its own. No Ray.

Rules:

1. The coordinator's thread never waits for storage. Answers go to ``tell`` as events, from one of these threads.
2. The log has a thread of its own, so that entries are asked for in order and wait for nothing else.
3. Deleting what nobody needs may fail: the files stay, nothing else happens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import pyarrow as pa

from ...coordinator.model.commands import CommitOrphans, CopySavepoint, StoreSavepoint, TakeOutputs
from ...coordinator.model.events import (
    EntryFailed,
    EntryRefused,
    EntryStored,
    Event,
    Failure,
    LogFailed,
    LogRead,
    OutputsRefused,
    OutputsTaken,
    SavepointCopied,
    SavepointFailed,
    SavepointStored,
    SplitSetsRead,
    TaskCommitted,
    TaskFailed,
)
from ...coordinator.model.manifest import Claim, LogEntry, Manifest
from ...coordinator.model.store import Store
from ...engine.core.errors import PenstockError
from ...engine.core.identity import CheckpointId, StateHandle
from ...engine.plan.plan import JobPlan
from ...engine.scheduler.threads import Threads
from ..audit.audit import state_of
from ..claims.ownership import take_outputs
from ..claims.presence import Presence, find_running
from ..claims.savepoints import SavepointFiles
from ..protocol.messages import UNKNOWN_TIME
from ..protocol.translate import failure_of
from ..storage.log import SplitLog, create_entry, delete_entries, read_entries
from ..storage.snapshots import SnapshotFiles
from .task_files import as_penstock_error, commit_permit

_log = logging.getLogger(__name__)


class CoordinatorFiles:
    """See the module's rules."""

    def __init__(
        self,
        plan: JobPlan,
        store: Store,
        snapshots: SnapshotFiles,
        tell: Callable[[Event], None],
        take_over: bool = False,
        refused: Failure | None = None,
    ) -> None:
        """``refused``: why nobody is to take the job over: the log is not read, and the job fails with that."""
        self._refused = refused
        self._plan = plan
        self._take_over = take_over
        self._store = store
        self._splits = SplitLog(store, plan.name)
        self._snapshots = snapshots
        self._savepoints = SavepointFiles(snapshots.url, plan.name)
        self._tell = tell
        self._presence = Presence()
        self._log_thread = Threads(1, "penstock-log")
        self._file_thread = Threads(1, "penstock-files")

    def read_log(self) -> None:
        """Read all entries; tells ``LogRead`` or ``LogFailed``."""

        def work() -> Event:
            if self._refused is not None:
                return LogFailed(self._refused, UNKNOWN_TIME)
            try:
                entries = tuple(read_entries(self._store, self._plan.name))
                return LogRead(entries, UNKNOWN_TIME, find_running(entries))
            except Exception as error:
                return LogFailed(failure_of(as_penstock_error(error)), UNKNOWN_TIME)

        self._log_thread.submit(lambda: self._tell(work()))

    def store(self, entry: LogEntry) -> None:
        """Create an entry; tells what became of it. Whoever reads a claim finds its run."""
        if isinstance(entry, Claim):
            self._presence.begin(entry.owner)

        def work() -> Event:
            try:
                outcome = create_entry(self._store, self._plan.name, entry)
            except Exception as error:
                return EntryFailed(entry.number, failure_of(as_penstock_error(error)), UNKNOWN_TIME)
            answer = EntryStored if outcome == "stored" else EntryRefused
            return answer(entry.number, UNKNOWN_TIME)

        self._log_thread.submit(lambda: self._tell(work()))

    def take_outputs(self, command: TakeOutputs) -> None:
        """Make the outputs ours; tells ``OutputsTaken`` or ``OutputsRefused``."""

        def read(manifest: Manifest, root: str) -> Mapping[str, pa.Table]:
            return state_of(manifest, root, self._plan.name, self._plan.sinks)

        def work() -> Event:
            try:
                take_outputs(self._plan, command, self._snapshots.url, read, take_over=self._take_over)
            except Exception as error:
                return OutputsRefused(failure_of(as_penstock_error(error)), UNKNOWN_TIME)
            return OutputsTaken(UNKNOWN_TIME)

        self._file_thread.submit(lambda: self._tell(work()))

    def commit(self, command: CommitOrphans) -> None:
        """Commit without a task; tells ``TaskCommitted`` or ``TaskFailed``."""

        def work() -> Event:
            error = commit_permit(self._plan, command.permit)
            if error is None:
                return TaskCommitted(command.task, command.attempt, command.permit.checkpoint, UNKNOWN_TIME)
            return TaskFailed(command.task, command.attempt, failure_of(error), UNKNOWN_TIME)

        self._file_thread.submit(lambda: self._tell(work()))

    def copy_savepoint(self, command: CopySavepoint) -> None:
        """Copy the files; tells ``SavepointCopied``, ``SavepointStored`` or ``SavepointFailed``."""

        def work() -> Event:
            try:
                location, holds = self._savepoints.copy(command)
            except Exception as error:
                failure = failure_of(as_penstock_error(error))
                return SavepointFailed(command.checkpoint, failure, UNKNOWN_TIME)
            if holds is not None:
                return SavepointStored(command.checkpoint, location, UNKNOWN_TIME, holds)
            return SavepointCopied(command.checkpoint, location, UNKNOWN_TIME)

        self._file_thread.submit(lambda: self._tell(work()))

    def store_savepoint(self, command: StoreSavepoint) -> None:
        """Create the manifest beside the copies; tells ``SavepointStored`` or ``SavepointFailed``."""

        def work() -> Event:
            try:
                holds = self._savepoints.store(command)
            except Exception as error:
                failure = failure_of(as_penstock_error(error))
                return SavepointFailed(command.checkpoint, failure, UNKNOWN_TIME)
            return SavepointStored(command.checkpoint, command.location, UNKNOWN_TIME, holds)

        self._file_thread.submit(lambda: self._tell(work()))

    def discard_copies(self, location: str, checkpoint: CheckpointId) -> None:
        """Delete the copies of a savepoint that was given up."""

        def work() -> None:
            try:
                self._savepoints.discard_copies(location, checkpoint)
            except PenstockError as error:
                _log.warning("%s", error)

        self._file_thread.submit(work)

    def discard_snapshot(self, location: str, handles: tuple[StateHandle, ...]) -> None:
        """Delete a snapshot outside the job's folder."""

        def work() -> None:
            try:
                self._savepoints.delete(location, handles)
            except PenstockError as error:
                _log.warning("%s", error)

        self._file_thread.submit(work)

    def discard(self, handles: tuple[StateHandle, ...]) -> None:
        """Delete state files that nobody needs any more."""

        def work() -> None:
            try:
                self._snapshots.delete(handles)
            except PenstockError as error:
                _log.warning("%s", error)

        self._file_thread.submit(work)

    def discard_entries(self, numbers: tuple[int, ...]) -> None:
        """Delete entries of the log that nobody needs any more."""

        def work() -> None:
            try:
                delete_entries(self._store, self._plan.name, numbers)
            except OSError as error:
                _log.warning("could not delete old entries of the log: %s", error)

        self._log_thread.submit(work)

    def read_split_sets(self, start: int) -> None:
        """Read the log of split sets; tells ``SplitSetsRead``."""

        def work() -> Event:
            try:
                entries, oldest = self._splits.read(start)
            except (OSError, PenstockError) as error:
                _log.warning("the log of split sets could not be read: %s", error)
                return SplitSetsRead((), start, UNKNOWN_TIME, failed=True)
            return SplitSetsRead(tuple(entries), oldest, UNKNOWN_TIME)

        self._log_thread.submit(lambda: self._tell(work()))

    def discard_split_sets(self, numbers: tuple[int, ...]) -> None:
        """Delete split sets that nobody needs any more."""

        def work() -> None:
            try:
                self._splits.delete(numbers)
            except OSError as error:
                _log.warning("could not delete old split sets: %s", error)

        self._file_thread.submit(work)

    def end_presence(self) -> None:
        """The run is over."""
        self._presence.end()

    def close(self) -> None:
        """Let what is under way end."""
        self._presence.end()
        self._log_thread.close(drop=True)
        self._file_thread.close()
