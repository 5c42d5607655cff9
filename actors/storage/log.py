"""The log of a job in a store: entry ``n`` is the key ``<job>/log/<n>.json``.

Rules:

1. Numbers have twelve digits, so the order of keys is the order of entries.
2. Entries may have been deleted, so numbers may be missing; each entry that is there carries its own number. Whether
   what is left is enough is decided by who reads it. An entry that is deleted between the listing and its reading was
   followed by others that the listing may not show: then all is listed again.
3. An entry that exists with exactly our bytes is ours: the reply to the first try was lost.
4. An entry that is damaged, or of another format, is an error that names it; it is never left out.
5. OSError of the store passes through; whoever performs the command makes an event of it. Scripts: ``script_log``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ...coordinator.model.manifest import LogEntry, decode, encode, split_dropped
from ...coordinator.model.store import Store
from ...engine.core.errors import StorageError
from ...engine.files.paths import safe_name
from .damage import GO_ON, unreadable

_DIGITS = 12

LISTINGS = 20
"""Times that the log is listed anew: entries go once a checkpoint, and reading them takes a moment."""


def key_of(job: str, number: int) -> str:
    """The key of an entry."""
    return f"{_folder(job)}{number:0{_DIGITS}d}.json"


def read_log(store: Store, job: str) -> list[LogEntry]:
    """The entries of the job's log that count, in order: without checkpoints that an ending has dropped and not deleted
    yet. Raises StorageError if one cannot be read."""
    return split_dropped(read_entries(store, job))[0]


def read_entries(store: Store, job: str) -> list[LogEntry]:
    """All entries of the job's log, in order, as they stood at one moment. Raises StorageError if that fails."""
    known: dict[str, bytes] = {}
    for _ in range(LISTINGS):
        keys = store.list(_folder(job))
        known.update({key: data for key in keys if key not in known and (data := store.read(key)) is not None})
        if all(key in known for key in keys):
            return [_decode(job, key, known[key]) for key in keys]
    raise StorageError(
        f"the log of job {job!r} changes faster than it can be read",
        "find out who deletes files in the checkpoint folder; only the job's own coordinator may",
    )


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
    try:
        entry = decode(data)
    except msgspec.MsgspecError as error:
        raise unreadable(f"{key} in the checkpoint folder", error, GO_ON) from error
    if key != key_of(job, entry.number):
        raise StorageError(
            f"the log of job {job!r} is broken: {key} holds entry {entry.number}",
            "put the files back under their own names, or start over with an empty checkpoint folder",
        )
    return entry
