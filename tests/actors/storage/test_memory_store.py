"""A log in memory keeps the promises of every store, and stands for a folder's until that goes."""

from __future__ import annotations

import os

import pytest

from penstock.actors.claims.place import ALIVE, temporary_place
from penstock.actors.storage.memory_store import MemoryStore, keep_log_in_memory, log_in_memory
from penstock.actors.storage.stores import may_hold_log, open_store
from support.store_contract import check_store


def test_memory_store_keeps_the_contract_of_a_store() -> None:
    check_store(MemoryStore)


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


def test_log_of_a_folder_is_in_memory_until_the_folder_goes() -> None:
    place = temporary_place()
    try:
        keep_log_in_memory(place.folder)
        assert not may_hold_log(f"{place.folder}-other/job")
        assert open_store(place.folder).create("job/log/0", b"x")
        assert may_hold_log(f"{place.folder}/job")
        assert open_store(place.folder).read("job/log/0") == b"x"
        assert os.listdir(place.folder) == [ALIVE]
    finally:
        place.release()
    assert log_in_memory(place.folder) is None
