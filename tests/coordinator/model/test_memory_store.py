"""The log's in-memory twin keeps the promises of every store."""

from __future__ import annotations

import pytest

from support.memory_store import MemoryStore
from support.store_contract import check_store


def test_memory_store_keeps_the_contract_of_a_store() -> None:
    check_store(MemoryStore, concurrent=1)


class Overwriting(MemoryStore):
    def create(self, key: str, data: bytes) -> bool:
        self.delete(key)
        return super().create(key, data)


class Unsorted(MemoryStore):
    def list(self, prefix: str) -> list[str]:
        return sorted(super().list(prefix), reverse=True)


@pytest.mark.parametrize("broken", [Overwriting, Unsorted])
def test_contract_refuses_a_store_that_breaks_it(broken: type[MemoryStore]) -> None:
    with pytest.raises(AssertionError):
        check_store(broken, concurrent=1)
