"""Which way a frame is handed over, what the log says of it, and which blocks nobody needs. No Ray, no Spark."""

from __future__ import annotations

import fcntl
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import fs

from penstock.actors.claims.deferred import hand_over, left_behind
from penstock.actors.claims.place import place_in
from penstock.actors.claims.savepoints import SavepointFiles
from penstock.actors.job.launch import run
from penstock.actors.protocol.settings import Checkpoints
from penstock.actors.spark import stage as stage_module
from penstock.actors.spark import writing
from penstock.actors.spark.carrying import carry_stages, remove_stages, stage_before
from penstock.actors.spark.evaluation import UNKNOWN_WIDTH_ROWS, rows_at_a_time
from penstock.actors.spark.source import _refusal
from penstock.actors.spark.stage import StagedSource, _who_asks, find_stage, stage_with
from penstock.actors.spark.staged_splits import StagedPartition
from penstock.actors.spark.writing import make_writer
from penstock.coordinator.model.records import encode_record
from penstock.engine.core.errors import ConfigurationError, DamagedFileError, StorageError
from penstock.engine.files.durable import make_folder, put_file
from penstock.engine.files.paths import resolve
from penstock.engine.flow.flow import Flow
from penstock.engine.flow.handoff import Destination
from penstock.engine.plan.rounds import CHUNK_ROWS
from penstock.engine.sources.memory import MemorySource
from penstock.jobs.local_run import run_local
from support.damage import flipped

TABLE = pa.table({"n": range(10), "s": [None, *"bcdefghij"]})


def write(place: str, table: pa.Table = TABLE, rows: int = 4) -> tuple[StagedPartition, ...]:
    """Two partitions, written as Spark's workers do."""
    schema, answers = bytes(table.schema.serialize()), []
    for partition, piece in enumerate((table.slice(0, 7), table.slice(7))):
        (answer,) = make_writer(place, schema, rows, (partition, "9"))(iter(piece.to_batches(max_chunksize=3)))
        (row,) = answer.to_pylist()
        answers.append(StagedPartition(row["file"], row["rows"], row["bytes"], row["digest"]))
    return tuple(answers)


@pytest.fixture(params=["a folder", "a bucket"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A checkpoint folder."""
    return f"s3://{request.getfixturevalue('bucket')}/state" if request.param == "a bucket" else str(tmp_path)


def test_stage_is_found_again_by_what_the_log_says_of_it(storage: str) -> None:
    staged = stage_with(write, TABLE.schema, storage, "job", "rows")
    found = find_stage(storage, "job", "rows", f"rows: 2 splits, 10 rows {staged.fingerprint}")
    assert found is not None
    tables = [pa.Table.from_batches(split.open(0), found.schema) for split in found.splits()]
    assert pa.concat_tables(tables).equals(TABLE)
    assert [split.rows for split in found.splits()] == [7, 3]
    assert pa.Table.from_batches(found.splits()[0].open(5), found.schema).equals(TABLE.slice(5, 2))
    assert find_stage(storage, "job", "rows", "rows: 2 splits, 10 rows staged:of-other-data") is None
    assert find_stage(storage, "job", "others", staged.fingerprint) is None


@pytest.mark.parametrize("folder", ["a#b", "two words", "ümlaut", "p%2541", "1+1"])
def test_stage_lies_where_the_address_of_its_bucket_says(bucket: str, folder: str) -> None:
    """Executors take addresses for URLs: behind a # they wrote into another folder."""
    staged = stage_with(write, TABLE.schema, f"s3://{bucket}/{folder}", "job", "rows")
    tables = [pa.Table.from_batches(split.open(0), staged.schema) for split in staged.splits()]
    assert pa.concat_tables(tables).equals(TABLE)


def test_stages_of_a_savepoint_go_and_what_else_is_in_its_folder_stays(storage: str) -> None:
    """A user names the folder, and may keep things of their own in one called ``spark`` there."""
    staged = stage_with(write, TABLE.schema, storage, "job", "rows")
    carry_stages(f"{storage}/job", f"{storage}/saved", {"rows": staged.fingerprint})
    filesystem, folder = resolve(f"{storage}/saved")
    kept = [f"{folder}/spark/mine/{name}" for name in ("a.arrow", "b.json")] + [f"{folder}/spark/rows/c.json"]
    for path in kept:
        make_folder(filesystem, path.rpartition("/")[0])
        put_file(filesystem, path, b'{"format": 2}')
    remove_stages(filesystem, folder)
    left = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
    assert sorted(each.path for each in left if each.is_file) == sorted(kept)


def test_savepoint_that_goes_leaves_no_folders_of_stages(storage: str) -> None:
    staged = stage_with(write, TABLE.schema, storage, "job", "rows")
    carry_stages(f"{storage}/job", f"{storage}/saved", {"rows": staged.fingerprint})
    filesystem, folder = resolve(f"{storage}/saved")
    remove_stages(filesystem, folder)
    assert filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True)) == []


