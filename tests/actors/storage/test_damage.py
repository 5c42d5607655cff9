"""Any bit of any stored file turned, any file cut short: the same value, or an error of ours that names the file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.actors.claims.savepoints import FILE, SavepointFiles, prepared_for_savepoints, read_savepoint
from penstock.actors.feed.discovery import EndNotice, FeedDiscovery
from penstock.actors.feed.models import ModelBook, ModelRecord
from penstock.actors.spark.stage import find_stage, stage_with
from penstock.actors.spark.staged_splits import StagedPartition
from penstock.actors.storage.digest_files import DigestFiles
from penstock.actors.storage.input_records import RecordedInputs, inputs_key, read_inputs, store_inputs
from penstock.actors.storage.log import SplitLog, create_entry, read_log
from penstock.actors.storage.snapshots import SnapshotFiles
from penstock.actors.storage.stores import FileStore
from penstock.actors.transport.dialling import Endpoint
from penstock.coordinator.checkpoint.finalizer import make_savepoint
from penstock.coordinator.model.commands import CopySavepoint, StoreSavepoint
from penstock.coordinator.model.events import Failure
from penstock.coordinator.model.manifest import Claim, Ended, LogEntry, Manifest, Pinned, TaskState, Unpinned
from penstock.coordinator.model.records import encode_record
from penstock.coordinator.model.split_sets import NoMoreSets, SetAdded, SetPosition, SplitRef, WindowEnded
from penstock.engine.core.errors import DamagedFileError, PenstockError
from penstock.engine.core.identity import Attempt, CheckpointId, Committable, StateHandle, TaskId
from penstock.engine.exchange.flight import Flight
from penstock.engine.feed.digests import DigestRun
from penstock.engine.files.listing import InputFile
from penstock.engine.integrity.checksums import digest
from penstock.engine.sources.fed import IPC, FileSplit
from support.damage import flipped
from support.forgetful_disk import ForgetfulDisk

JOB, TASK, CHECKPOINT, ATTEMPT = "job", TaskId("a", 0), CheckpointId(1, 3), Attempt(1, 1)
TABLE = pa.table({"__lane": pa.array([0, 1], pa.int32()), "rows": [7, 8], "text": ["one", None]})
HANDLE = StateHandle("read", "job/state/a-00000/x.arrow", 10, 1, digest="0" * 32)
COMMITTABLE = Committable("write", 3, {"files": [{"rows": 3, "final": "part-1", "bytes": 9}]})
MANIFEST = Manifest(
    number=2,
    checkpoint=CHECKPOINT,
    fingerprint="f",
    parallelism={"a": 1},
    tasks=(TaskState(task=TASK, state=(HANDLE,), committables=(COMMITTABLE,)),),
)


@dataclass(frozen=True)
class Stored:
    """A file, what it is known by in an error, and what reads it."""

    path: Path
    name: str
    read: Callable[[], Any]
    in_parts: bool = False


def state_file(folder: Path) -> Stored:
    files = SnapshotFiles(str(folder), JOB, inline=0)
    (handle,) = files.write(TASK, CHECKPOINT, ATTEMPT, {"read": TABLE})
    return Stored(folder / handle.location, handle.location, lambda: files.read([handle]), True)


def flight_file(folder: Path) -> Stored:
    files = SnapshotFiles(str(folder), JOB, inline=0)
    (handle,) = files.write(TASK, CHECKPOINT, ATTEMPT, {}, Flight(b"where each thing stood"))
    return Stored(folder / handle.location, handle.location, lambda: files.read_flights([handle]), True)


def savepoint_order(folder: Path) -> tuple[StateHandle, StoreSavepoint]:
    (handle,) = SnapshotFiles(str(folder), JOB, inline=0).write(TASK, CHECKPOINT, ATTEMPT, {"read": TABLE})
    manifest = Manifest(
        number=7,
        checkpoint=CHECKPOINT,
        fingerprint="f",
        parallelism={"a": 1},
        tasks=(TaskState(task=TASK, state=(handle,)),),
        kind="savepoint",
    )
    return handle, StoreSavepoint(CHECKPOINT, str(folder / "saved"), *make_savepoint(manifest))


def take(folder: Path, order: StoreSavepoint) -> None:
    files = SavepointFiles(str(folder), JOB)
    files.copy(CopySavepoint(order.checkpoint, order.location, order.manifest, order.copies))
    files.store(order)


def savepoint(folder: Path) -> Stored:
    take(folder, savepoint_order(folder)[1])
    return Stored(folder / "saved" / FILE, f"saved/{FILE}", lambda: read_savepoint(str(folder / "saved")))


def savepoint_note(folder: Path) -> Stored:
    take(folder, savepoint_order(folder)[1])
    path = folder / JOB / "savepoints" / f"{CHECKPOINT}.json"
    return Stored(path, path.name, lambda: prepared_for_savepoints(str(folder), JOB))


def savepoint_part(folder: Path) -> Stored:
    _, order = savepoint_order(folder)
    take(folder, order)
    (part,) = order.manifest.tasks[0].state
    files = SnapshotFiles(order.location, JOB)
    return Stored(Path(order.location) / part.location, part.location, lambda: files.read([part]), True)


def file_that_a_savepoint_copies(folder: Path) -> Stored:
    handle, order = savepoint_order(folder)

    def copy_and_read() -> Any:
        shutil.rmtree(order.location, ignore_errors=True)  # a file that grew may have been copied
        take(folder, order)
        return SnapshotFiles(order.location, JOB).read(order.manifest.tasks[0].state)

    return Stored(folder / handle.location, handle.location, copy_and_read, True)


def log_entry(entry: LogEntry) -> Callable[[Path], Stored]:
    def make(folder: Path) -> Stored:
        store = FileStore(folder)
        create_entry(store, JOB, entry)
        (key,) = store.list("")
        return Stored(folder / key, key, lambda: read_log(store, JOB))

    return make


def split_entry(entry: SetAdded | WindowEnded | NoMoreSets) -> Callable[[Path], Stored]:
    def make(folder: Path) -> Stored:
        log = SplitLog(FileStore(folder), JOB)
        log.create(entry)
        key = log.key_of(entry.at.number)
        return Stored(folder / key, key, lambda: log.read(0))

    return make


def split_rows(folder: Path) -> Stored:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    data = sink.getvalue().to_pybytes()
    key = SplitLog(FileStore(folder), JOB).create_data("rows", data)
    split = FileSplit("rows/0", str(folder / key), IPC, TABLE.schema, 2, digest(data))
    return Stored(folder / key, key, lambda: pa.Table.from_batches(split.open(0)))


def model(folder: Path) -> Stored:
    book = ModelBook(str(folder), JOB)
    book.write(ModelRecord(model="m", feed="f", step=9, batch_size=4, checkpoint=CHECKPOINT, fingerprint="p"))
    (path,) = (folder / JOB / "models").iterdir()
    return Stored(path, path.name, lambda: (book.read("f", "m"), book.records("f")))


def notice_of_a_server(folder: Path) -> Stored:
    notices = FeedDiscovery(str(folder), JOB, "run")
    notices.publish("f", Endpoint("x", "127.0.0.1", 99))
    return Stored(folder / JOB / "feeds" / "f.json", "feeds/f.json", lambda: notices.server("f"))


def notice_of_an_end(folder: Path) -> Stored:
    notices = FeedDiscovery(str(folder), JOB, "run")
    notices.publish_end(EndNotice("run", True, Failure("over", retry=False)))
    return Stored(folder / JOB / "feeds" / "over.json", "feeds/over.json", notices.end_of_run)


def digests_of_a_feed(folder: Path) -> Stored:
    files = DigestFiles(str(folder), JOB, "f")
    files.record(DigestRun(0, np.arange(5, dtype=np.uint64)), 32)
    (path,) = (folder / JOB / "feeds" / "f").iterdir()

    def read() -> Any:
        recorded, batch_size = files.read()
        return recorded.batches.tolist(), recorded.digests.tolist(), batch_size

    return Stored(path, path.name, read)


def stage_manifest(folder: Path) -> Stored:
    def write(place: str) -> tuple[StagedPartition, ...]:
        (Path(place) / "0.arrow").write_bytes(b"rows")
        return (StagedPartition("0.arrow", 1, 4, digest(b"rows")),)

    staged = stage_with(write, TABLE.schema, str(folder), JOB, "rows")
    path = Path(f"{staged.place}.json")
    return Stored(path, path.name, lambda: find_stage(str(folder), JOB, "rows", staged.fingerprint))


def inputs(folder: Path) -> Stored:
    recorded = RecordedInputs({"rows": (InputFile("a.parquet", 9, 1, "c"),)}, {"others": "print"})
    key = inputs_key(JOB, store_inputs(FileStore(folder), JOB, recorded))
    return Stored(folder / key, key, lambda: read_inputs(str(folder / key), Path(key).stem))


AT = SetPosition(number=0)
KINDS: dict[str, Callable[[Path], Stored]] = {
    "state": state_file,
    "flight": flight_file,
    "savepoint": savepoint,
    "savepoint note": savepoint_note,
    "savepoint part": savepoint_part,
    "copied by a savepoint": file_that_a_savepoint_copies,
    "claim": log_entry(Claim(number=0, generation=1, job=JOB, fingerprint="f", owner="o")),
    "manifest": log_entry(MANIFEST),
    "pinned": log_entry(Pinned(number=0, generation=1, checkpoint=CHECKPOINT, name="n")),
    "unpinned": log_entry(Unpinned(number=0, generation=1, name="n")),
    "ended": log_entry(Ended(number=0, generation=1, status="finished")),
    "split set": split_entry(SetAdded(at=AT, splits={"rows": (SplitRef(id="0", rows=2, data=b"abc"),)}, rounds=1)),
    "window": split_entry(WindowEnded(at=AT, requested_at=1.5)),
    "no more sets": split_entry(NoMoreSets(at=AT)),
    "rows of a split": split_rows,
    "model": model,
    "server's notice": notice_of_a_server,
    "end's notice": notice_of_an_end,
    "digests of a feed": digests_of_a_feed,
    "stage": stage_manifest,
    "inputs": inputs,
}


@pytest.fixture(scope="module", params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Stored, bytes, Any]:
    found = KINDS[request.param](tmp_path_factory.mktemp("stored"))
    data = found.path.read_bytes()
    if request.param == "copied by a savepoint":
        return found, data, None  # it can be copied once
    return found, data, found.read()


def refusal(found: Stored, damaged: bytes) -> PenstockError | None:
    found.path.write_bytes(damaged)
    try:
        found.read()
    except PenstockError as error:
        return error
    return None


@given(bits=st.data())
@settings(max_examples=60, deadline=None)
def test_bit_that_turned_is_an_error_that_names_the_file(
    stored: tuple[Stored, bytes, Any], bits: st.DataObject
) -> None:
    found, data, _ = stored
    error = refusal(found, flipped(data, bits.draw(st.integers(0, 8 * len(data) - 1))))
    assert isinstance(error, DamagedFileError), error
    assert found.name in error.message
    assert error.remedy


@given(bits=st.data())
@settings(max_examples=15, deadline=None)
def test_file_that_was_cut_short_or_grew_is_an_error_that_names_it(
    stored: tuple[Stored, bytes, Any], bits: st.DataObject
) -> None:
    found, data, _ = stored
    size = bits.draw(st.integers(0, len(data) + 9).filter(lambda size: size != len(data)))
    error = refusal(found, data[:size] + bytes(max(0, size - len(data))))
    if size > len(data) and found.in_parts:
        assert error is None  # handles say where parts end
        return
    assert isinstance(error, DamagedFileError), error
    assert found.name in error.message


def test_file_that_was_put_back_is_read_again(stored: tuple[Stored, bytes, Any]) -> None:
    found, data, value = stored
    assert refusal(found, data[:-1]) is not None
    found.path.write_bytes(data)
    assert value is None or found.read() == value


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"copied by a savepoint"}))
def test_what_was_written_survives_a_power_cut(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    disk = ForgetfulDisk(root)
    with disk.watched():
        found = KINDS[kind](root / "state")
    left = disk.moments[-1].survivors(tmp_path / "left")
    assert (left / found.path.relative_to(root)).read_bytes() == found.path.read_bytes()


@given(bits=st.data())
@settings(max_examples=30, deadline=None)
def test_part_that_is_damaged_is_an_error_and_the_others_are_read(
    tmp_path_factory: pytest.TempPathFactory, bits: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    files = SnapshotFiles(str(folder), JOB, inline=0)
    handles = files.write(TASK, CHECKPOINT, ATTEMPT, {"read": TABLE, "count": TABLE})
    path, number = folder / handles[0].location, bits.draw(st.integers(0, 1))
    bit = 8 * handles[number].offset + bits.draw(st.integers(0, 8 * handles[number].bytes - 1))
    path.write_bytes(flipped(path.read_bytes(), bit))
    with pytest.raises(DamagedFileError, match=f"{handles[0].location} cannot be read"):
        files.read([handles[number]])
    assert list(files.read([handles[1 - number]]).values()) == [TABLE]
    manifest = replace(MANIFEST, tasks=(TaskState(task=TASK, state=handles),))
    order = StoreSavepoint(CHECKPOINT, str(folder / "saved"), *make_savepoint(manifest))
    with pytest.raises(DamagedFileError):
        take(folder, order)


def test_savepoint_copies_a_file_once_and_holds_what_is_inlined(tmp_path: Path) -> None:
    files = SnapshotFiles(str(tmp_path), JOB, inline=0)
    handles = files.write(TASK, CHECKPOINT, ATTEMPT, {"read": TABLE, "count": TABLE})
    little = SnapshotFiles(str(tmp_path), JOB).write(TaskId("a", 1), CHECKPOINT, ATTEMPT, {"read": TABLE})
    states = TaskState(task=TASK, state=handles), TaskState(task=TaskId("a", 1), state=little)
    order = StoreSavepoint(CHECKPOINT, str(tmp_path / "saved"), *make_savepoint(replace(MANIFEST, tasks=states)))
    assert len(order.copies) == 1
    take(tmp_path, order)
    saved = read_savepoint(order.location)
    assert SnapshotFiles(order.location, JOB).read(saved.tasks[0].state) == {"read": TABLE, "count": TABLE}
    assert SnapshotFiles(order.location, JOB).read(saved.tasks[1].state) == {"read": TABLE}
    SavepointFiles(str(tmp_path), JOB).delete(order.location, ())
    assert [each for each in (tmp_path / "saved").rglob("*") if each.is_file()] == []


def test_state_file_in_the_place_of_another_is_an_error(tmp_path: Path) -> None:
    files = SnapshotFiles(str(tmp_path), JOB, inline=0)
    one, two = (files.write(TaskId("a", n), CHECKPOINT, ATTEMPT, {"read": TABLE.slice(n, 1)})[0] for n in (0, 1))
    (tmp_path / one.location).write_bytes((tmp_path / two.location).read_bytes())
    with pytest.raises(DamagedFileError, match=f"{one.location} cannot be read"):
        files.read([one])


@pytest.mark.parametrize("inline", [0, 4096])
def test_handle_without_a_digest_is_not_trusted(tmp_path: Path, inline: int) -> None:
    files = SnapshotFiles(str(tmp_path), JOB, inline)
    (handle,) = files.write(TASK, CHECKPOINT, ATTEMPT, {"read": TABLE})
    with pytest.raises(DamagedFileError):
        files.read([replace(handle, digest="")])


def test_savepoint_of_a_damaged_file_leaves_nothing(tmp_path: Path) -> None:
    handle, order = savepoint_order(tmp_path)
    path = tmp_path / handle.location
    path.write_bytes(flipped(path.read_bytes(), 80))
    with pytest.raises(DamagedFileError, match=f"{handle.location} cannot be read"):
        take(tmp_path, order)
    assert [each for each in (tmp_path / "saved").rglob("*") if each.is_file()] == []


def test_record_of_an_older_version_is_refused_by_its_number(tmp_path: Path) -> None:
    found = model(tmp_path)
    found.path.write_bytes(b'{"format":1,"model":"m","feed":"f","step":9}')
    with pytest.raises(DamagedFileError, match="it has format 1, and this version knows 2 and no other") as caught:
        found.read()
    assert "with the version of Penstock that wrote it" in caught.value.remedy


def test_notice_of_an_older_version_is_an_earlier_runs(tmp_path: Path) -> None:
    found = notice_of_a_server(tmp_path)
    found.path.write_bytes(b'{"run":"run","endpoint":{"incarnation":"x","host":"127.0.0.1","port":99}}')
    assert found.read() is None


def test_record_is_one_json_object_and_its_seal_its_last_member() -> None:
    data = encode_record(Ended(number=0, generation=1, status="finished"))
    assert data == (
        b'{"type":"ended","format":8,"number":0,"generation":1,"status":"finished","reason":"",'
        b'"seal":{"bytes":85,"xxh3":"' + digest(data.partition(b',"seal"')[0] + b"}").encode() + b'"}}'
    )
