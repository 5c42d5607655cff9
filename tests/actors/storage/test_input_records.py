"""The record of a job's inputs on storage."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import ipc

from penstock.actors.storage.input_records import (
    RecordedInputs,
    decode_inputs,
    encode_inputs,
    inputs_key,
    read_inputs,
    store_inputs,
)
from penstock.actors.storage.stores import FileStore
from penstock.engine.core.errors import StorageError
from penstock.engine.files.listing import InputFile

RECORDED = RecordedInputs(
    {"rows": (InputFile("a", 1, 2, "whole:x"), InputFile("b", 3, added=True)), "none": ()}, {"mine": "1"}, ("before",)
)


def test_record_is_read_back_as_it_was_written() -> None:
    for recorded in (RECORDED, RecordedInputs()):
        assert decode_inputs(encode_inputs(recorded), "here") == recorded


def test_versions_of_objects_are_recorded() -> None:
    recorded = RecordedInputs({"rows": (InputFile("a", 1, 2, version='"tag"'), InputFile("b", 3))})
    assert decode_inputs(encode_inputs(recorded), "here") == recorded


def test_record_without_versions_is_written_as_before_so_that_it_keeps_its_digest() -> None:
    schema = ipc.open_file(encode_inputs(RECORDED)).schema
    assert schema.names == ["source", "id", "size", "modified", "content", "added"]
    assert b'"format":1' in schema.metadata[b"penstock.inputs"]


def test_record_of_many_files_is_small() -> None:
    many = tuple(InputFile(f"year=2024/part-{n:05d}.parquet", 10_000 + n, n, f"ends:{n:032x}") for n in range(10_000))
    assert len(encode_inputs(RecordedInputs({"rows": many}))) < 40 * len(many)


def test_same_record_is_stored_once(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    names = [store_inputs(store, "job", RECORDED) for _ in range(2)]
    assert names[0] == names[1]
    assert store.list("") == [inputs_key("job", names[0])]


@pytest.mark.parametrize("at", [0, 100, -1])
def test_damaged_record_is_named(tmp_path: Path, at: int) -> None:
    name = store_inputs(FileStore(tmp_path), "job", RECORDED)
    path = tmp_path / inputs_key("job", name)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match=f"{path} cannot be read: its bytes are not those that were written"):
        read_inputs(str(path), name)


def test_record_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"{tmp_path}/gone: No such file"):
        read_inputs(f"{tmp_path}/gone", "x")


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(StorageError, match="here cannot be read"):
        decode_inputs(b"something", "here")