def test_stage_of_empty_partitions_has_no_files(storage: str) -> None:
    empty = (StagedPartition("", 0, 0, ""),) * 2
    staged = stage_with(lambda place: empty, TABLE.schema, storage, "job", "rows")
    assert [list(split.open(0)) for split in staged.splits()] == [[], []]


def test_bit_that_turned_in_a_staged_partition_is_an_error_that_names_it(tmp_path: Path) -> None:
    staged = stage_with(write, TABLE.schema, str(tmp_path), "job", "rows")
    first, second = staged.splits()
    path = Path(staged.place) / staged.manifest.partitions[0].file
    data = path.read_bytes()
    for bit in range(0, 8 * len(data), 101):
        path.write_bytes(flipped(data, bit))
        with pytest.raises(DamagedFileError, match=f"the staged partition {path} is damaged"):
            list(first.narrowed(TABLE.schema.names[:1]).open(0))
    assert pa.Table.from_batches(second.open(0)).num_rows == 3


def test_worker_without_the_package_s_digest_takes_one_that_python_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    staged = stage_with(write, TABLE.schema, str(tmp_path), "job", "rows")
    assert all(each.digest.startswith("blake2b:") for each in staged.manifest.partitions)
    assert sum(batch.num_rows for split in staged.splits() for batch in split.open(0)) == TABLE.num_rows


def test_fingerprint_is_of_the_rows_and_not_of_the_batches_they_came_in(tmp_path: Path) -> None:
    changed = TABLE.set_column(0, "n", pc.add(TABLE["n"], 1))
    prints = [
        stage_with(lambda place, table=table: write(place, table), TABLE.schema, str(tmp_path), "job", name).fingerprint
        for name, table in (("a", TABLE), ("b", pa.concat_tables([TABLE.slice(0, 2), TABLE.slice(2)])), ("c", changed))
    ]
    assert prints[0] == prints[1]
    assert prints[0] != prints[2]


def test_files_that_no_manifest_names_are_removed_and_missing_ones_refused(tmp_path: Path) -> None:
    def write_more(place: str) -> tuple[StagedPartition, ...]:
        make_writer(place, bytes(TABLE.schema.serialize()), 4, (1, "8"))(iter([])).__next__()
        return write(place)

    staged = stage_with(write_more, TABLE.schema, str(tmp_path), "job", "rows")
    folder = Path(staged.place)
    assert sorted(path.name for path in folder.iterdir()) == ["000000-9.arrow", "000001-9.arrow"]
    (folder / "000001-9.arrow").unlink()
    with pytest.raises(StorageError, match=r"000001-9\.arrow is gone"):
        staged.splits()
    (folder / "000001-9.arrow").write_bytes(b"short")
    with pytest.raises(StorageError, match="has 5 bytes instead of"):
        staged.splits()


