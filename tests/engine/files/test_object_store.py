"""Objects in a bucket: addresses, conditions, lost answers, and the file system that they look like."""

from __future__ import annotations

import os
import pickle
import sys

import pyarrow as pa
import pytest
from pyarrow import fs, parquet

from penstock.engine.core.errors import ConfigurationError
from penstock.engine.files import object_store
from penstock.engine.files.durable import put_file
from penstock.engine.files.object_files import ObjectFiles, files_of
from penstock.engine.files.object_store import Bucket, OtherObjectError, bucket_of
from penstock.engine.files.paths import resolve
from support.bucket_twin import BucketTwin

SCHEMES = ("s3", "gs")


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("address", "bucket", "key"),
    [
        ("s3://b", Bucket("s3", "b"), ""),
        ("gs://b/x/y/", Bucket("gs", "b"), "x/y"),
        ("s3://b/a%23b c#d@e", Bucket("s3", "b"), "a#b c#d@e"),
        ("az://b/a/c", Bucket("az", "b"), "a/c"),
        ("az://me:s%2Ft@b/x", Bucket("az", "b", (("account_key", "s/t"), ("account_name", "me"))), "x"),
        ("s3://k:s%2Ft@b/x", Bucket("s3", "b", (("access_key_id", "k"), ("secret_access_key", "s/t"))), "x"),
        ("s3://anonymous@b/x", Bucket("s3", "b", (("skip_signature", "true"),)), "x"),
        ("s3://b/x?region=eu-west-1", Bucket("s3", "b", (("region", "eu-west-1"),)), "x"),
        ("s3://b?scheme=http&endpoint_override=h%3A90", Bucket("s3", "b", (("endpoint", "http://h:90"),)), ""),
    ],
)
def test_address_says_what_it_says_to_pyarrow(address: str, bucket: Bucket, key: str) -> None:
    assert bucket_of(address) == (bucket, key)
    assert "s/t" not in repr(bucket)


@pytest.mark.parametrize("address", ["/data", "hdfs://host/x", "file:///x", "s3:/b"])
def test_what_is_in_no_bucket_is_left_to_others(address: str) -> None:
    assert bucket_of(address) is None


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("s3://", "names no bucket"),
        ("s3:///x", "names no bucket"),
        ("s3://b?retries=1", "unknown: retries"),
        ("gs://b?region=x", "unknown: region"),
        ("gs://k:s@b/x", "holds credentials"),
        ("s3://b/x//y", "has a part '' between slashes"),
        ("gs://b/x/./y", "has a part '.' between slashes"),
        ("s3://b/../y", "has a part '..' between slashes"),
        ("s3://k:s@b/x/%2E%2E/y", "s3://b/x/../y has a part"),
        ("s3://b c/x", "'b c' is no bucket's name"),
        ("gs://b\n/x", "is no bucket's name"),
        ("s3://k:s@bücket/x", "'bücket' is no bucket's name"),
    ],
)
def test_address_that_cannot_be_meant_is_refused(address: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        bucket_of(address)


def test_missing_library_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigurationError, match="obstore, which is not installed") as caught:
        Bucket("s3", "b").read("x")
    assert caught.value.remedy == 'pip install "penstock[stores]"'


# ---------------------------------------------------------------- conditions


@pytest.fixture(params=SCHEMES)
def store(request: pytest.FixtureRequest, bucket: str) -> Bucket:
    return Bucket(request.param, bucket)


def test_put_whose_answer_was_lost_is_known_for_ones_own(buckets: BucketTwin, store: Bucket) -> None:
    lost: list[str] = []

    def lose_first(method: str, key: str, done: bool) -> bool:
        if method == "PUT" and done and not lost:
            lost.append(key)
            return True
        return False

    buckets.faults = lose_first
    assert store.create("owner", b"mine") is True
    assert [status for method, _, status in buckets.requests if method == "PUT"] == [200, 412]
    assert store.create("owner", b"mine") is False


def test_put_that_never_arrived_is_not_taken_for_somebody_elses(buckets: BucketTwin, store: Bucket) -> None:
    tries: list[str] = []

    def lose_first(method: str, key: str, done: bool) -> bool:
        if method == "PUT" and not done and not tries:
            tries.append(key)
            buckets.put(key, b"theirs")
            return True
        return False

    buckets.faults = lose_first
    assert store.create("owner", b"theirs") is False, "the same bytes, by somebody else"


def test_put_that_is_refused_for_another_of_which_nothing_is_left_is_tried_again(
    buckets: BucketTwin, store: Bucket
) -> None:
    answers = iter([409, 409])
    buckets.faults = lambda method, key, done: next(answers, False) if method == "PUT" and not done else False
    assert store.create("owner", b"mine") is True
    buckets.faults = lambda method, key, done: 409 if method == "PUT" and not done else False
    with pytest.raises(OSError, match="others create and delete it"):
        store.create("another", b"mine")


