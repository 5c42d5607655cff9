"""Which way a frame is handed over, what the log says of it, and which blocks nobody needs. No Ray, no Spark."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.actors.handing_over import hand_over
from penstock.actors.leases import left_behind
from penstock.actors.resuming import place_in
from penstock.actors.settings import Checkpoints
from penstock.actors.spark.source import _refusal
from penstock.actors.spark.stage import StagedPartition, StagedSource, find_stage, stage_with
from penstock.actors.spark.writing import make_writer
from penstock.coordinator.records import encode_record
from penstock.engine.errors import ConfigurationError, DamagedFileError, StorageError
from penstock.engine.flow import Flow
from penstock.engine.handoff import Destination
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


def test_stage_is_found_again_by_what_the_log_says_of_it(tmp_path: Path) -> None:
    staged = stage_with(write, TABLE.schema, str(tmp_path), "job", "rows")
    found = find_stage(str(tmp_path), "job", "rows", f"rows: 2 splits, 10 rows {staged.fingerprint}")
    assert found is not None
    tables = [pa.Table.from_batches(split.open(0), found.schema) for split in found.splits()]
    assert pa.concat_tables(tables).equals(TABLE)
    assert [split.rows for split in found.splits()] == [7, 3]
    assert pa.Table.from_batches(found.splits()[0].open(5), found.schema).equals(TABLE.slice(5, 2))
    assert find_stage(str(tmp_path), "job", "rows", "rows: 2 splits, 10 rows staged:of-other-data") is None
    assert find_stage(str(tmp_path), "job", "others", staged.fingerprint) is None


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
