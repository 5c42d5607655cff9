"""The store of logs and owners, in buckets: the same contract as on disk."""

from __future__ import annotations

import uuid

import pytest

from penstock.actors.storage.stores import BucketStore, checkpoint_folder, open_store, plain_address, store_in
from penstock.coordinator.model.store import Store
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.files.object_store import Bucket
from penstock.engine.files.paths import resolve
from support.bucket_twin import BucketTwin
from support.store_contract import check_store


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("page", [1000, 2])
def test_contract_of_stores(buckets: BucketTwin, bucket: str, scheme: str, page: int) -> None:
    buckets.page = page

    def make() -> Store:
        return BucketStore(Bucket(scheme, bucket), f"some/{uuid.uuid4().hex}")

    check_store(make, concurrent=8 if page > 2 else 1)


def test_store_may_be_a_whole_bucket(buckets: BucketTwin, bucket: str) -> None:
    store = open_store(f"s3://{bucket}/")
    assert store.create("job/log/1", b"x") is True
    assert (store.list(""), store.list("job/"), buckets.below(bucket)) == (
        ["job/log/1"],
        ["job/log/1"],
        [f"{bucket}/job/log/1"],
    )


@pytest.mark.parametrize("key", ["", "/a", "a//b", ".hidden", "a/../b", "a\0"])
def test_keys_that_a_folder_could_not_hold_are_refused(bucket: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be a key"):
        open_store(f"s3://{bucket}").create(key, b"")


def test_outputs_in_buckets_have_a_store_and_on_hdfs_they_have_none(bucket: str) -> None:
    assert isinstance(store_in(*resolve(f"gs://{bucket}/out")), BucketStore)


@pytest.mark.parametrize(
    "url", ["s3://key:secret@b/state", "s3://b/state?region=eu-west-1", "s3://b?endpoint_override=h"]
)
def test_address_that_is_written_down_says_only_where(url: str) -> None:
    for refuse in (checkpoint_folder, lambda given: plain_address(given, "the checkpoint folder")):
        with pytest.raises(ConfigurationError, match="holds more than a place") as caught:
            refuse(url)
        assert "secret" not in str(caught.value)
        assert "environment" in caught.value.remedy