def test_stage_that_has_just_begun_is_not_taken_for_one_that_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    lock = fcntl.flock

    def lock_late(file: Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        stage_module.remove_orphans(str(tmp_path), lambda run: False)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    stage_module.lock_run(str(tmp_path), "mine")
    stage_module.remove_orphans(str(tmp_path), lambda run: False)
    assert (tmp_path / "mine").exists()
    stage_module._locks.pop().close()
    stage_module.remove_orphans(str(tmp_path), lambda run: False)
    assert not (tmp_path / "mine").exists()


def test_stage_whose_script_died_before_the_first_log_entry_is_removed_by_the_next_run(tmp_path: Path) -> None:
    def stage(description: str | None = "") -> StagedSource:
        return stage_with(write, TABLE.schema, str(tmp_path), "job", "rows", description=description)

    def die() -> None:
        stage_module._locks.pop().close()

    held = len(stage_module._locks)
    dead, told, alive = stage(), stage(), stage()
    die()
    living = stage_module._locks.pop()  # of ``told``
    die()
    stage_module._locks.append(living)
    again = stage(None)
    assert Path(dead.place).exists()
    assert Path(f"{alive.place}.json").exists(), "who does not know the log removes nothing"
    die()
    last = stage(again.fingerprint)  # all runs have the same rows, so the log speaks of all
    assert Path(alive.place).exists()
    stage("staged:others")
    assert [Path(each.place).exists() for each in (dead, told, alive, again, last)] == [False, True, False, False, True]
    assert not Path(f"{dead.place}.json").exists()
    while len(stage_module._locks) > held:
        die()


def test_wide_rows_come_in_small_batches_that_are_the_same_however_spark_has_cut_them(tmp_path: Path) -> None:
    texts = [("x" if row < 300 else "y" * 2_000) * 10 for row in range(800)]
    table = pa.table({"n": pa.array([None, *range(799)], pa.int64()), "s": texts})
    schema, most = bytes(table.schema.serialize()), 200_000
    found = []
    for size in (1, 7, 800):
        place = tmp_path / str(size)
        place.mkdir()
        writer = make_writer(str(place), schema, 500, (0, "1"), most=most)
        (answer,) = writer(iter(table.to_batches(max_chunksize=size)))
        found.append(answer.to_pylist()[0])
        with pa.memory_map(f"{place}/000000-1.arrow") as file:
            batches = list(pa.ipc.open_file(file).read_all().to_batches())
        assert pa.Table.from_batches(batches).equals(table)
        assert max(batch.nbytes for batch in batches) < 3 * most
        assert max(batch.num_rows for batch in batches) <= 500
    assert found[0] == found[1] == found[2]
    assert found[0]["rows"] == 800


@pytest.mark.parametrize(
    ("types", "asked", "rows"),
    [
        (["int64", "float64"], 0, CHUNK_ROWS),
        (["int64", "string"], 0, UNKNOWN_WIDTH_ROWS),
        (["int64", "string"], 10_000, UNKNOWN_WIDTH_ROWS),
        (["int64", "string"], 16, 16),
        (["int64"] * 1000, 0, 2097),
        ([], 0, CHUNK_ROWS),
    ],
)
def test_spark_is_asked_for_so_many_rows_at_a_time_as_it_has_room_for(types: list[str], asked: int, rows: int) -> None:
    schema = pa.schema([(f"c{position}", getattr(pa, name)()) for position, name in enumerate(types)])
    assert rows_at_a_time(schema, asked) == rows


def test_stage_that_fails_leaves_no_file_and_one_that_cannot_be_seen_is_refused(tmp_path: Path) -> None:
    def elsewhere(place: str) -> tuple[StagedPartition, ...]:
        return (StagedPartition("000000-1.arrow", 1, 1, ""),)

    with pytest.raises(ConfigurationError, match="must be on storage that Spark's executors and this process share"):
        stage_with(elsewhere, TABLE.schema, str(tmp_path), "job", "rows")
    assert list((tmp_path / "job" / "spark" / "rows").iterdir()) == []


def test_manifest_of_a_later_version_is_refused(tmp_path: Path) -> None:
    staged = stage_with(write, TABLE.schema, str(tmp_path), "job", "rows")
    path = Path(f"{staged.place}.json")
    path.write_bytes(encode_record(msgspec.structs.replace(staged.manifest, format=99)))
    with pytest.raises(StorageError, match="has format 99"):
        find_stage(str(tmp_path), "job", "rows", staged.fingerprint)


class Staging:
    """A deferred source over a table, staged wherever the job keeps its checkpoints."""

    kind, schema = "memory", TABLE.schema

    def __init__(self, table: pa.Table = TABLE) -> None:
        self._table = table
        self.seen: list[Destination] = []

    def describe(self) -> str:
        return "rows"

    def splits(self) -> list[object]:
        return []

    def handed_over(self, source: str, to: Destination) -> StagedSource:
        self.seen.append(to)
        found = find_stage(str(to.folder), to.job, source, to.description)
        return found or stage_with(lambda place: write(place, self._table), self.schema, str(to.folder), to.job, source)


def flow_over(source: Staging, out: Path, rate: float = 0.0) -> Flow:
    flow = Flow("f")
    flow.from_source(source, name="rows", rate=rate).write_parquet(out)
    return flow


def test_restore_over_other_data_is_refused(tmp_path: Path) -> None:
    with run_local(flow_over(Staging(), tmp_path / "out", rate=5.0), checkpoints=tmp_path / "state") as job:
        saved = job.stop(timeout=60)
    other = Staging(TABLE.set_column(0, "n", pc.add(TABLE["n"], 1)))
    with pytest.raises(ConfigurationError, match="are not those that the job has begun with"):
        run_local(flow_over(other, tmp_path / "out"), checkpoints=tmp_path / "next", from_snapshot=saved.path)
    same = flow_over(Staging(), tmp_path / "out")
    with run_local(same, checkpoints=tmp_path / "again", from_snapshot=saved.path) as job:
        job.wait(60)
    assert sorted(job.output().to_table()["n"].to_pylist()) == list(range(10))


class StagedBefore(Staging):
    """As Spark's source does: what the snapshot was taken over comes first; ``gone``: nothing can be computed."""

    def __init__(self, *, gone: bool) -> None:
        super().__init__()
        self._gone = gone

    def handed_over(self, source: str, to: Destination) -> StagedSource:
        self.seen.append(to)
        found = stage_before(to, source)
        assert found is not None or not self._gone, "Spark is asked"
        return found or stage_with(write, self.schema, str(to.folder), to.job, source)


def test_run_that_is_refused_has_handed_nothing_over(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.parquet").write_bytes(b"not ours")
    source = Staging()
    flow = flow_over(source, tmp_path / "out")
    for options in ({}, {"resume": "must"}, {"checkpoints": tmp_path / "state"}):
        with pytest.raises(ConfigurationError):
            run_local(flow, **options)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError):
            run(flow, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="to go on from"):
        run_local(flow_over(source, tmp_path / "other"), checkpoints=tmp_path / "state", resume="must")
    with pytest.raises(ConfigurationError, match="neither a savepoint nor a checkpoint"):
        run_local(flow_over(source, tmp_path / "other"), checkpoints=tmp_path / "state", from_snapshot=tmp_path / "no")
    assert not source.seen
    assert not list(tmp_path.rglob("*.arrow"))


@pytest.mark.parametrize("stops", [True, False])
def test_savepoint_carries_what_was_staged_and_is_restored_when_all_else_is_gone(tmp_path: Path, stops: bool) -> None:
    flow = flow_over(StagedBefore(gone=False), tmp_path / "out", rate=5.0)
    with run_local(flow, checkpoints=tmp_path / "state") as job:
        saved = job.stop(savepoint=tmp_path / "mine", timeout=60) if stops else job.savepoint(tmp_path / "mine", 60)
        job.cancel()
    shutil.rmtree(tmp_path / "state")
    moved = (tmp_path / "mine").rename(tmp_path / "moved")
    assert saved.path == str(tmp_path / "mine")
    source = StagedBefore(gone=True)
    again = flow_over(source, tmp_path / "out")
    with run_local(again, checkpoints=tmp_path / "next", from_snapshot=moved) as job:
        job.wait(60)
    assert source.seen[0].resuming
    assert sorted(job.output().to_table()["n"].to_pylist()) == list(range(10))
    SavepointFiles(str(tmp_path / "next"), "f").delete(str(moved), ())
    assert not [path for path in moved.rglob("*") if path.is_file()], "a savepoint goes with what it carries"
    assert list((tmp_path / "next" / "f" / "spark" / "rows").glob("*.json"))


def test_snapshot_of_leased_rows_or_without_what_was_staged_cannot_be_restored(tmp_path: Path) -> None:
    to = Destination("job", str(tmp_path), resuming=True, snapshot="/saved", recorded={"rows": "leased:1"})
    with pytest.raises(ConfigurationError, match="was taken while rows was leased"):
        stage_before(to, "rows")
    with pytest.raises(ConfigurationError, match="is not in the snapshot /saved"):
        stage_before(replace(to, recorded={"rows": "staged:1"}), "rows")
    with pytest.raises(ConfigurationError, match="was staged for it is gone from"):
        stage_before(replace(to, snapshot="", recorded={}), "rows")
    assert stage_before(replace(to, recorded={}), "rows") is None, "a source that the snapshot does not know"


class Passing(MemorySource):
    """Rows that end with the script."""

    ends_with_script = True


def test_savepoint_of_rows_that_end_with_the_script_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    flow = Flow("f")
    flow.from_source(Passing(TABLE), name="rows", rate=5.0).write_parquet(tmp_path / "out")
    with run_local(flow, checkpoints=tmp_path / "state") as job:
        for ask in (job.savepoint, job.stop, partial(job.stop, drain=True)):
            with pytest.raises(ConfigurationError, match="rows: nothing could be restored from a savepoint") as caught:
                ask()
            assert "cancel()" in caught.value.remedy
        assert not job.status().is_over
        job.cancel()


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        (Destination("job", on_ray=False), "runs without Ray"),
        (Destination("job", "f", on_ray=True, detached=True), "a detached job outlives this script"),
        (Destination("job", "f", on_ray=True, keeps_checkpoints=True), 'retention="never"'),
        (Destination("job", "f", on_ray=True, resuming=True), "ended with the script that leased them"),
        (Destination("job", "f", on_ray=True), ""),
        (Destination("job", on_ray=True), ""),
    ],
)
def test_lease_is_refused_where_a_restore_could_not_work(to: Destination, reason: str) -> None:
    found = _refusal(to, TABLE.schema)
    assert reason in found
    assert bool(found) == bool(reason)
    assert "no columns" in _refusal(to, pa.schema([]))


