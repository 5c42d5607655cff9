"""The logs of a job in a store: its own, that of its split sets (:class:`SplitLog`), and the notes of coordinators that
have died (:class:`Deaths`).

Entry ``n`` is the key ``<job>/log/<n>.json``. Rules:

1. Numbers have twelve digits, so the order of keys is the order of entries.
2. Entries may have been deleted, so numbers may be missing; each entry that is there carries its own number. Whether
   what is left is enough is decided by who reads it. An entry that is deleted between the listing and its reading was
   followed by others that the listing may not show: then all is listed again. What stands right behind the last listed
   entry is asked for by its name, so that a listing which lags does not hide how far the log goes.
3. An entry that exists with exactly our bytes is ours: the reply to the first try was lost.
4. An entry that is damaged, or of another format, is an error that names it; it is never left out.
5. OSError of the store passes through: the coordinator makes an event of it, and tries again. A script has nobody to
   do that for it: it reads and writes by ``…_in``, whose errors say which log, what the store said, and what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

from ...coordinator.model.events import Failure
from ...coordinator.model.manifest import (
    Dropped,
    LogEntry,
    Manifest,
    Pinned,
    Unpinned,
    decode,
    encode,
    since_restart,
    split_dropped,
)
from ...coordinator.model.split_sets import SetAdded, SplitEntry, decode_splits, encode_splits
from ...coordinator.model.store import Store
from ...engine.core.errors import StorageError
from ...engine.core.identity import CheckpointId
from ...engine.files.paths import safe_name, storage_error
from .damage import FROM_A_COPY, GO_ON, decoding
from .stores import open_store

_DIGITS = 12

LISTINGS = 20
"""Times that the log is listed anew: entries go once a checkpoint, and reading them takes a moment."""
LOOKAHEAD = 8
"""Numbers behind the last known entry that are tried: so many may have gone before they were read."""
KNOWN_CHECKPOINTS = 1024
"""Of so many it is known where they are: a model is bound to the newest."""


def key_of(job: str, number: int) -> str:
    """The key of an entry."""
    return f"{_folder(job)}{number:0{_DIGITS}d}.json"


def is_before(key: str, job: str, number: int) -> bool:
    """Whether this is the key of an entry before that one."""
    return key.startswith(_folder(job)) and key < key_of(job, number)


def read_log(store: Store, job: str) -> list[LogEntry]:
    """The entries of the job's log that count, in order: without checkpoints that an ending has dropped and not deleted
    yet. Raises StorageError if one cannot be read."""
    return split_dropped(read_entries(store, job))[0]


def read_entries(store: Store, job: str) -> list[LogEntry]:
    """All entries of the job's log since it was restarted, if it was, in order, as they stood at one moment. Raises
    StorageError if that fails."""
    known: dict[str, bytes] = {}
    for _ in range(LISTINGS):
        keys = store.list(_folder(job))
        known.update({key: data for key in keys if key not in known and (data := store.read(key)) is not None})
        if all(key in known for key in keys):
            found = [_decode(job, key, known[key]) for key in keys]
            return since_restart([*found, *_behind(store, job, found)])
    raise StorageError(
        f"the log of job {job!r} changes faster than it can be read",
        "find out who deletes files in the checkpoint folder; only the job's own coordinator may",
    )


def _behind(store: Store, job: str, listed: Sequence[LogEntry]) -> Iterator[LogEntry]:
    """The entries right behind the listed ones."""
    number = listed[-1].number + 1 if listed else 0
    while (data := store.read(key := key_of(job, number))) is not None:
        yield _decode(job, key, data)
        number += 1


def create_entry(store: Store, job: str, entry: LogEntry) -> Literal["stored", "refused"]:
    """Create the entry unless its number is taken by another one."""
    key, data = key_of(job, entry.number), encode(entry)
    if store.create(key, data) or store.read(key) == data:
        return "stored"
    return "refused"


def delete_entries(store: Store, job: str, numbers: Sequence[int]) -> None:
    """Delete entries, oldest first: should we be stopped on the way, the newest are left."""
    for number in sorted(numbers):
        store.delete(key_of(job, number))


def _folder(job: str) -> str:
    return f"{safe_name(job)}/log/"


def _decode(job: str, key: str, data: bytes) -> LogEntry:
    with decoding(f"{key} in the checkpoint folder", GO_ON):
        entry = decode(data)
    if key != key_of(job, entry.number):
        raise StorageError(
            f"the log of job {job!r} is broken: {key} holds entry {entry.number}",
            "put the files back under their own names, or start over with an empty checkpoint folder",
        )
    return entry


def read_log_in(folder: str, job: str) -> list[LogEntry]:
    """The entries that count of the job's log in a checkpoint folder, in order (``read_log``). Raises
    ConfigurationError or StorageError."""
    store = open_store(folder)
    with naming_log("read", folder, job):
        return read_log(store, job)


def create_entry_in(folder: str, job: str, entry: LogEntry) -> Literal["stored", "refused"]:
    """Create the entry in the job's log unless its number is taken by another one. Raises ConfigurationError, or
    StorageError: then it may be durable or not."""
    store = open_store(folder)
    with naming_log("write into", folder, job):
        return create_entry(store, job, entry)


@contextmanager
def naming_log(action: str, folder: str, job: str) -> Iterator[None]:
    """What a store that holds a log of the job refuses is a StorageError that says which log, and what to do."""
    try:
        yield
    except OSError as error:
        file = str(error.filename or "")
        place = file if file.startswith(f"{folder.rstrip('/')}/") else folder
        raise storage_error(f"{action} the log of job {job!r} in", place, error) from error


class LogTail:
    """Follows the job's log: what it says of pins, and which checkpoints it has, without reading all of it each time.

    1. The log is dense where it grows, and its last entry never goes: so what comes is found by the number behind the
       last one that is known, or one of the next few if entries have gone meanwhile.
    2. Whatever that misses is found when all is read anew (``read``), which who waits for an entry does now and then.
    3. A checkpoint is kept as long as its entry is there.
    """

    def __init__(self, folder: str, job: str, opened: Callable[[str], Store] = open_store) -> None:
        self._folder, self._job, self._open = folder, job, opened
        self._store: Store | None = None
        #: of the last entry that was read
        self._number = -1
        #: names to what they depend on
        self.pins: dict[str, CheckpointId] = {}
        #: the numbers of the newest checkpoints' entries
        self._manifests: dict[CheckpointId, int] = {}

    def read(self) -> None:
        """Read all. Raises ConfigurationError or StorageError."""
        self._store = self._open(self._folder)
        with naming_log("read", self._folder, self._job):
            entries = read_log(self._store, self._job)
        self.pins, self._manifests = {}, {}
        for entry in entries:
            self._note(entry)

    def follow(self, ahead: int = LOOKAHEAD) -> None:
        """Read what has come: up to ``ahead`` numbers behind the last entry. Raises as ``read`` does."""
        if self._store is None:
            self.read()
            return
        missing = 0
        with naming_log("read", self._folder, self._job):
            while missing < ahead:
                missing += 1
                key = key_of(self._job, self._number + missing)
                if (data := self._store.read(key)) is not None:
                    self._note(_decode(self._job, key, data))
                    missing = 0

    def is_kept(self, checkpoint: CheckpointId) -> bool:
        """Whether the log has the checkpoint. Raises as ``read`` does."""
        if checkpoint not in self._manifests:
            self.read()
        number = self._manifests.get(checkpoint)
        if number is None or self._store is None:
            return False
        with naming_log("read", self._folder, self._job):
            return self._store.read(key_of(self._job, number)) is not None

    def _note(self, entry: LogEntry) -> None:
        self._number = entry.number
        if isinstance(entry, Pinned):
            self.pins[entry.name] = entry.checkpoint
        elif isinstance(entry, Unpinned):
            self.pins.pop(entry.name, None)
        elif isinstance(entry, Manifest):
            self._manifests[entry.checkpoint] = entry.number
            if len(self._manifests) > KNOWN_CHECKPOINTS:
                del self._manifests[next(iter(self._manifests))]
        elif isinstance(entry, Dropped):
            dropped = set(entry.numbers)
            self._manifests = {id: at for id, at in self._manifests.items() if at not in dropped}


class SplitLog:
    """The split sets: entry ``n`` is the key ``<job>/splits/<n>.json``. OSError of the store passes through.

    1. Rows that are too many for an entry lie beside it in ``<job>/splits/data/``, one Arrow IPC file a split. They are
       written first, then the entry, both durably: a set whose entry is there is whole. A file whose entry was never
       written is nobody's; it goes with the folder.
    2. The number of an entry decides: of two callers that feed a job at the same moment one is refused, and takes the
       next.
    3. An entry is sealed, and says the digest of every file that it names; who reads the rows compares it.
    4. The coordinator deletes entries that no restart goes back to, with their files, but never the last one.
    """

    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._folder = f"{safe_name(job)}/splits/"

    def key_of(self, number: int) -> str:
        """The key of an entry."""
        return f"{self._folder}{number:0{_DIGITS}d}.json"

    def data_key(self, name: str) -> str:
        """The key of a split's rows, which is its path below the checkpoint folder."""
        return f"{self._folder}data/{name}.arrow"

    def read(self, start: int) -> tuple[list[SplitEntry], int]:
        """The entries from number ``start`` on, and the number of the oldest that there is (if none, ``start``).
        Raises StorageError if one cannot be read."""
        numbers = self._numbers()
        found = [self._entry(number) for number in numbers if number >= start]
        return [entry for entry in found if entry is not None], min(numbers, default=start)

    def last(self) -> SplitEntry | None:
        """The newest entry."""
        numbers = self._numbers()
        return self._entry(numbers[-1]) if numbers else None

    def create(self, entry: SplitEntry) -> bool:
        """Write the entry unless its number is taken."""
        key, data = self.key_of(entry.at.number), encode_splits(entry)
        return self._store.create(key, data) or self._store.read(key) == data

    def create_data(self, name: str, data: bytes) -> str:
        """Write a split's rows; where they are."""
        key = self.data_key(name)
        if not self._store.create(key, data):
            raise StorageError(f"{key} is there already", "keep other programs out of the checkpoint folder")
        return key

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete entries and their files, oldest first."""
        for number in sorted(numbers):
            with suppress(StorageError):
                entry = self._entry(number)
                for refs in entry.splits.values() if isinstance(entry, SetAdded) else ():
                    for ref in refs:
                        if ref.path.startswith(self._folder):
                            self._store.delete(ref.path)
            self._store.delete(self.key_of(number))

    def _numbers(self) -> list[int]:
        names = (key.removeprefix(self._folder) for key in self._store.list(self._folder))
        return sorted(int(name[:_DIGITS]) for name in names if "/" not in name and name[:_DIGITS].isdigit())

    def _entry(self, number: int) -> SplitEntry | None:
        data = self._store.read(self.key_of(number))
        with decoding(f"{self.key_of(number)} in the checkpoint folder", FROM_A_COPY):
            return None if data is None else decode_splits(data)


MOST_DEATHS = 3
"""In a row: an error that depends on what happens at the same time is not met three times."""


class Deaths:
    """How often the coordinators of a job have died of an error of their own, so that a bug is not restarted for ever.

    1. One that dies of an error in its core leaves a note beside the log: the error, and the newest checkpoint that it
       knew. The next one reads the notes before it does anything.
    2. Notes count while no checkpoint has completed between them. After ``MOST_DEATHS`` in a row the job fails with the
       error.
    3. A job that is started anew (Ray has not restarted the process) begins without notes: it may be another version.
    """

    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._folder = f"{safe_name(job)}/deaths/"

    def note(self, failure: Failure, completed: str) -> None:
        """Remember one. Raises OSError."""
        text = {"message": failure.message, "detail": failure.detail, "completed": completed}
        number = len(self._store.list(self._folder))
        while not self._store.create(f"{self._folder}{number:06d}.json", json.dumps(text).encode()):
            number += 1

    def forget(self) -> None:
        """Begin without notes."""
        for key in self._store.list(self._folder):
            self._store.delete(key)

    def refusal(self) -> Failure | None:
        """Why another coordinator would die as well; None if it may try."""
        notes = [json.loads(self._store.read(key) or b"{}") for key in self._store.list(self._folder)]
        last = notes[-MOST_DEATHS:]
        if len(last) < MOST_DEATHS or any(note.get("completed") != last[-1].get("completed") for note in last):
            return None
        return Failure(
            message=f"{MOST_DEATHS} coordinators of the job died one after the other of an error of their own; the "
            f"last: {last[-1].get('message')}",
            retry=False,
            remedy="report it; another version may go on from the job's last checkpoint",
            detail=str(last[-1].get("detail")),
            kind="InternalError",
        )
