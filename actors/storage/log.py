"""The log of a job in a store: entry ``n`` is the key ``<job>/log/<n>.json``.

Rules:

1. Numbers have twelve digits, so the order of keys is the order of entries.
2. Entries may have been deleted, so numbers may be missing; each entry that is there carries its own number. Whether
   what is left is enough is decided by who reads it.
3. An entry that exists with exactly our bytes is ours: the reply to the first try was lost.
4. An entry that is damaged, or of another format, is an error that names it; it is never left out.
5. OSError of the store passes through; whoever performs the command makes an event of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ...coordinator.manifest import LogEntry, decode, encode
from ...coordinator.store import Store
from ...engine.errors import StorageError
from ...engine.sources.files import safe_name
from .damage import GO_ON, unreadable

_DIGITS = 12


def key_of(job: str, number: int) -> str:
    """The key of an entry."""
    return f"{_folder(job)}{number:0{_DIGITS}d}.json"


def read_log(store: Store, job: str) -> list[LogEntry]:
    """All entries of the job's log, in order. Raises StorageError if one cannot be read."""
    entries: list[LogEntry] = []
    for key in store.list(_folder(job)):
        # a coordinator that runs meanwhile may delete an entry between the listing and the reading
        if (data := store.read(key)) is not None:
            entries.append(_decode(key, data))
            if key != key_of(job, entries[-1].number):
                raise StorageError(
                    f"the log of job {job!r} is broken: {key} holds entry {entries[-1].number}",
                    "put the files back under their own names, or start over with an empty checkpoint folder",
                )
    return entries


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


def _decode(key: str, data: bytes) -> LogEntry:
    try:
        return decode(data)
    except msgspec.MsgspecError as error:
        raise unreadable(f"{key} in the checkpoint folder", error, GO_ON) from error
