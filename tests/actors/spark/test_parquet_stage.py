"""Stages that Spark's JVM writes as Parquet: which frames, in which order, and what is accepted. No Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.actors.protocol.settings import Checkpoints
from penstock.actors.spark import parquet_stage
from penstock.actors.spark import stage as stage_module
from penstock.actors.spark.carrying import carry_stages
from penstock.actors.spark.parquet_stage import why_not, written_by_spark
from penstock.actors.spark.parquet_types import no_parquet_for
from penstock.actors.spark.parquet_writer import Written
from penstock.actors.spark.stage import StagedSource, find_stage, stage_in, stage_with
from penstock.actors.spark.staged_splits import StagedPartition, StagedSplit
from penstock.actors.spark.writing import make_writer
from penstock.engine.core.errors import ConfigurationError, DamagedFileError, StorageError
from penstock.engine.flow.flow import Flow
from penstock.engine.flow.handoff import Destination
from penstock.engine.sources.parquet import PAGES_BYTES
from penstock.jobs.local_run import run_local
from support.damage import flipped

TRACE = "6a23ba3d-eae2-42a9-aeda-781e3ce97949"

# ------------------------------------------------------------------ the table of types


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")),
        *(pa.decimal128(1, 0), pa.decimal128(1, 1), pa.decimal128(18, 4), pa.decimal128(38, 38)),
        pa.list_(pa.list_(pa.int64())),
        pa.map_(pa.string(), pa.list_(pa.struct({"x": pa.map_(pa.int32(), pa.date32())}))),
        pa.struct({"a.b": pa.int64(), "*": pa.string(), " ,;{}()=": pa.int8()}),
    ],
    ids=str,
)
def test_type_goes_by_the_jvm_at_every_depth(kind: pa.DataType) -> None:
    for held in (kind, pa.list_(kind), pa.struct({"x": kind}), pa.map_(pa.string(), kind)):
        assert no_parquet_for(pa.schema({"id": pa.int64(), "held": held})) == ""


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (pa.null(), "null has no type of Parquet"),
        (pa.duration("us"), "duration"),
        (pa.struct([]), "a struct without fields"),
        (pa.struct({"id": pa.int64(), "ID": pa.int64()}), "may not tell apart"),
        (pa.struct({"": pa.int64()}), "may not tell apart"),
        (pa.timestamp("ns"), "timestamp[ns]"),
        (pa.timestamp("us", "Europe/Paris"), "Paris"),
        (pa.decimal128(3, -2), "decimal128(3, -2)"),
        (pa.decimal256(40, 2), "decimal256"),
        (pa.large_string(), "large_string"),
        (pa.uint64(), "uint64"),
    ],
    ids=str,
)
def test_type_that_a_file_does_not_hold_is_named_at_every_depth(kind: pa.DataType, why: str) -> None:
    for held in (kind, pa.list_(kind), pa.struct({"x": kind}), pa.map_(pa.string(), kind)):
        told = no_parquet_for(pa.schema({"id": pa.int64(), "held": held}))
        assert told.startswith("column 'held': ")
        assert why in told


def test_frame_without_columns_goes_through_workers() -> None:
    assert no_parquet_for(pa.schema([])) == "it has no columns"


class Frame:
    """Of a session that is made of paper."""

    def __init__(
        self, version: str = "3.5.7", settings: Mapping[str, str] | None = None, hadoop: Mapping[str, str] | None = None
    ) -> None:
        told, stored = dict(settings or {}), dict(hadoop or {})
        conf = SimpleNamespace(get=told.get)
        scala = SimpleNamespace(getConf=lambda: conf)
        jsc = SimpleNamespace(hadoopConfiguration=lambda: SimpleNamespace(get=stored.get), sc=lambda: scala)
        context = SimpleNamespace(_jsc=jsc)
        self.sparkSession = SimpleNamespace(version=version, sparkContext=context)
        self._jdf = None


@pytest.mark.parametrize(
    ("frame", "place", "why"),
    [
        (Frame(), "/state", ""),
        (Frame(), "s3://bucket/state", "s3:// is reached by Python workers alone"),
        (Frame("4.0.1"), "/state", "does not tell"),
        (Frame("3.4.1"), "/state", "does not tell"),
        (Frame(settings={"spark.hadoop.outputCommitCoordination.enabled": "false"}), "/state", "commit coordinator"),
        (Frame(hadoop={"parquet.crypto.factory.class": "some.Factory"}), "/state", "encrypts"),
    ],
)
def test_session_and_folder_decide_as_well(frame: Frame, place: str, why: str) -> None:
    told = why_not(frame, pa.schema({"id": pa.int64()}), place)
    assert why in told if why else told == ""


def name_of(partition: int) -> str:
    return f"part-{partition:05d}-{TRACE}-c000.snappy.parquet"


# ------------------------------------------------------------------ what is accepted

LISTS = pa.list_(pa.field("element", pa.int64()))
TABLE = pa.table(
    {
        "n": pa.array(range(10)),
        "s": pa.array([None, *"bcdefghij"]),
        "a.b": pa.array([[row, None] if row % 3 else None for row in range(10)], pa.list_(pa.int64())),
    }
)
"""As the rows arrive; Spark calls columns by position and elements of lists by another name."""


def as_spark_writes(table: pa.Table, path: Path) -> None:
    stored = pa.schema({f"c{position}": column.type for position, column in enumerate(table.schema)})
    stored = stored.set(2, pa.field("c2", LISTS))
    columns = [column.cast(field.type) for column, field in zip(table.columns, stored, strict=True)]
    parquet.write_table(pa.table(columns, schema=stored), path, row_group_size=3, write_page_checksum=True)


def planned(partitions: int) -> Any:
    rdd = SimpleNamespace(getNumPartitions=lambda: partitions)
    held = SimpleNamespace(queryExecution=lambda: SimpleNamespace(toRdd=lambda: rdd))
    jvm = SimpleNamespace(_jrdd=SimpleNamespace(rdd=lambda: rdd))
    return SimpleNamespace(_jdf=held, rdd=jvm, sparkSession=SimpleNamespace(sparkContext="the context"))


PIECES = (TABLE.slice(0, 4), TABLE.slice(0, 0), TABLE.slice(4))
"""Three partitions, one without rows; Spark writes a file for the first one, be it empty or not."""


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Spark, as far as it writes files. ``lost``: partitions whose files go elsewhere."""
    told = SimpleNamespace(pieces=PIECES, lost=set[int]())

    def write(_planned: Any, _schema: pa.Schema, folder: str) -> list[Written]:
        made, written = Path(folder), []
        (made / "_temporary" / "0").mkdir(parents=True)
        (made / "_temporary" / "0" / name_of(0)).write_bytes(b"an attempt that was overtaken")
        (made / f".{name_of(0)}.crc").write_bytes(b"crc")
        (made / "_SUCCESS").touch()
        for position, piece in enumerate(told.pieces):
            has_file = bool(piece.num_rows or not position)
            written.append(Written(position, name_of(position) if has_file else "", piece.num_rows))
            if has_file and position not in told.lost:
                as_spark_writes(piece, made / name_of(position))
        return written

    monkeypatch.setattr(parquet_stage, "_write", write)
    return told


