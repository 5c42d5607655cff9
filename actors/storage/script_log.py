"""The log of a job as scripts read it: by its folder, and what the store refuses is told in words.

The coordinator reads by ``log`` itself: it makes an event of an OSError, and tries again. A script has nobody to do
that for it, so its user reads which log it was, what the store said, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from ...coordinator.model.manifest import LogEntry
from ...engine.files.paths import storage_error
from .log import create_entry, read_log
from .opening import open_store


def read_log_in(folder: str, job: str) -> list[LogEntry]:
    """The entries that count of the job's log in a checkpoint folder, in order (``read_log``). Raises
    ConfigurationError or StorageError."""
    store = open_store(folder)
    with _told("read", folder, job):
        return read_log(store, job)


def create_entry_in(folder: str, job: str, entry: LogEntry) -> Literal["stored", "refused"]:
    """Create the entry in the job's log unless its number is taken by another one. Raises ConfigurationError, or
    StorageError: then it may stand or not."""
    store = open_store(folder)
    with _told("write into", folder, job):
        return create_entry(store, job, entry)


@contextmanager
def _told(action: str, folder: str, job: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        file = str(error.filename or "")
        place = file if file.startswith(f"{folder.rstrip('/')}/") else folder
        raise storage_error(f"{action} the log of job {job!r} in", place, error) from error
