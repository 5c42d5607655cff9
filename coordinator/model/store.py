"""The log's storage, as the coordinator's shell needs it.

Implementations: those in ``actors/storage``; one of them is in memory. All pass the same contract tests.
"""

from __future__ import annotations

from typing import Protocol


class Store(Protocol):
    """Keys to bytes, created once and never changed. Keys are relative paths with ``/``.

    Guarantees:

    1. ``create`` is atomic: of several creators of one key at most one gets True, and a reader never sees a part.
    2. What was created stays until ``delete``, also when the creator dies right after.
    3. ``list`` shows every key whose ``create`` returned True before the call began.
    4. Anything else that goes wrong raises ``OSError``; after that it is unknown whether the write happened.
    """

    def create(self, key: str, data: bytes) -> bool:
        """Create ``key`` unless it exists. True: created by this call. False: it exists."""

    def read(self, key: str) -> bytes | None:
        """The bytes of ``key``, or None if there is none."""

    def list(self, prefix: str) -> list[str]:
        """All keys that begin with ``prefix``, sorted."""

    def delete(self, key: str) -> None:
        """Delete ``key``; nothing happens if it does not exist."""
