"""The memory of a task: what its operators hold, how much that may be, and where the rest goes.

Rules:

1. Every operator has an account and says after each step how many bytes it holds. The budget belongs to the task. An
   operator is told to spill if the task holds more than its budget and the operator more than its share of it: the
   budget divided by the number of operators that hold anything. So one operator may use what the others leave, and none
   is made to spill because of one that cannot.
2. Nobody is ever refused and nobody waits: who is over overdraws by the batch that it has just taken, and spills. So
   there is nothing to deadlock on.
3. What is spilled does not count: it is memory-mapped, and the system takes its pages back when it needs them. Nor does
   what sorting, merging and emitting take for a moment: about two to four times what the operator holds.
4. The folder is made with the first file and removed by ``release``. After it nothing is held and no file is left,
   however the task has ended. If nobody says ``release`` it goes with the object, or with the process at the latest;
   if that is killed, the next process that spills removes it (``spill.py``).
5. Accounts may be used from several threads.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import suppress
from threading import Lock
from weakref import finalize

import msgspec
import pyarrow as pa

from ..core.errors import InternalError, StorageError
from .spill import ArrowSpillFile, SpillFolder, disk_error_context
from .write_behind import WriteBehind

DEFAULT_BUDGET = 512 * 1024 * 1024
"""Bytes that the operators of one task hold before they spill, unless the run says otherwise."""


class MemoryStatistics(msgspec.Struct, frozen=True):
    """Bytes held now and at most; bytes and files that were spilled so far, and files that exist now."""

    held: int = 0
    peak: int = 0
    spilled_bytes: int = 0
    spilled_files: int = 0
    files: int = 0


class OperatorMemory:
    """The account of one operator (``engine.core.operator.Memory``)."""

    def __init__(self, task: TaskMemory, operator: str, number: int, disk: WriteBehind) -> None:
        self.operator = operator
        self.disk = disk
        self._task = task
        self._name = f"{number:03}-{re.sub(r'[^A-Za-z0-9._-]+', '-', operator)}"
        #: bytes as told last, and the most that was told
        self.held = 0
        self.peak = 0
        self._spilled_bytes = 0
        #: those that were made and not removed, and how many were made
        self._files: list[_CountedFile] = []
        self._made = 0

    def hold(self, held: int) -> bool:
        """See ``Memory.hold``."""
        return self._task.told(self, held)

    def spill(self, schema: pa.Schema) -> ArrowSpillFile:
        """See ``Memory.spill``."""
        path = os.path.join(self._task.folder_for(self.operator), f"{self._name}-{self._made:05}.arrow")
        self._made += 1
        file = _CountedFile(self, path, schema)
        self._files.append(file)
        return file

    def release(self) -> None:
        """Hold nothing, and remove all files."""
        self.hold(0)
        for file in list(self._files):
            file.remove()

    def statistics(self) -> MemoryStatistics:
        """Figures of this operator."""
        return MemoryStatistics(self.held, self.peak, self._spilled_bytes, self._made, len(self._files))

    def wrote(self, size: int) -> None:
        """A file grew by so many bytes of rows."""
        self._spilled_bytes += size

    def forget(self, file: _CountedFile) -> None:
        """A file was removed."""
        if file in self._files:
            self._files.remove(file)


class _CountedFile(ArrowSpillFile):
    """A file that its account knows."""

    def __init__(self, account: OperatorMemory, path: str, schema: pa.Schema) -> None:
        super().__init__(path, schema, account.operator, account.wrote, account.disk)
        self._account = account

    def remove(self) -> None:
        super().remove()
        self._account.forget(self)


class TaskMemory:
    """See the module's rules. ``budget``: None sets no bound. ``folder``: None takes one in the system's place for
    temporary files; a folder that is given belongs to this task alone."""

    def __init__(self, budget: int | None = DEFAULT_BUDGET, folder: str | None = None) -> None:
        self._budget = budget
        self._given = folder
        self._lock = Lock()
        #: None before the first file and after ``release``
        self._folder: str | None = None
        #: removes the folder, once
        self._removal: finalize[..., TaskMemory] | None = None
        self._accounts: list[OperatorMemory] = []
        self._released = False
        #: sum of what the accounts hold; the most that it was; how many accounts hold anything
        self._held = 0
        self._peak = 0
        self._holders = 0

    def account(self, operator: str, disk: WriteBehind | None = None) -> OperatorMemory:
        """A new account; an operator gets one when it is built. ``disk``: what writes to its files."""
        with self._lock:
            account = OperatorMemory(self, operator, len(self._accounts), disk or WriteBehind())
            self._accounts.append(account)
            return account

    def told(self, account: OperatorMemory, held: int) -> bool:
        """An account holds ``held`` bytes now; whether that is too much."""
        with self._lock:
            self._holders += (held > 0) - (account.held > 0)
            self._held += held - account.held
            account.held = held
            account.peak = max(account.peak, held)
            self._peak = max(self._peak, self._held)
            if self._budget is None or self._held <= self._budget:
                return False
            return held > self._budget // self._holders if self._holders else False

    def folder_for(self, operator: str) -> str:
        """The folder of spilled files, made if it is not there."""
        with self._lock:
            if self._released:
                raise InternalError("a task that has been released cannot spill", operator=operator)
            if self._folder is None:
                with disk_error_context("make the spill folder", self._given or tempfile.gettempdir(), operator):
                    if self._given is None:
                        own = SpillFolder()
                        self._folder, self._removal = own.path, finalize(self, own.remove)
                    else:
                        os.makedirs(self._given, exist_ok=True)
                        self._folder = self._given
                        self._removal = finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            return self._folder

    @property
    def folder(self) -> str | None:
        """Where the files are; None if there is no folder now."""
        return self._folder

    def operators(self) -> dict[str, MemoryStatistics]:
        """Figures per operator."""
        return {account.operator: account.statistics() for account in self._accounts}

    def statistics(self) -> MemoryStatistics:
        """Figures of the task."""
        parts = [account.statistics() for account in self._accounts]
        spilled = (sum(part.spilled_bytes for part in parts), sum(part.spilled_files for part in parts))
        return MemoryStatistics(self._held, self._peak, *spilled, sum(part.files for part in parts))

    def release(self) -> None:
        """The task is over: hold nothing, leave no file. May be called again; never raises."""
        for account in self._accounts:
            with suppress(StorageError):  # the folder goes as a whole
                account.release()
        with self._lock:
            self._released, self._folder = True, None
        if self._removal is not None:
            self._removal()

    def validate(self) -> None:
        """Raise InternalError if the figures contradict each other (rule 4 included)."""
        held = [account.held for account in self._accounts]
        if min(held, default=0) < 0 or sum(held) != self._held or sum(map(bool, held)) != self._holders:
            raise InternalError(f"the accounts hold {held}, the task {self._held} in {self._holders} accounts")
        if self._released and (self._held or any(account.statistics().files for account in self._accounts)):
            raise InternalError(f"a released task still holds {self.operators()}")
