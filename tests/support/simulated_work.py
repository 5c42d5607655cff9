"""What the shell of a simulated coordinator does for it: the log, savepoints, commits, deployment, orders to tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.coordinator import commands, events
from penstock.coordinator.commands import Command
from penstock.coordinator.events import Event, Failure
from support.simulated_shell import TaskShell

if TYPE_CHECKING:
    from support.simulated_cluster import Incarnation, SimulatedCluster


class ShellWork:
    """Each method does what one command orders, when the network delivers it."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    def read_log(self, incarnation: Incarnation) -> None:
        entries = tuple(self._cluster.storage.entries())
        answer: Event = events.LogRead(entries, self._cluster.now)
        if self._cluster.fault("store"):
            answer = events.LogFailed(Failure("reading failed", retry=True), self._cluster.now)
        self._cluster.post(lambda: self._cluster.handle(incarnation, answer))

    def store(self, incarnation: Incarnation, order: commands.StoreEntry) -> None:
        entry = order.entry
        failed = events.EntryFailed(entry.number, Failure("the disk is full", retry=True), self._cluster.now)
        answer: Event = failed
        if not self._cluster.fault("store"):
            stands = self._cluster.storage.create(entry)
            answer = (events.EntryStored if stands else events.EntryRefused)(entry.number, self._cluster.now)
        elif self._cluster.random.random() < 0.4:
            self._cluster.storage.create(entry)
        elif self._cluster.random.random() < 0.6:
            self._cluster.post_later(lambda: self._late_write(order))
        self._cluster.post(lambda: self._cluster.handle(incarnation, answer))

    def _late_write(self, order: commands.StoreEntry) -> None:
        """A write that was said to have failed lands after all, unless somebody has the number by now."""
        before = self._cluster.storage.newest()
        self._cluster.storage.create(order.entry)
        if self._cluster.storage.newest() != before:
            self._cluster.seen.add("late_write")

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

    def store_savepoint(self, incarnation: Incarnation, order: commands.StoreSavepoint) -> None:
        """Copy it; the answer may come much later, or say that it failed."""
        cluster = self._cluster
        answer: Event = events.SavepointFailed(order.checkpoint, Failure("no room", retry=True), cluster.now)
        missing, core = cluster.storage.missing_for(order), incarnation.core
        if missing:
            # its coordinator has been superseded, or has given the savepoint up
            wanted = incarnation.alive and order.checkpoint in core._job.checkpoints.pendings
            claim = cluster.storage.last_claim()
            current = claim is not None and claim.generation == order.checkpoint.generation
            assert not (wanted and current), f"savepoint {order.checkpoint} is to be copied without {missing}"
        elif not cluster.fault("savepoint"):
            location = cluster.storage.store_savepoint(order)
            answer = events.SavepointStored(order.checkpoint, location, cluster.now)
        cluster.post_later(lambda: cluster.handle(incarnation, answer))