def test_what_a_job_says_of_itself_comes_from_its_settings_and_its_log(tmp_path: Path) -> None:
    source = Staging()
    flow = flow_over(source, tmp_path / "out")
    folder = tmp_path / "state"
    with run_local(flow, checkpoints=Checkpoints(folder)) as job:
        job.wait(60)
        assert left_behind(job.plan, "rows", str(folder)) == [0, 1]
    hand_over(flow, place_in(Checkpoints(folder, retention="never")), name="g")
    first, other = source.seen
    assert (first.job, first.folder, first.description) == ("f", str(folder), "")
    assert (first.resuming, first.keeps_checkpoints, first.on_ray) == (False, True, False)
    assert (other.job, other.keeps_checkpoints, other.on_ray) == ("g", False, True)
    with pytest.raises(ConfigurationError, match="is over"):
        hand_over(flow, place_in(Checkpoints(folder)))


def test_staging_into_googles_store_without_credentials_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(writing, "RETRIED_SECONDS", 1)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    rows = pa.table({"a": [1]})
    write = writing.make_writer("gs://bucket/folder", bytes(rows.schema.serialize()), 10, (0, "1"))
    with pytest.raises(OSError, match="google"):
        list(write(iter(rows.to_batches())))
    assert "GOOGLE_APPLICATION_CREDENTIALS" in _who_asks("gs://bucket/folder")