def test_store_that_stays_silent_is_an_os_error(
    buckets: BucketTwin, store: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_RETRIES", {"max_retries": 0})
    buckets.faults = lambda method, key, done: True
    with pytest.raises(OSError, match="owner"):
        store.create("owner", b"mine")


@pytest.mark.parametrize("pinned", [True, False])
def test_object_that_is_exchanged_while_it_is_read_gives_no_byte_of_the_other(
    buckets: BucketTwin, store: Bucket, pinned: bool
) -> None:
    size = 6 * 1024 * 1024
    buckets.put(f"{store.name}/x", b"a" * size)
    found = store.head("x")
    assert found is not None
    files = ObjectFiles(store)
    path = f"{store.name}/x"
    filesystem = files.pin(path, found.version, found.size) if pinned else fs.PyFileSystem(files)
    with filesystem.open_input_file(path) as file:
        assert file.read(10) == b"a" * 10
        buckets.put(path, b"b" * size)
        file.seek(size - 10)
        with pytest.raises(OtherObjectError, match="x is another object now"):
            file.read(10)


def test_refusals_are_os_errors_with_their_numbers(buckets: BucketTwin, store: Bucket) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        store.read("none")
    assert caught.value.filename == "none"
    with pytest.raises(FileNotFoundError):
        fs.PyFileSystem(ObjectFiles(store)).open_input_file(f"{store.name}/none")


# ---------------------------------------------------------------- as a file system


@pytest.fixture
def place(store: Bucket) -> tuple[fs.FileSystem, str]:
    return resolve(f"{store.scheme}://{store.name}/some")


def test_names_come_back_as_they_were_given(buckets: BucketTwin, place: tuple[fs.FileSystem, str]) -> None:
    filesystem, folder = place
    name = f"{folder}/key=a b/c#d%20e+f?g&é.parquet"
    table = pa.table({"n": range(1000)})
    parquet.write_table(table, name, filesystem=filesystem)
    assert list(buckets.below(folder)) == [name]
    (info,) = filesystem.get_file_info(fs.FileSelector(f"{folder}/key=a b"))
    assert (info.path, info.size) == (name, len(buckets.objects[name].data))
    assert parquet.read_table(name, filesystem=filesystem, partitioning=None).equals(table)


def test_listings_come_in_pages_and_know_folders(buckets: BucketTwin, place: tuple[fs.FileSystem, str]) -> None:
    filesystem, folder = place
    buckets.page = 3
    for number in range(10):
        put_file(filesystem, f"{folder}/a/{number}", b"x")
    put_file(filesystem, f"{folder}/b/c/d", b"x")
    put_file(filesystem, f"{folder}er/no", b"x")
    buckets.put(f"{folder}/b/", b"")  # as consoles make a folder
    below = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
    files = [info.path for info in below if info.type == fs.FileType.File]
    assert sorted(files) == sorted([f"{folder}/a/{number}" for number in range(10)] + [f"{folder}/b/c/d"])
    assert {info.path for info in below} - set(files) == {f"{folder}/{name}" for name in ("a", "b", "b/c")}
    inside = filesystem.get_file_info(fs.FileSelector(folder))
    assert sorted((info.base_name, info.type) for info in inside) == [
        ("a", fs.FileType.Directory),
        ("b", fs.FileType.Directory),
    ]
    kinds = [
        info.type.name for info in filesystem.get_file_info([f"{folder}/{name}" for name in ("a", "b", "c", "a/1")])
    ]
    assert kinds == ["Directory", "Directory", "NotFound", "File"]


def test_missing_folder_is_told_if_that_is_asked(buckets: BucketTwin, place: tuple[fs.FileSystem, str]) -> None:
    filesystem, folder = place
    assert filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True)) == []
    with pytest.raises(FileNotFoundError):
        filesystem.get_file_info(fs.FileSelector(folder))


def test_object_in_parts_is_visible_when_it_is_complete(
    buckets: BucketTwin, place: tuple[fs.FileSystem, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 5 * 1024 * 1024)
    filesystem, folder = place
    data = os.urandom(12 * 1024 * 1024)
    with filesystem.open_output_stream(f"{folder}/large") as stream:
        for begin in range(0, len(data), 1024 * 1024):
            stream.write(data[begin : begin + 1024 * 1024])
        assert buckets.below(folder) == []
    assert buckets.objects[f"{folder}/large"].data == data
    with filesystem.open_input_stream(f"{folder}/large") as stream:
        assert stream.read() == data


@pytest.mark.parametrize("at_once", [True, False])
def test_copies_of_any_size(
    buckets: BucketTwin, place: tuple[fs.FileSystem, str], monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    filesystem, folder = place
    put_file(filesystem, f"{folder}/one", b"x" * 1000)
    if not at_once:
        monkeypatch.setattr(object_store, "COPIED_AT_ONCE", 10)
        monkeypatch.setattr(object_store, "PART_BYTES", 300)
    filesystem.copy_file(f"{folder}/one", f"{folder}/two")
    filesystem.move(f"{folder}/two", f"{folder}/three")
    assert [key.rpartition("/")[2] for key in buckets.below(folder)] == ["one", "three"]
    assert buckets.objects[f"{folder}/three"].data == b"x" * 1000


def test_folders_are_deleted_and_whole_buckets_are_not(buckets: BucketTwin, place: tuple[fs.FileSystem, str]) -> None:
    filesystem, folder = place
    for number in range(3):
        put_file(filesystem, f"{folder}/in/<&{number}", b"")
    put_file(filesystem, f"{folder}/stays", b"")
    filesystem.delete_dir(f"{folder}/in")
    assert buckets.below(folder) == [f"{folder}/stays"]
    with pytest.raises(OSError, match="never emptied"):
        filesystem.delete_dir(folder.partition("/")[0])


def test_file_written_at_once_replaces_the_one_before(buckets: BucketTwin, place: tuple[fs.FileSystem, str]) -> None:
    filesystem, folder = place
    for data in (b"one", b"two"):
        put_file(filesystem, f"{folder}/notice.json", data)
    assert [entry.data for key, entry in buckets.objects.items() if key.startswith(folder)] == [b"two"]


def test_file_system_travels_to_other_processes(place: tuple[fs.FileSystem, str]) -> None:
    filesystem, _ = place
    assert pickle.loads(pickle.dumps(filesystem)) == filesystem
    assert files_of(filesystem) is not None
    assert files_of(fs.LocalFileSystem()) is None
