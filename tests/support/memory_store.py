"""The in-memory twin of the log's storage: for tests, and for jobs without a checkpoint folder."""

from __future__ import annotations


class MemoryStore:
    """A ``penstock.coordinator.model.store.Store`` in a dictionary. One process, one thread at a time."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}

    def create(self, key: str, data: bytes) -> bool:
        if key in self._data:
            return False
        self._data[key] = bytes(data)
        return True

    def read(self, key: str) -> bytes | None:
        return self._data.get(key)

    def list(self, prefix: str) -> list[str]:
        return sorted(key for key in self._data if key.startswith(prefix))

    def delete(self, key: str) -> None:
        self._data.pop(key, None)
