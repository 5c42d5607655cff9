"""What a user feeds to a running job: split sets, task barriers, their end. The same for ``Job`` and ``LocalJob``.

Rules:

1. What was added is in the log of split sets, durably, before a call returns: no restart loses it, none doubles it.
   Then the coordinator is told; should that be lost, it reads the log when it is told the next time, or takes over.
2. Several callers may feed one job, from several processes: each set and barrier has its place in one sequence.
3. A barrier belongs to everything that was added before it. ``wait`` returns when all rows of that are visible in the
   sinks, and when nothing of it is held in the job any more, but for operators that hold at barriers.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike, fspath
from threading import Lock
from typing import TypeAlias

import pyarrow as pa

from ...coordinator.model.events import Event, SplitSetsAdded
from ...coordinator.model.split_sets import (
    NoMoreSets,
    SetAdded,
    SetPosition,
    SplitEntry,
    SplitRef,
    WindowEnded,
    following,
    rounds_of,
)
from ...coordinator.model.statistics import JobStatus, WindowReport
from ...engine.arrow.plain_types import plain_table
from ...engine.core.arguments import checked
from ...engine.core.errors import ConfigurationError, FlowError, PenstockError
from ...engine.integrity.checksums import digest
from ...engine.plan.plan import JobPlan
from ...engine.sources.fed import IPC, check_schema, file_split
from ..protocol.messages import UNKNOWN_TIME
from ..protocol.translate import error_of
from ..storage.log import SplitLog
from ..storage.stores import open_store

INLINE_BYTES = 64 * 1024
"""A table of at most so many bytes travels within the log's entry; a larger one is a file of its own."""

NewSplit: TypeAlias = pa.Table | pa.RecordBatch | str | PathLike[str]


@dataclass(frozen=True, slots=True)
class WindowBarrier:
    """A task barrier that was requested. ``number``: of its window, from 1, over the whole life of the job."""

    job: SplitSetsFace
    number: int

    @property
    def is_done(self) -> bool:
        """Whether the window's rows are visible in every sink."""
        return self.job._is_published(self.number, self.job.status())

    def wait(self, timeout: float | None = None) -> WindowReport:
        """Wait until they are. The window's statistics; those of a window that was complete before the coordinator
        began are not known. Raises the job's error if it fails before, TimeoutError after ``timeout`` seconds."""
        return self.job._wait_for_window(self.number, timeout)


