"""Following the log of a job: the same as reading all of it, at a price that does not grow with the log."""

from __future__ import annotations

from random import Random

import pytest

from penstock.actors.storage.log import LOOKAHEAD, LogTail, create_entry, delete_entries, read_log
from penstock.actors.storage.memory_store import MemoryStore
from penstock.coordinator.model.manifest import Dropped, LogEntry, Manifest, Pinned, Unpinned
from penstock.engine.core.identity import CheckpointId

JOB = "daily"


class CountingStore(MemoryStore):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def read(self, key: str) -> bytes | None:
        self.asked += 1
        return super().read(key)

    def list(self, prefix: str) -> list[str]:
        found = super().list(prefix)
        self.asked += len(found)
        return found


def manifest(number: int) -> Manifest:
    return Manifest(number=number, checkpoint=CheckpointId(1, number), fingerprint="f", parallelism={}, tasks=())


def pinned(number: int, at: int, name: str) -> Pinned:
    return Pinned(number=number, generation=1, checkpoint=CheckpointId(1, at), name=name)


def tail_of(store: MemoryStore) -> LogTail:
    return LogTail("memory", JOB, lambda _: store)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_followed_is_what_is_read(seed: int) -> None:
    random, store = Random(seed), MemoryStore()
    tail, kept, names = tail_of(store), list[int](), list[str]()
    for number in range(60):
        entry: LogEntry = manifest(number)
        choice = random.random()
        if kept and choice < 0.4:
            entry = pinned(number, random.choice(kept), random.choice([*names, f"model {number}"]))
            names.append(entry.name)
        elif names and choice < 0.5:
            entry = Unpinned(number=number, generation=1, name=random.choice(names))
        elif kept and choice < 0.55:
            entry = Dropped(number=number, generation=1, numbers=(kept.pop(0),))
        else:
            kept.append(number)
        create_entry(store, JOB, entry)
        if len(kept) > 2 and random.random() < 0.5:
            delete_entries(store, JOB, [kept.pop(0)])
        if random.random() < 0.4:
            tail.follow()
    tail.follow()
    fresh = tail_of(store)
    fresh.follow()
    assert tail.pins == fresh.pins
    for number in range(60):
        checkpoint = CheckpointId(1, number)
        assert tail.is_kept(checkpoint) is fresh.is_kept(checkpoint) is (number in kept)


def test_price_of_following_does_not_grow_with_the_log() -> None:
    store = CountingStore()
    create_entry(store, JOB, manifest(0))
    for number in range(1, 500):
        create_entry(store, JOB, pinned(number, 0, f"model {number}"))
    tail = tail_of(store)
    tail.follow()
    assert len(tail.pins) == 499
    for number in range(500, 510):
        create_entry(store, JOB, pinned(number, 0, f"model {number}"))
        store.asked = 0
        tail.follow()
        assert tail.pins[f"model {number}"] == CheckpointId(1, 0)
        assert tail.is_kept(CheckpointId(1, 0))
        assert store.asked <= LOOKAHEAD + 2


def test_what_following_misses_is_found_when_all_is_read_or_the_checkpoint_is_not_known() -> None:
    store = MemoryStore()
    create_entry(store, JOB, manifest(0))
    tail = tail_of(store)
    tail.follow()
    for number in range(1, 3 * LOOKAHEAD):
        create_entry(store, JOB, manifest(number))
        delete_entries(store, JOB, [number - 1])
    create_entry(store, JOB, pinned(3 * LOOKAHEAD, 3 * LOOKAHEAD - 1, "model"))
    tail.follow()
    assert not tail.pins
    assert tail.is_kept(CheckpointId(1, 3 * LOOKAHEAD - 1))
    assert tail.pins == {"model": CheckpointId(1, 3 * LOOKAHEAD - 1)}
    assert len(read_log(store, JOB)) == 2
