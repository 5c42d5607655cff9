"""The store of logs and owners on a real S3 server, on good days and on bad ones."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from penstock.actors.storage.log import create_entry, key_of, read_log
from penstock.actors.storage.stores import BucketStore
from penstock.coordinator.model.manifest import Claim
from penstock.coordinator.model.store import Store
from penstock.engine.core.errors import StorageError
from penstock.engine.files import object_store
from penstock.engine.files.object_store import Bucket, store_waits
from support.object_server import SECRET
from support.store_contract import check_store
from support.store_proxy import Asked, Fault, StoreProxy


@pytest.fixture
def store(real_bucket: str) -> BucketStore:
    return BucketStore(Bucket("s3", real_bucket), "some")


def at_first(times: int, fault: Fault, method: str = "") -> Callable[[Asked], Fault]:
    """The fault, for the first requests of a method."""
    left = [times]

    def decide(asked: Asked) -> Fault:
        if (method and asked.method != method) or not left[0]:
            return ""
        left[0] -= 1
        return fault

    return decide


def entry(number: int, owner: str = "one") -> Claim:
    return Claim(number=number, generation=1, job="job", fingerprint="f", owner=owner, uuid="u")


def test_contract_of_stores(real_bucket: str) -> None:
    def make() -> Store:
        return BucketStore(Bucket("s3", real_bucket), f"some/{uuid.uuid4().hex}")

    check_store(make, races=3)


@pytest.mark.parametrize("fault", ["lost request", "lost answer", 500, 503, 429])
def test_whatever_passes_is_waited_for(store: BucketStore, wire: StoreProxy, fault: Fault) -> None:
    """Also what was carried out, of which nobody heard."""
    store.create("job/log/0", b"zero")
    for number, use in enumerate(
        (
            lambda: store.create("job/log/1", b"one"),
            lambda: store.create("job/log/1", b"two"),
            lambda: store.read("job/log/1"),
            lambda: store.list("job/"),
            lambda: store.delete("job/log/0"),
        )
    ):
        wire.fault = at_first(3, fault)
        assert use() == [True, False, b"one", ["job/log/0", "job/log/1"], None][number]
    assert wire.faults == 15
    assert store.list("") == ["job/log/1"]


def test_put_that_is_not_answered_in_time_is_repeated(
    store: BucketStore, wire: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a conditional put the library does not know whether it may be repeated; we do, by its nonce."""
    monkeypatch.setattr(object_store, "CLIENT", {"timeout": "300ms"})
    object_store._client.cache_clear()
    wire.fault = at_first(1, "silent", "PUT")
    assert store.create("job/log/0", b"zero") is True
    object_store._client.cache_clear()


def test_write_that_lands_late_takes_nobodys_place(store: BucketStore, wire: StoreProxy) -> None:
    """The first coordinator's entry hangs in the network, a second one writes the same number, then the first lands."""
    assert create_entry(store, "job", entry(0)) == "stored"
    wire.fault = at_first(1, "late", "PUT")
    assert create_entry(store, "job", entry(1)) == "stored", "by the next try, which was faster"
    once = at_first(1, "late", "PUT")
    wire.fault = lambda asked: once(asked) or 403
    with pytest.raises(PermissionError):
        create_entry(store, "job", entry(2, "stale"))
    wire.fault = lambda asked: ""
    assert create_entry(store, "job", entry(2, "new")) == "stored"
    assert wire.land() == [412, 412]
    assert read_log(store, "job")[-1] == entry(2, "new")


def test_list_that_lags_shows_no_end_that_is_none(store: BucketStore, wire: StoreProxy) -> None:
    """Not what stores promise today, and not needed: what stands behind the last listed entry is asked for by name."""
    for number in range(3):
        assert create_entry(store, "job", entry(number)) == "stored"
    assert len(read_log(store, "job")) == 3
    wire.lag()
    for number in range(3, 6):
        assert create_entry(store, "job", entry(number)) == "stored"
    assert len(store.list("job/log/")) == 3, "it lags"
    assert read_log(store, "job") == [entry(number) for number in range(6)]
    store.delete(key_of("job", 0))
    with pytest.raises(StorageError, match="changes faster than it can be read"):
        read_log(store, "job")  # an entry that is listed and gone: what came after it may not be known


def test_who_waits_for_a_store_says_so_and_names_it(
    store: BucketStore, wire: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("job/log/0", b"zero")
    monkeypatch.setattr(object_store, "SLOW_SECONDS", 0.0)
    said: list[str] = []

    def gone(asked: Asked) -> Fault:
        said.extend(store_waits())
        return 503 if len(said) < 3 else ""

    wire.fault = gone
    assert store.read("job/log/0") == b"zero"
    assert "has not answered for" in said[0]
    assert store_waits() == []


def test_store_that_never_answered_is_an_error_soon_without_secrets(real_bucket: str, wire: StoreProxy) -> None:
    wire.fault = lambda asked: 503
    elsewhere = Bucket("s3", "never-asked", (("access_key_id", "me"), ("secret_access_key", "hidden-secret")))
    with pytest.raises(OSError, match="503 Service Unavailable") as caught:
        list(elsewhere.below("some"))
    told = f"{caught.value!r} {caught.value.__cause__!r}"
    assert not any(word in told for word in (SECRET, "hidden-secret", "?", "prefix="))
    assert caught.value.__suppress_context__


def test_bucket_that_is_not_there_is_said(real_bucket: str) -> None:
    with pytest.raises(OSError, match="the store has no such bucket"):
        list(Bucket("s3", "no-such-bucket-here").below(""))