class SplitSetsFace(ABC):
    """See the module's rules. ``folder``: the checkpoint folder."""

    plan: JobPlan
    folder: str
    #: the entry written last, as far as this process knows, and where the next one goes
    _last_entry: SplitEntry | None = None
    _next_entry: SetPosition | None = None
    _split_log: SplitLog | None = None
    _seen_windows: tuple[WindowReport, ...] = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The job's name."""

    @abstractmethod
    def status(self) -> JobStatus:
        """Where the job stands now."""

    @abstractmethod
    def wait_until(self, condition: Callable[[JobStatus], bool], timeout: float | None = None) -> JobStatus:
        """Wait for a status of which ``condition`` holds, or for the last one that there is."""

    @abstractmethod
    def _tell(self, event: Event) -> None:
        """Send the coordinator an event; not for a job that is over and gone."""

    def _fetch_windows(self) -> tuple[WindowReport, ...] | None:
        """The windows that the coordinator remembers; None if it is gone, or cannot be asked."""
        return None

    # ------------------------------------------------------------------ feeding

    @checked(ConfigurationError)
    def add_splits(self, split_set: Mapping[str, NewSplit | Sequence[NewSplit]]) -> int:
        """Feed one split set: for every source one split, or a list of splits, the same number for each source: the
        ``k``-th ones are read side by side. A split is a table, or the path of a file that all processes see. Returns
        the set's number, from 1, over the whole life of the job. It is durable then.

        Raises ConfigurationError or FlowError if the set does not fit the job, and ConfigurationError if the job is
        over or was told that no more come.
        """
        found = {source: self._listed(given) for source, given in split_set.items()}
        self._check_set(found)
        splits = {source: self._refs(source, given) for source, given in found.items()}
        rounds = rounds_of(len(next(iter(splits.values()))), self.plan.lanes)
        entry = self._append(lambda at: SetAdded(at=at, splits=splits, rounds=rounds), "add splits before that")
        return entry.at.sets + 1

    def request_barrier(self) -> WindowBarrier:
        """Ask for a task barrier behind everything added so far, and go on. Windows may be queued ahead."""
        now = time.time()
        entry = self._append(lambda at: WindowEnded(at=at, requested_at=now), "request barriers before that")
        return WindowBarrier(self, entry.at.windows + 1)

    def no_more_splits(self) -> None:
        """What was added is all: the window that is open is drained, then the job finishes. Said twice it is said."""
        self._must_be_fed()
        with self._feeding:
            self._find_end()
            if isinstance(self._last_entry, NoMoreSets):
                return
        if isinstance(self._last_entry, SetAdded):
            self.request_barrier()
        self._append(lambda at: NoMoreSets(at=at), "it was said before")

    @checked(ConfigurationError)
    def window(self, number: int) -> WindowBarrier:
        """The barrier of a window by its number, whoever requested it."""
        return WindowBarrier(self, number)

    def windows(self) -> tuple[WindowReport, ...]:
        """The statistics of the newest windows, oldest first."""
        self._must_be_fed()
        found = self._fetch_windows()
        if found is not None:
            self._seen_windows = found
        return self._seen_windows

    def _remember_windows(self) -> None:
        """Keep what is known: whoever knows it is about to go."""
        if self.plan.fed:
            with suppress(PenstockError, TimeoutError):
                self.windows()

    # ------------------------------------------------------------------ the log

    @property
    def _feeding(self) -> Lock:
        """Held by the thread that adds something."""
        found: Lock = self.__dict__.setdefault("_feeding_lock", Lock())
        return found

    def _append(self, make: Callable[[SetPosition], SplitEntry], remedy: str) -> SplitEntry:
        """Write an entry where the next one goes, and tell the coordinator."""
        self._must_be_fed()
        status = self.status()
        if status.is_over:
            raise ConfigurationError(f"job {self.name!r} is over: {status.state}", "start it again")
        with self._feeding:
            while True:
                at = self._find_end()
                if isinstance(self._last_entry, NoMoreSets):
                    raise ConfigurationError(f"job {self.name!r} was told that no more splits come", remedy)
                entry = make(at)
                if self._log.create(entry):
                    break
                self._next_entry = None  # somebody else was faster
            self._last_entry, self._next_entry = entry, following(entry)
        self._tell(SplitSetsAdded((entry,), UNKNOWN_TIME))
        return entry

    def _entries_added(self) -> int:
        """How many entries the log of split sets has, whoever has written them."""
        last = self._log.last()
        return 0 if last is None else following(last).number

    def _find_end(self) -> SetPosition:
        """Where the next entry goes."""
        if self._next_entry is None:
            self._last_entry = self._log.last()
            if self._last_entry is not None:
                self._next_entry = following(self._last_entry)
            else:
                self._next_entry = self._beginning()
        return self._next_entry

    def _beginning(self) -> SetPosition:
        """Where the log begins: a job that started from a snapshot counts on from what that had covered."""
        status = self.wait_until(lambda status: status.splits is not None)
        found = status.splits
        if found is None:
            raise ConfigurationError(f"job {self.name!r} is over: {status.state}", "start it again")
        return SetPosition(number=found.entries, sets=found.sets, windows=found.requested, rounds=found.rounds)

    @property
    def _log(self) -> SplitLog:
        if self._split_log is None:
            self._split_log = SplitLog(open_store(self.folder), self.plan.name)
        return self._split_log

    # ------------------------------------------------------------------ what is added

    def _must_be_fed(self) -> None:
        if not self.plan.fed:
            raise ConfigurationError(
                f"the sources of job {self.name!r} read splits of their own", "build them with flow.from_split_sets(…)"
            )

    @staticmethod
    def _listed(given: NewSplit | Sequence[NewSplit]) -> list[NewSplit]:
        if isinstance(given, pa.Table | pa.RecordBatch | str | PathLike):
            return [given]
        return list(given)

    def _check_set(self, found: Mapping[str, Sequence[NewSplit]]) -> None:
        self._must_be_fed()
        known = ", ".join(self.plan.fed)
        for source in found:
            if source not in self.plan.fed:
                raise ConfigurationError(f"there is no source {source!r} to be fed", f"the sources are: {known}")
        missing = [source for source in self.plan.fed if source not in found]
        if missing:
            raise ConfigurationError(
                f"the split set has nothing for {', '.join(missing)}", "give every source a split; it may have no rows"
            )
        counts = {source: len(given) for source, given in found.items()}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            told = ", ".join(f"{source} has {count}" for source, count in counts.items())
            raise ConfigurationError(
                f"the split set is not co-partitioned: {told} splits",
                "give every source as many splits as the others, at least one; a split may have no rows",
            )

    def _refs(self, source: str, given: Sequence[NewSplit]) -> tuple[SplitRef, ...]:
        schema: pa.Schema = self.plan.sources[source].schema
        try:
            return tuple(self._ref(f"{source}/{number}", schema, each) for number, each in enumerate(given))
        except PenstockError as error:
            raise error.at(source) from None

    def _ref(self, id: str, schema: pa.Schema, given: NewSplit) -> SplitRef:
        if isinstance(given, str | PathLike):
            file = file_split(id, fspath(given), schema)
            return SplitRef(
                id=f"{id} ({file.path})", rows=file.rows, path=file.path, format=file.format, listing=file.listing
            )
        if not isinstance(given, pa.Table | pa.RecordBatch):
            raise FlowError(f"a split is a {type(given).__name__}", "give a table, a record batch or a file's path")
        check_schema("the split", given.schema, schema)
        table = pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else given
        table = plain_table(table).cast(schema)
        if table.nbytes <= INLINE_BYTES:
            return SplitRef(id=id, rows=table.num_rows, data=_written(table, pa.ipc.new_stream))
        data = _written(table, pa.ipc.new_file)
        path = self._log.create_data(uuid.uuid4().hex, data)
        return SplitRef(id=id, rows=table.num_rows, path=path, format=IPC, digest=digest(data))

    # ------------------------------------------------------------------ waiting

    def _is_published(self, number: int, status: JobStatus) -> bool:
        return status.splits is not None and status.splits.published >= number

    def _wait_for_window(self, number: int, timeout: float | None) -> WindowReport:
        status = self.wait_until(lambda status: self._is_published(number, status), timeout)
        if not self._is_published(number, status):
            if status.failure is not None:
                raise error_of(status.failure)
            raise ConfigurationError(
                f"job {self.name!r} is over: {status.state} before window {number} was complete",
                "start it again with the same checkpoint folder: what was added is in it",
            )
        found = (each for each in self.windows() if each.number == number)
        return next(found, WindowReport(number, 0, 0.0, {}, reached=True))


def _written(table: pa.Table, writer: Callable[[pa.NativeFile, pa.Schema], pa.RecordBatchWriter]) -> bytes:
    sink = pa.BufferOutputStream()
    with writer(sink, table.schema) as writing:
        writing.write_table(table.unify_dictionaries())  # of which a file takes one per column
    return bytes(sink.getvalue().to_pybytes())
