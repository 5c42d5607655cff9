"""A log that goes with its process: for a job that nothing can be gone on from, and that nobody else asks about."""

from __future__ import annotations

from threading import Lock

from ...coordinator.model.store import Store


class MemoryStore:
    """A :class:`Store` in a dictionary. Safe to use from several threads."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}
        self._lock = Lock()

    def create(self, key: str, data: bytes) -> bool:
        """Create ``key`` unless it exists."""
        with self._lock:
            if key in self._data:
                return False
            self._data[key] = bytes(data)
            return True

    def read(self, key: str) -> bytes | None:
        """The bytes of ``key``, or None if there is none."""
        return self._data.get(key)

    def list(self, prefix: str) -> list[str]:
        """All keys that begin with ``prefix``, sorted."""
        return sorted(key for key in list(self._data) if key.startswith(prefix))

    def delete(self, key: str) -> None:
        """Delete ``key``; nothing happens if it does not exist."""
        self._data.pop(key, None)


_KEPT: dict[str, Store] = {}
"""By the folder whose log it is. What is not of the log, a large state say, lies in the folder itself."""


def keep_log_in_memory(folder: str) -> None:
    """The log of this folder is kept here, until it is ``dropped``."""
    _KEPT[folder] = MemoryStore()


def drop_log(folder: str) -> None:
    """The folder is gone, or about to go."""
    _KEPT.pop(folder, None)


def log_in_memory(folder: str) -> Store | None:
    """The log of this folder, if it is kept here."""
    return _KEPT.get(folder)
