"""What the shell of a simulated coordinator does for it: the log, savepoints, commits, deployment, orders to tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.actors.storage.log import read_entries
from penstock.actors.storage.memory_store import MemoryStore
from penstock.coordinator.model import commands, events
from penstock.coordinator.model.commands import Command
from penstock.coordinator.model.events import Event, Failure
from penstock.coordinator.model.manifest import Claim, Manifest
from penstock.engine.core.errors import StorageError
from support.simulated_shell import TaskShell
from support.simulated_storage import JOB

if TYPE_CHECKING:
    from support.simulated_cluster import Incarnation, SimulatedCluster


class ShellWork:
    """Each method does what one command orders, when the network delivers it."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        #: Writes and readings of the log that will fail.
        self._failures_to_come = 0

    def read_log(self, incarnation: Incarnation) -> None:
        """The real reading; between the listing and each entry the world may go on for a while."""
        cluster, log = self._cluster, self._cluster.storage.log
        try:
            answer: Event = events.LogRead(tuple(read_entries(Stalling(log, cluster), JOB)), cluster.now)
        except StorageError as error:
            answer = events.LogFailed(Failure(error.message, retry=True), cluster.now)
        if self._store_fails():
            answer = events.LogFailed(Failure("reading failed", retry=True), cluster.now)
        cluster.post(lambda: cluster.handle(incarnation, answer))

    def _store_fails(self) -> bool:
        """Now and then several writes and readings in a row."""
        if self._failures_to_come:
            self._failures_to_come -= 1
            return True
        if not self._cluster.fault("store"):
            return False
        if self._cluster.fault("full_disk"):
            self._failures_to_come = self._cluster.random.randrange(1, 8)
        return True

    def store(self, incarnation: Incarnation, order: commands.StoreEntry) -> None:
        entry, cluster = order.entry, self._cluster
        answer: Event = events.EntryFailed(entry.number, Failure("the disk is full", retry=True), cluster.now)
        if not self._store_fails():
            stands = cluster.storage.create(entry)
            answer = (events.EntryStored if stands else events.EntryRefused)(entry.number, cluster.now)
        elif cluster.random.random() < 0.4:
            cluster.storage.create(entry)
        elif cluster.random.random() < 0.6:
            cluster.post_later(lambda: self._late_write(order, cluster.random.choice((0, 0, 10, 100))))
        cluster.post(lambda: cluster.handle(incarnation, answer))

    def _late_write(self, order: commands.StoreEntry, later: int) -> None:
        """A write that was said to have failed lands after all, unless somebody has the number by now."""
        storage, entry = self._cluster.storage, order.entry
        if later:
            self._cluster.post(lambda: self._late_write(order, later - 1))
            return
        last = max((each.number for each in storage.entries()), default=-1)
        if entry.number > last or isinstance(entry, Claim):
            storage.create(entry)
            self._cluster.seen.add("late_write" if isinstance(entry, Manifest) else "late entry")

    def commit_orphans(self, incarnation: Incarnation, order: commands.CommitOrphans) -> None:
        if self._cluster.fault("commit"):
            failure = Failure("no commit today", retry=True)
            self._cluster.fail(incarnation, events.TaskFailed(order.task, order.attempt, failure, self._cluster.now))
            return
        self._cluster.storage.commit(order.permit)
        committed = events.TaskCommitted(order.task, order.attempt, order.permit.checkpoint, self._cluster.now)
        self._cluster.report(incarnation, committed)

    def deploy(self, incarnation: Incarnation, order: commands.DeployTask) -> None:
        """A process takes the newest attempt; an older one is answered by nobody."""
        current, claim = self._cluster.tasks.get(order.task), self._cluster.storage.last_claim()
        if current is None or current.task.attempt < order.attempt:
            if not self._cluster.storage.has(order.state, order.root):
                stale = claim is not None and claim.generation > order.attempt.generation
                if not incarnation.wants(order) or stale:
                    return  # its files have gone meanwhile: an old order, or one of a coordinator that is superseded
            self._cluster.tasks[order.task] = current = TaskShell(self._cluster, incarnation, order)
        if current.task.attempt == order.attempt:
            current.deployed_again()

    def to_task(self, order: Command) -> None:
        shell = self._cluster.tasks.get(order.task)  # type: ignore[union-attr]
        if shell is not None and shell.task.attempt == order.attempt:  # type: ignore[union-attr]
            shell.perform(order)

    def copy_savepoint(self, incarnation: Incarnation, order: commands.CopySavepoint) -> None:
        """Copy it; the answer may come much later, or say that it failed."""
        cluster = self._cluster
        answer: Event = events.SavepointFailed(order.checkpoint, Failure("no room", retry=True), cluster.now)
        if not self._is_missing(incarnation, order) and not cluster.fault("savepoint"):
            found = cluster.storage.copy_savepoint(order)
            if found is not None and found[1] is not None:
                cluster.seen.add("asked again")
                answer = events.SavepointStored(order.checkpoint, found[0], cluster.now, found[1])
            elif found is not None:
                answer = events.SavepointCopied(order.checkpoint, found[0], cluster.now)
        cluster.post_later(lambda: cluster.handle(incarnation, answer))

    def store_savepoint(self, incarnation: Incarnation, order: commands.StoreSavepoint) -> None:
        """Create it; what is said to have failed may have been done."""
        cluster = self._cluster
        answer: Event = events.SavepointFailed(order.checkpoint, Failure("no room", retry=True), cluster.now)
        if not self._is_missing(incarnation, order):
            fails = cluster.fault("savepoint")
            if not fails or cluster.random.random() < 0.5:
                found = cluster.storage.store_savepoint(order)
                if not fails and found is not None:
                    answer = events.SavepointStored(order.checkpoint, order.location, cluster.now, found)
        cluster.post_later(lambda: cluster.handle(incarnation, answer))

    def _is_missing(self, incarnation: Incarnation, order: commands.CopySavepoint | commands.StoreSavepoint) -> bool:
        """Whether files are gone; only if its coordinator has been superseded, or has given the savepoint up."""
        cluster, core = self._cluster, incarnation.core
        missing, claim = cluster.storage.missing_for(order), cluster.storage.last_claim()
        stop = core._job.finalizer.stopped_with
        wanted = order.checkpoint in core._job.checkpoints.pendings or (stop and stop.checkpoint == order.checkpoint)
        current = claim is not None and claim.owner == incarnation.owner
        assert not (missing and incarnation.alive and wanted and current), f"{order.checkpoint} lacks {missing}"
        return bool(missing)


class Stalling:
    """The log's store, with a stall now and then after it was listed."""

    def __init__(self, log: MemoryStore, cluster: SimulatedCluster) -> None:
        self._log, self._cluster = log, cluster

    def create(self, key: str, data: bytes) -> bool:
        raise AssertionError("only for reading")

    def read(self, key: str) -> bytes | None:
        if self._cluster.fault("stall"):
            self._cluster.stall()
        return self._log.read(key)

    def list(self, prefix: str) -> list[str]:
        return self._log.list(prefix)

    def delete(self, key: str) -> None:
        raise AssertionError("only for reading")
