"""The error of a stored file that cannot be read: which one it is, what is wrong, and the way on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ...coordinator.model.records import FormatError
from ...engine.core.errors import DamagedFileError, StorageError
from ...engine.integrity.checksums import digest

FROM_A_COPY = "restore that file from a copy"
GO_ON = f"{FROM_A_COPY}, or start with an empty checkpoint folder from a savepoint (from_snapshot=)"
"""For what belongs to a checkpoint."""
START_ELSEWHERE = f"{FROM_A_COPY}, or start from another savepoint or checkpoint"
"""For what belongs to the snapshot that a job starts from."""


def unreadable(place: str, error: Exception, way_on: str) -> StorageError:
    """The error of a record that does not decode."""
    if isinstance(error, FormatError):
        remedy = "run the job with the version of Penstock that wrote it, or start over with empty folders"
        return DamagedFileError(f"{place} cannot be read: {error}", remedy)
    return DamagedFileError(f"{place} cannot be read: {error}", way_on)


@contextmanager
def decoding(place: str, way_on: str) -> Iterator[None]:
    """A record that does not decode inside is the error :func:`unreadable` of its place."""
    try:
        yield
    except msgspec.MsgspecError as error:
        raise unreadable(place, error, way_on) from error


def check_bytes(place: str, data: bytes, length: int, expected: str, way_on: str) -> None:
    """Raise DamagedFileError unless these are the bytes that were written. ``data``: anything with the buffer
    protocol; ``expected``: their digest."""
    size = memoryview(data).nbytes
    if size != length:
        raise DamagedFileError(f"{place} cannot be read: it has {size} bytes, and {length} were written", way_on)
    if digest(data) != expected:
        raise DamagedFileError(f"{place} cannot be read: its bytes are not those that were written", way_on)
