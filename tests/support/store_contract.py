"""What every :class:`penstock.coordinator.model.store.Store` must do, whatever it stores in."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.coordinator.model.store import Store

KEY = "job/log/000000000000"


def check_store(make: Callable[[], Store], concurrent: int = 8, races: int = 20) -> None:
    """Run every check, each on a new, empty store. ``concurrent``: threads that race for one key; 1 for none."""
    _check_create_and_read(make())
    _check_keys(make())
    _check_delete(make())
    if concurrent > 1:
        for _ in range(races):
            _check_race(make(), concurrent)


def _check_create_and_read(store: Store) -> None:
    assert store.read(KEY) is None
    assert store.list("") == []
    assert store.create(KEY, b"first") is True
    assert store.create(KEY, b"second") is False, "a key is created once"
    assert store.create(KEY, b"first") is False, "also with the same content"
    assert store.read(KEY) == b"first"
    assert store.create("job/log/000000000001", b"") is True
    assert store.read("job/log/000000000001") == b"", "an empty entry is not a missing one"
    large = bytes(range(256)) * 4096
    assert store.create("job/log/000000000002", large) is True
    assert store.read("job/log/000000000002") == large


def _check_keys(store: Store) -> None:
    keys = ["b/log/2", "a/log/2", "a/log/10", "a/log/1", "a/other"]
    for key in keys:
        assert store.create(key, key.encode()) is True
    assert store.list("a/log/") == ["a/log/1", "a/log/10", "a/log/2"], "sorted as text, below the prefix only"
    assert store.list("") == sorted(keys)
    assert store.list("c/") == []
    assert [store.read(key) for key in keys] == [key.encode() for key in keys]


def _check_delete(store: Store) -> None:
    assert store.create(KEY, b"old") is True
    store.delete(KEY)
    store.delete(KEY)
    assert store.read(KEY) is None
    assert store.list("") == []
    assert store.create(KEY, b"new") is True
    assert store.read(KEY) == b"new"


def _check_race(store: Store, threads: int) -> None:
    """Of several creators of one key exactly one wins, and its content is what stands."""
    contents = [f"content {number}".encode() * 50 for number in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        won = list(pool.map(lambda content: store.create(KEY, content), contents))
    assert won.count(True) == 1, won
    assert store.read(KEY) == contents[won.index(True)]