def staged(folder: Path, partitions: int = 3, description: str | None = None) -> StagedSource:
    def write(place: str) -> tuple[StagedPartition, ...]:
        return written_by_spark(planned(partitions), TABLE.schema, place)

    return stage_with(write, TABLE.schema, str(folder), "f", "rows", description=description)


@pytest.mark.usefixtures("jvm")
def test_files_that_count_are_kept_and_all_else_of_the_write_goes(tmp_path: Path) -> None:
    source = staged(tmp_path)
    assert [each.file for each in source.manifest.partitions] == ["000000.parquet", "", "000002.parquet"]
    assert sorted(path.name for path in Path(source.place).iterdir()) == ["000000.parquet", "000002.parquet"]
    again = find_stage(str(tmp_path), "f", "rows", source.fingerprint)
    assert again is not None
    for each in (source, again):
        assert [split.id for split in each.splits()] == ["spark/0", "spark/1", "spark/2"]
        tables = [pa.Table.from_batches(split.open(0), TABLE.schema) for split in each.splits()]
        assert tables == list(PIECES)


@pytest.mark.usefixtures("jvm")
def test_rows_are_read_from_any_row_on_and_of_any_columns(tmp_path: Path) -> None:
    split = staged(tmp_path).splits()[2]
    assert split.rows == 6
    for start in range(8):
        assert pa.Table.from_batches(split.open(start), TABLE.schema) == PIECES[2].slice(start)
        for names in (["s"], ["a.b", "n"]):
            narrowed = pa.Table.from_batches(split.narrowed(names).open(start), TABLE.select(names).schema)
            assert narrowed == PIECES[2].select(names).slice(start)
        assert sum(batch.num_rows for batch in split.narrowed([]).open(start)) == max(0, 6 - start)


