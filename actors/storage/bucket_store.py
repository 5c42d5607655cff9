"""The log's store in a bucket: a key is an object, created by a conditional put.

Rules:

1. The store decides: of several puts with ``If-None-Match: *`` one makes the object, whole.
2. A put whose reply was lost is told from somebody else's (``engine.files.object_store``, rule 3).
3. Keys are those that the store on a file system takes too: a folder can be copied from one to the other.
"""

from __future__ import annotations

from ...engine.core.errors import ConfigurationError
from ...engine.files.object_store import Bucket


class BucketStore:
    """The objects below a folder of a bucket as a :class:`penstock.coordinator.model.store.Store`."""

    def __init__(self, bucket: Bucket, folder: str) -> None:
        self._bucket = bucket
        self._root = f"{folder}/" if folder else ""

    def create(self, key: str, data: bytes) -> bool:
        """Create ``key`` unless it exists."""
        return self._bucket.create(self._object(key), data)

    def read(self, key: str) -> bytes | None:
        """The bytes of ``key``, or None if there is none."""
        try:
            return self._bucket.read(self._object(key))
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> list[str]:
        """All keys that begin with ``prefix``, sorted."""
        below = f"{self._root}{prefix}".rpartition("/")[0]  # the store lists whole folders
        keys = (found.key.removeprefix(self._root) for found in self._bucket.below(below))
        return sorted(key for key in keys if key.startswith(prefix) and not _is_hidden(key))

    def delete(self, key: str) -> None:
        """Delete ``key``; nothing happens if it does not exist."""
        self._bucket.delete(self._object(key))

    def _object(self, key: str) -> str:
        if "\0" in key or any(not part or part.startswith(".") for part in key.split("/")):
            raise ConfigurationError(
                f"{key!r} cannot be a key of the checkpoint folder",
                "a key is a relative path; none of its parts may be empty or begin with a dot",
            )
        return self._root + key


def _is_hidden(key: str) -> bool:
    return any(part.startswith(".") for part in key.split("/"))
