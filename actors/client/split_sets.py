"""The split sets and task barriers that scripts add to a running job: what they write into the log of split sets.

Rules:

1. What was added is in the log, durably, before a call returns: no restart loses it, none doubles it. Then the
   coordinator is notified; should that be lost, it reads the log at the next notification, or when another takes over.
2. Several scripts may add to one job: each set and barrier has its place in one sequence. A barrier belongs to
   everything that was added before it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from threading import RLock

import pyarrow as pa

from ...coordinator.model.split_sets import (
    NoMoreSets,
    SetAdded,
    SetPosition,
    SplitEntry,
    SplitRef,
    WindowEnded,
    following,
)
from ...engine.core.errors import ConfigurationError, PenstockError
from ...engine.integrity.checksums import digest
from ...engine.plan.plan import JobPlan
from ...engine.plan.split_places import rounds_of
from ...engine.sources.fed import IPC, file_split
from ...engine.sources.given import NewSplit, table_of
from ..storage.log import SplitLog, naming_log
from ..storage.stores import open_store

INLINE_BYTES = 64 * 1024
"""A table of at most so many bytes travels within the log's entry; a larger one is a file of its own."""


class SplitSetWriter:
    """See the module's rules. Of one job, whose checkpoints lie in ``folder``. ``begin``: where its log begins;
    ``added``: called with each entry that was written. May be called from any thread."""

    def __init__(
        self, plan: JobPlan, folder: str, begin: Callable[[], SetPosition], added: Callable[[SplitEntry], None]
    ) -> None:
        self._plan, self._folder, self._begin, self._added = plan, folder, begin, added
        self._lock = RLock()
        self._log: SplitLog | None = None
        #: the entry written last, as far as this process knows, and where the next one goes
        self._last: SplitEntry | None = None
        self._next: SetPosition | None = None

    def add(self, split_set: Mapping[str, NewSplit | Sequence[NewSplit]]) -> SplitEntry:
        """Add a split set. Raises ConfigurationError or FlowError if it does not fit the job."""
        found = {source: _listed(given) for source, given in split_set.items()}
        self._check_set(found)
        splits = {source: self._refs(source, given) for source, given in found.items()}
        rounds = rounds_of(len(next(iter(splits.values()))), self._plan.lanes)
        return self._append(lambda at: SetAdded(at=at, splits=splits, rounds=rounds), "add splits before that")

    def end_window(self, now: float) -> SplitEntry:
        """Add a task barrier."""
        return self._append(lambda at: WindowEnded(at=at, requested_at=now), "request barriers before that")

    def has_ended(self) -> bool:
        """Whether it was said that no more comes."""
        with self._lock:
            self._find_end()
            return isinstance(self._last, NoMoreSets)

    def end(self, now: float) -> None:
        """Say that no more comes, once the open window is ended."""
        with self._lock:
            self._find_end()
            if isinstance(self._last, SetAdded):
                self.end_window(now)
            self._append(lambda at: NoMoreSets(at=at), "it was said before")

    def count(self) -> int:
        """How many entries the log has."""
        with self._opened("read") as log:
            last = log.last()
        return 0 if last is None else following(last).number

    def _append(self, make: Callable[[SetPosition], SplitEntry], remedy: str) -> SplitEntry:
        """Write an entry where the next one goes."""
        with self._lock:
            while True:
                at = self._find_end()
                if isinstance(self._last, NoMoreSets):
                    raise ConfigurationError(f"job {self._plan.name!r} was told that no more splits come", remedy)
                entry = make(at)
                with self._opened("write into") as log:
                    if log.create(entry):
                        break
                self._next = None  # another script was faster
            self._last, self._next = entry, following(entry)
        self._added(entry)
        return entry

    def _find_end(self) -> SetPosition:
        """Where the next entry goes."""
        if self._next is None:
            with self._opened("read") as log:
                self._last = log.last()
            self._next = self._begin() if self._last is None else following(self._last)
        return self._next

    @contextmanager
    def _opened(self, action: str) -> Iterator[SplitLog]:
        """The log, of which a script reads what the store refuses. Raises StorageError."""
        if self._log is None:
            self._log = SplitLog(open_store(self._folder), self._plan.name)
        with naming_log(action, self._folder, self._plan.name):
            yield self._log

    def _check_set(self, found: Mapping[str, Sequence[NewSplit]]) -> None:
        fed = self._plan.fed
        for source in found:
            if source not in fed:
                raise ConfigurationError(
                    f"there is no source {source!r} to be fed", f"the sources are: {', '.join(fed)}"
                )
        missing = [source for source in fed if source not in found]
        if missing:
            raise ConfigurationError(
                f"the split set has nothing for {', '.join(missing)}", "give every source a split; it may have no rows"
            )
        counts = {source: len(given) for source, given in found.items()}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            given = ", ".join(f"{source} has {count}" for source, count in counts.items())
            raise ConfigurationError(
                f"the split set is not co-partitioned: {given} splits",
                "give every source as many splits as the others, at least one; a split may have no rows",
            )

    def _refs(self, source: str, given: Sequence[NewSplit]) -> tuple[SplitRef, ...]:
        schema: pa.Schema = self._plan.sources[source].schema
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
        table = table_of(given, schema)
        if table.nbytes <= INLINE_BYTES:
            return SplitRef(id=id, rows=table.num_rows, data=_written(table, pa.ipc.new_stream))
        data = _written(table, pa.ipc.new_file)
        with self._opened("write into") as log:
            path = log.create_data(uuid.uuid4().hex, data)
        return SplitRef(id=id, rows=table.num_rows, path=path, format=IPC, digest=digest(data))


def _listed(given: NewSplit | Sequence[NewSplit]) -> list[NewSplit]:
    return list(given) if isinstance(given, list | tuple | Iterator) else [given]


def _written(table: pa.Table, writer: Callable[[pa.NativeFile, pa.Schema], pa.RecordBatchWriter]) -> bytes:
    sink = pa.BufferOutputStream()
    with writer(sink, table.schema) as writing:
        writing.write_table(table.unify_dictionaries())  # of which a file takes one per column
    return bytes(sink.getvalue().to_pybytes())