@pytest.mark.usefixtures("jvm")
def test_what_an_open_file_holds_is_bounded_by_its_rows_and_by_pages(tmp_path: Path) -> None:
    split = staged(tmp_path).splits()[2]
    assert split.narrowed(["n"]).open_bytes == 2 * 6 * 8  # type: ignore[attr-defined]
    assert replace(split, rows=10**9).narrowed(["n"]).open_bytes == PAGES_BYTES  # type: ignore[type-var]


def test_partition_whose_file_did_not_come_is_no_empty_one(tmp_path: Path, jvm: SimpleNamespace) -> None:
    """An executor on a machine that does not share the folder has kept it."""
    jvm.lost = {2}
    with pytest.raises(ConfigurationError, match=r"Spark has written 6 rows of partition 2, and its file in .* has 0"):
        staged(tmp_path)
    assert not list(tmp_path.rglob("*.parquet"))


def test_file_that_has_fewer_rows_than_spark_counted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(_planned: Any, _schema: pa.Schema, folder: str) -> list[Written]:
        Path(folder).mkdir()
        as_spark_writes(TABLE, Path(folder, name_of(0)))
        return [Written(0, name_of(0), 11)]

    monkeypatch.setattr(parquet_stage, "_write", write)
    with pytest.raises(
        ConfigurationError, match=r"Spark has written 11 rows of partition 0, and its file in .* has 10"
    ):
        staged(tmp_path)
    assert not list(tmp_path.rglob("*.parquet"))


def test_frame_of_which_spark_says_that_it_has_no_partitions_is_not_written(tmp_path: Path) -> None:
    assert written_by_spark(planned(0), TABLE.schema, str(tmp_path)) == ()
    assert not list(tmp_path.iterdir())


def test_frame_without_rows_has_no_file(tmp_path: Path, jvm: SimpleNamespace) -> None:
    jvm.pieces = (TABLE.slice(0, 0),) * 3
    source = staged(tmp_path)
    assert [each.file for each in source.manifest.partitions] == [""] * 3
    assert [split.rows for split in source.splits()] == [0, 0, 0]


def test_stage_that_is_begun_again_takes_nothing_of_the_attempt_before(tmp_path: Path, jvm: SimpleNamespace) -> None:
    """The script died after Spark had written, before there was a manifest: what it left looks like a whole stage."""
    left = tmp_path / "f" / "spark" / "rows" / "before"
    left.mkdir(parents=True)
    as_spark_writes(TABLE, left / "000000.parquet")
    (left.parent / ".before.alive").touch()
    whole = staged(tmp_path, description="")
    assert not left.exists()
    assert whole.manifest.rows == 10
    jvm.pieces = (TABLE.slice(5),)
    other = staged(tmp_path, 1, description="")
    assert other.fingerprint != whole.fingerprint
    assert [each.rows for each in other.manifest.partitions] == [5]


def test_evaluation_that_has_lost_something_leaves_no_file_to_the_next_one(
    tmp_path: Path, jvm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor died with what it had shuffled: all is written anew, and other rows lie in other partitions."""
    second = (TABLE.slice(0, 2), TABLE.slice(2), TABLE.slice(0, 0))
    whole = iter([False, True])

    class Evaluated:
        keeps_rows = False

        def __init__(self, context: Any, rdd: Any) -> None:
            assert (context, rdd) == ("the context", frame.rdd._jrdd.rdd())

        def begin(self) -> None:
            pass

        def is_whole(self) -> bool:
            return next(whole)

        def discard(self) -> None:
            jvm.pieces = second

    frame = planned(3)
    monkeypatch.setattr(stage_module, "Evaluation", Evaluated)
    monkeypatch.setattr(stage_module, "by_position", lambda frame: frame)
    monkeypatch.setattr(stage_module, "planned_before", lambda frame: frame)
    monkeypatch.setattr(stage_module, "can_be_planned_before", lambda frame: True)
    source = stage_with(
        lambda place: stage_module._rows_in(frame, TABLE.schema, place, ""), TABLE.schema, str(tmp_path), "f", "rows"
    )
    assert [pa.Table.from_batches(split.open(0), TABLE.schema) for split in source.splits()] == list(second)
    assert sorted(path.name for path in Path(source.place).iterdir()) == ["000000.parquet", "000001.parquet"]


def test_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_planned: Any, _schema: pa.Schema, folder: str) -> list[Written]:
        Path(folder).mkdir()
        as_spark_writes(TABLE, Path(folder, name_of(0)))
        raise OSError("the executor's disk has gone")

    monkeypatch.setattr(parquet_stage, "_write", write)
    with pytest.raises(StorageError, match="the executor's disk has gone"):
        staged(tmp_path)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.usefixtures("jvm")
def test_savepoint_in_a_bucket_carries_it_and_it_is_read_from_there(tmp_path: Path, bucket: str) -> None:
    source = staged(tmp_path)
    carry_stages(str(tmp_path / "f"), f"s3://{bucket}/saved", {"rows": source.fingerprint})
    found = stage_in(f"s3://{bucket}/saved", "rows", source.fingerprint)
    assert found is not None
    assert [pa.Table.from_batches(split.open(0), TABLE.schema) for split in found.splits()] == list(PIECES)


@pytest.mark.usefixtures("jvm")
def test_bit_that_turned_is_an_error_before_a_row_is_given(tmp_path: Path) -> None:
    source = staged(tmp_path)
    path = Path(source.place, "000002.parquet")
    data = path.read_bytes()
    for bit in range(0, 8 * len(data), 97):
        path.write_bytes(flipped(data, bit))
        with pytest.raises(DamagedFileError, match="its bytes are not those that were written"):
            source.splits()[2].open(0)
    path.unlink()
    with pytest.raises(StorageError, match="is gone"):
        source.splits()


# ------------------------------------------------------------------ either way the same


class Staging:
    """A deferred source over the pieces, as Spark's JVM or its Python workers stage them."""

    kind, schema = "spark", TABLE.schema

    def __init__(self, by_jvm: bool) -> None:
        self.by_jvm = by_jvm
        self.splits_read: list[str] = []

    def describe(self) -> str:
        return "rows"

    def splits(self) -> list[object]:
        return []

    def handed_over(self, source: str, to: Destination) -> StagedSource:
        found = find_stage(str(to.folder), to.job, source, to.description)
        made = found or stage_with(self._write, self.schema, str(to.folder), to.job, source)
        self.splits_read = [type(split).__name__ for split in made.splits()]
        return made

    def _write(self, place: str) -> tuple[StagedPartition, ...]:
        if self.by_jvm:
            return written_by_spark(planned(len(PIECES)), self.schema, place)
        answers = []
        for partition, piece in enumerate(PIECES):
            write = make_writer(place, bytes(self.schema.serialize()), 4, (partition, "9"))
            (answer,) = write(iter(piece.to_batches()))
            (row,) = answer.to_pylist()
            answers.append(StagedPartition(row["file"], row["rows"], row["bytes"], row["digest"]))
        return tuple(answers)


def run_twice(source: Staging, folder: Path) -> tuple[Any, ...]:
    """What a job gives that is stopped amid its rows, and goes on; and what it has said of itself."""

    def flow(rate: float) -> Flow:
        flow = Flow("f", lanes=2)
        flow.from_source(source, name="rows", rate=rate).write_parquet(folder / "out", name="files")
        return flow

    state = Checkpoints(folder / "state", every="0.2s")
    with run_local(flow(5.0), checkpoints=state) as job:
        job.checkpoint(60)
        job.cancel()
    with run_local(flow(0.0), checkpoints=state) as job:
        job.wait(60)
        return job.output().to_table().to_pylist(), job.audit().clean, flow(0.0).fingerprint()


@pytest.mark.usefixtures("jvm")
def test_job_that_goes_on_gives_the_same_by_either_way(tmp_path: Path) -> None:
    by_jvm, by_workers = Staging(True), Staging(False)
    found = run_twice(by_jvm, tmp_path / "jvm")
    assert found == run_twice(by_workers, tmp_path / "workers")
    assert sorted(row["n"] for row in found[0]) == list(range(10))
    assert by_jvm.splits_read == ["StagedParquetSplit", "NoRows", "StagedParquetSplit"]
    assert by_workers.splits_read == [StagedSplit.__name__] * 3
