"""What is particular to the Parquet sink: whose folder it is, what readers see, and what a kill leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Literal

import pyarrow as pa
import pytest
from pyarrow import dataset, fs, parquet

import penstock as ps
from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import ConfigurationError, DataError, FlowError, StorageError
from penstock.engine.core.identity import Attempt, CheckpointId, CommitPermit, Committable, TaskId
from penstock.engine.core.operator import OperatorContext
from penstock.engine.files import object_store
from penstock.engine.sinks.file_committer import FileCommitter
from penstock.engine.sinks.file_writer import RunningFileSink, restored_totals
from penstock.engine.sinks.output_folder import OutputFolder, totals_of
from penstock.engine.sinks.parquet import ParquetSink
from support.bucket_twin import BucketTwin
from support.sinks import prepared_by
from support.small_disk import KINDS, small_disk

JOB = "delays"
SCHEMA = pa.schema([("x", pa.int64())])
FIRST, SECOND = CheckpointId(1, 1), CheckpointId(1, 2)


class Nowhere:
    def emit(self, batch: Batch) -> None:
        raise AssertionError("a sink has no output")


def context_of(subtask: int, job: str = JOB, operator: str = "write") -> OperatorContext:
    return OperatorContext(operator, TaskId("stage", subtask), Attempt(1, 1), 2, range(8), job)


def open_sink(config: ParquetSink, subtask: int = 0, job: str = JOB, operator: str = "write") -> RunningFileSink:
    return config.build(context_of(subtask, job, operator), [SCHEMA], None)


def put(sink: RunningFileSink, values: range | list[int]) -> None:
    records = pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)
    sink.process(0, Batch(records, Tag(0, 0, 0)), Nowhere())


def put_many(sink: RunningFileSink, count: int) -> None:
    for begin in range(0, count, 1000):
        put(sink, range(begin, begin + 1000))


def commit(config: ParquetSink, checkpoint: CheckpointId, prepared: list[Committable], job: str = JOB) -> None:
    config.committer(job).commit(CommitPermit(checkpoint, tuple(prepared)))


def read(folder: Path) -> list[int]:
    values: list[int] = dataset.dataset(str(folder), format="parquet").to_table()["x"].to_pylist()
    return values


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def write_once(config: ParquetSink, values: list[int], job: str = JOB) -> None:
    """A whole job: one checkpoint, and nothing left behind."""
    config.check(job)
    sink = open_sink(config, job=job)
    put(sink, values)
    sink.finish(Nowhere())
    commit(config, FIRST, prepared_by(sink, FIRST), job)
    sink.close()
    config.committer(job).clean([])


def test_files_are_named_after_operator_subtask_checkpoint_and_number(tmp_path: Path) -> None:
    config = ParquetSink(tmp_path, rows_per_file=4)
    sink = open_sink(config, subtask=1)
    put(sink, range(6))
    staged = [name for name in names(tmp_path) if name.startswith("_staging")]
    assert staged == [f"_staging/delays/unclaimed/write-00001-1.1-{number:05d}.parquet" for number in (0, 1)]
    commit(config, SECOND, prepared_by(sink, SECOND))
    config.committer(JOB).clean([])
    parts = [f"part-write-00001-0001.000002-{number:05d}-delays.parquet" for number in (0, 1)]
    assert names(tmp_path) == parts
    assert not (tmp_path / "_staging").exists()
    assert [parquet.read_table(tmp_path / part).num_rows for part in parts] == [4, 2]


def test_small_batches_become_large_row_groups(tmp_path: Path) -> None:
    config = ParquetSink(tmp_path, row_group_rows=1000)
    sink = open_sink(config)
    for begin in range(0, 2500, 10):
        put(sink, range(begin, begin + 10))
    commit(config, FIRST, prepared_by(sink, FIRST))
    (part,) = tmp_path.glob("part-*")
    metadata = parquet.read_metadata(part)
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [1000, 1000, 500]
    assert read(tmp_path) == list(range(2500))


def test_empty_result_can_be_read_with_its_schema(tmp_path: Path) -> None:
    config = ParquetSink(tmp_path)
    sinks = [open_sink(config, subtask) for subtask in range(2)]
    assert [prepared_by(sink, FIRST) for sink in sinks] == [[], []]  # not the end yet
    for sink in sinks:
        sink.finish(Nowhere())
    prepared = [each for sink in sinks for each in prepared_by(sink, SECOND)]
    commit(config, SECOND, prepared)
    assert [each.rows for each in prepared] == [0]
    assert dataset.dataset(str(tmp_path)).to_table() == SCHEMA.empty_table()
    parts = list(tmp_path.glob("part-*"))
    assert len(parts) == 1


def test_close_removes_what_was_not_prepared(tmp_path: Path) -> None:
    config = ParquetSink(tmp_path, rows_per_file=2)
    sink = open_sink(config)
    put(sink, [1, 2, 3])
    prepared = prepared_by(sink, FIRST)
    put(sink, [4, 5, 6])
    sink.close()
    commit(config, FIRST, prepared)
    assert read(tmp_path) == [1, 2, 3]
    assert not list((tmp_path / "_staging" / JOB / "unclaimed").iterdir())


def test_what_was_flushed_can_be_prepared_though_later_writes_fail(tmp_path: Path) -> None:
    """They fail on another thread, between the flush and the driver's hearing of it."""
    config = ParquetSink(tmp_path, rows_per_file=2)
    sink = open_sink(config)
    put(sink, [1, 2, 3])
    sink.flush(FIRST)
    staging = tmp_path / "_staging" / JOB / "unclaimed"
    with put_aside(staging), pytest.raises(StorageError):
        put(sink, [4, 5, 6])
    commit(config, FIRST, sink.prepare(FIRST))
    assert read(tmp_path) == [1, 2, 3]
    with pytest.raises(StorageError):
        prepared_by(sink, SECOND)
    sink.close()
    assert not list(staging.iterdir())


@contextmanager
def put_aside(folder: Path) -> Iterator[None]:
    """It is not there while this lasts."""
    aside = folder.rename(folder.with_name("aside"))
    yield
    aside.rename(folder)


# ---------------------------------------------------------------- killed processes


KILLED = """
    import os, signal, sys
    import msgspec, pyarrow as pa
    from penstock.engine.core.elements import Batch, Tag
    from penstock.engine.core.identity import Attempt, CheckpointId, CommitPermit, TaskId
    from penstock.engine.core.operator import OperatorContext
    from penstock.engine.sinks.parquet import ParquetSink

    folder, point = sys.argv[1:]

    def maybe_die(here):
        if here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    config = ParquetSink(folder, rows_per_file=2)
    sink = config.build(OperatorContext("write", TaskId("stage", 0), Attempt(1, 1), 1, range(8), "delays"),
                        [pa.schema([("x", pa.int64())])], None)
    sink.process(0, Batch(pa.record_batch([pa.array(range(5))], names=["x"]), Tag(0, 0, 0)), None)
    sink.flush(CheckpointId(1, 1))
    prepared = sink.prepare(CheckpointId(1, 1))
    print(msgspec.json.encode(prepared).decode(), flush=True)
    sink.process(0, Batch(pa.record_batch([pa.array(range(5, 9))], names=["x"]), Tag(1, 0, 0)), None)
    maybe_die("prepared")
    committer = config.committer("delays")
    publish, done = committer._publish, []

    def publish_and_die(*arguments):
        publish(*arguments)
        done.append(arguments)
        maybe_die(f"committed {len(done)}")

    committer._publish = publish_and_die
    committer.commit(CommitPermit(CheckpointId(1, 1), tuple(prepared)))
"""


@pytest.mark.parametrize("point", ["prepared", "committed 1", "committed 2", "committed 3"])
def test_killed_process_leaves_a_commit_that_can_be_completed(tmp_path: Path, point: str) -> None:
    command = [sys.executable, "-c", dedent(KILLED), str(tmp_path / "out"), point]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == -9, ended.stderr
    committables = [Committable(**each) for each in json.loads(ended.stdout)]
    config = ParquetSink(tmp_path / "out")
    config.check(JOB, resuming=True)
    config.committer(JOB).clean(committables)
    commit(config, FIRST, committables)
    assert sorted(read(tmp_path / "out")) == list(range(5))
    config.committer(JOB).clean([])
    assert all(name.startswith("part-") for name in names(tmp_path / "out"))


# ---------------------------------------------------------------- whose folder it is


def test_folder_with_data_of_others_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.parquet").write_bytes(b"precious")
    with pytest.raises(ConfigurationError, match=r"already holds 1 data files \(mine.parquet is one\)") as caught:
        ParquetSink(tmp_path).check(JOB)
    assert 'mode="append"' in caught.value.remedy
    assert names(tmp_path) == ["mine.parquet"]


def test_second_run_of_a_job_does_not_mix_with_the_first_ones_output(tmp_path: Path) -> None:
    write_once(ParquetSink(tmp_path), [1, 2])
    before = names(tmp_path)
    with pytest.raises(ConfigurationError, match="already holds 1 data files"):
        ParquetSink(tmp_path).check(JOB)
    ParquetSink(tmp_path).check(JOB, resuming=True)
    assert names(tmp_path) == before


def test_appending_adds_to_what_is_there_even_for_runs_that_number_alike(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [0]}), tmp_path / "a.parquet")
    config = ParquetSink(tmp_path, mode="append")
    write_once(config, [1], "monday")
    write_once(config, [2], "tuesday")
    assert sorted(read(tmp_path)) == [0, 1, 2]
    assert config.place == ""


def test_folder_of_a_version_that_knew_jobs_by_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_penstock.json").write_text('{"format": 1, "job": "delays", "operator": "write"}')
    for mode in ("new", "append"):
        with pytest.raises(ConfigurationError, match="has a marker of format 1"):
            ParquetSink(tmp_path, mode=mode).check(JOB)


def test_jobs_that_append_are_counted_each_for_itself(tmp_path: Path) -> None:
    config = ParquetSink(tmp_path, mode="append")
    write_once(config, [1], "monday")
    write_once(config, [2, 3], "tuesday")
    assert (config.visible_rows("monday"), config.visible_rows("tuesday")) == (1, 2)
    assert sorted(read(tmp_path)) == [1, 2, 3]


def test_state_counts_every_file_that_was_closed_up_to_the_barrier(tmp_path: Path) -> None:
    config = ParquetSink(tmp_path, rows_per_file=2)
    sink = open_sink(config)
    put(sink, [1, 2, 3])
    state = sink.snapshot()
    prepared = prepared_by(sink, FIRST)
    settled = sink.settle(FIRST, state)
    put(sink, [4])  # the next barrier has not come
    sink.flush(SECOND)
    commit(config, FIRST, prepared)
    folder = config.output
    parts, foreign = folder.parts([JOB])
    assert (len(parts), foreign) == (2, [])
    assert restored_totals(settled) == totals_of(parts)
    going_on = ParquetSink(tmp_path).build(context_of(1), [SCHEMA], settled)
    put(going_on, [5])
    more = prepared_by(going_on, SECOND)
    now = going_on.settle(SECOND, going_on.snapshot())
    commit(config, SECOND, more)
    assert restored_totals(now) == totals_of(folder.parts([JOB])[0])


@pytest.mark.parametrize("below", ["file/out", "file"])
def test_folder_that_cannot_be_made_is_refused_before_the_job_starts(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=f"output folder {tmp_path}/{below}"):
        ParquetSink(tmp_path / below).check(JOB)


def test_folder_that_nobody_can_write_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match="cannot write into the output folder /proc/penstock") as caught:
        ParquetSink("/proc/penstock").check(JOB)
    assert caught.value.remedy == "make the folder writable, or choose another one"


def test_check_leaves_nothing_in_the_folder(tmp_path: Path) -> None:
    ParquetSink(tmp_path / "a" / "b").check(JOB)
    assert names(tmp_path) == []


# ---------------------------------------------------------------- bad input


def test_column_that_parquet_cannot_hold_is_named(tmp_path: Path) -> None:
    schema = pa.schema([("ok", pa.int64()), ("span", pa.month_day_nano_interval())])
    with pytest.raises(FlowError, match="column 'span' has type month_day_nano_interval") as caught:
        ParquetSink(tmp_path).output_schema([schema])
    assert caught.value.remedy == "cast or drop 'span' before the sink"


def test_column_that_could_not_be_read_back_is_named(tmp_path: Path) -> None:
    empty = pa.list_(pa.int32(), 0)
    for type in (empty, pa.list_(empty), pa.struct([("x", pa.map_(pa.string(), empty))])):
        with pytest.raises(FlowError, match=r"column 'none' has type .*: lists of the fixed size 0 cannot be"):
            ParquetSink(tmp_path).output_schema([pa.schema([("ok", pa.list_(pa.int32(), 1)), ("none", type)])])


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match="several columns are named 'x'"):
        ParquetSink(tmp_path).output_schema([pa.schema([("x", pa.int64()), ("x", pa.string())])])


def test_prepared_file_that_was_removed_is_named(tmp_path: Path) -> None:
    config = ParquetSink(tmp_path)
    sink = open_sink(config)
    put(sink, [1])
    (prepared,) = prepared_by(sink, FIRST)
    (file,) = prepared.payload["files"]
    (tmp_path / file["staged"]).unlink()
    with pytest.raises(StorageError) as caught:
        commit(config, FIRST, [prepared])
    assert file["staged"] in caught.value.message
    assert file["final"] in caught.value.message


def precious(file: dict[str, object], same_size: bool) -> bytes:
    """Another one's bytes under the final name of a prepared file."""
    return b"precious".ljust(int(str(file["bytes"])), b"!") if same_size else b"precious"


@pytest.mark.parametrize("same_size", [False, True])
def test_foreign_file_under_the_final_name_is_not_overwritten(tmp_path: Path, same_size: bool) -> None:
    config = ParquetSink(tmp_path)
    sink = open_sink(config)
    put(sink, [1])
    (prepared,) = prepared_by(sink, FIRST)
    (file,) = prepared.payload["files"]
    foreign = tmp_path / file["final"]
    foreign.write_bytes(precious(file, same_size))
    assert (foreign.stat().st_size == file["bytes"]) is same_size
    with pytest.raises(StorageError, match="is not the file that"):
        commit(config, FIRST, [prepared])
    assert foreign.read_bytes() == precious(file, same_size)


@pytest.mark.parametrize("same_size", [False, True])
def test_foreign_object_under_the_final_name_is_not_overwritten(
    buckets: BucketTwin, bucket: str, same_size: bool
) -> None:
    config = ParquetSink(f"s3://{bucket}/out")
    sink = open_sink(config)
    put(sink, [1])
    (prepared,) = prepared_by(sink, FIRST)
    (file,) = prepared.payload["files"]
    foreign = f"{bucket}/out/{file['final']}"
    buckets.put(foreign, precious(file, same_size))
    with pytest.raises(StorageError, match="is not the file that"):
        commit(config, FIRST, [prepared])
    assert buckets.objects[foreign].data == precious(file, same_size)


@pytest.mark.parametrize("name", ["../elsewhere", "/etc/elsewhere", "_staging/../../elsewhere"])
def test_committable_cannot_reach_outside_the_folder(tmp_path: Path, name: str) -> None:
    file = {"staged": name, "final": "part", "rows": 1, "bytes": 1}
    with pytest.raises(StorageError, match="lies outside"):
        commit(ParquetSink(tmp_path), FIRST, [Committable("write", 1, {"files": [file]})])


# ---------------------------------------------------------------- storage of other kinds


def test_without_atomic_rename_files_are_copied_and_a_broken_copy_is_repaired(tmp_path: Path) -> None:
    config = ParquetSink(tmp_path)
    sink = open_sink(config)
    put(sink, range(100))
    prepared = prepared_by(sink, FIRST)
    (file,) = prepared[0].payload["files"]
    (tmp_path / file["final"]).write_bytes((tmp_path / file["staged"]).read_bytes()[:50])
    folder = OutputFolder(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "")
    committer = FileCommitter(folder, JOB, "exclusive")
    for _ in range(2):
        committer.commit(CommitPermit(FIRST, tuple(prepared)))
    assert read(tmp_path) == list(range(100))
    assert not (tmp_path / file["staged"]).exists()
    committer.clean([])
    assert not (tmp_path / "_staging" / JOB).exists()


@pytest.mark.parametrize("kind", KINDS)
def test_full_disk_stops_the_sink_and_leaves_nothing_half_written(tmp_path: Path, kind: str) -> None:
    with small_disk(kind, tmp_path / "disk", 256 * 1024) as disk:
        config = ParquetSink(disk / "out", rows_per_file=5000, row_group_rows=1000, compression="none")
        sink = open_sink(config)
        put(sink, range(4000))
        prepared = prepared_by(sink, FIRST)
        # one file alone must not fit, so that the limit on sizes is met as well
        wide = ParquetSink(disk / "out", row_group_rows=1000, compression="none")
        broken = open_sink(wide, subtask=1)
        with pytest.raises(StorageError, match=r"(No space left on device|File too large)") as caught:
            put_many(broken, 1_000_000)
        assert str(disk / "out") in caught.value.message
        assert "free space there" in caught.value.remedy
        with pytest.raises(StorageError):
            prepared_by(broken, FIRST)
        broken.close()
        commit(config, FIRST, prepared)
        config.committer(JOB).clean([])
        assert sorted(read(disk / "out")) == list(range(4000))
        assert len(names(disk / "out")) == 1


def test_files_of_others_are_found_wherever_a_reader_would(tmp_path: Path) -> None:
    write_once(ParquetSink(tmp_path), [1])
    folder = ParquetSink(tmp_path).output
    assert folder.others([JOB]) == []
    for name in ("below/other.parquet", "other.parquet", "part-x-00000-0001.000001-00000-another.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("_SUCCESS", ".hidden", "_hidden/x.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    below = ["below/other.parquet", "other.parquet", "part-x-00000-0001.000001-00000-another.parquet"]
    assert sorted(folder.others([JOB])) == below == folder.parts([JOB])[1]


def test_sink_in_a_bucket_says_what_its_uploads_hold(tmp_path: Path) -> None:
    more = ParquetSink("s3://bucket/out").buffer_bytes - ParquetSink(tmp_path).buffer_bytes
    assert more == 5 * object_store.PART_BYTES


@pytest.mark.parametrize("audit", ["counts", "content"])
def test_dates_in_milliseconds_keep_their_day(tmp_path: Path, audit: Literal["counts", "content"]) -> None:
    """Parquet cuts towards 1970, and what a digest saw was cut likewise."""
    day = 86_400_000
    flow = ps.Flow("days")
    given = pa.array([day, -1, 1 - day, None, 3 * day + 5, -day], pa.int64()).view(pa.date64())
    flow.from_tables(pa.table({"x": given})).write_parquet(tmp_path / "out")
    seen = ps.run_local(flow, audit=audit).wait(60).audit()
    assert {sink.grade for sink in seen.sinks} == {"proven" if audit == "content" else "counted"}
    stored = dataset.dataset(tmp_path / "out").to_table()["x"].combine_chunks().view(pa.int32())
    assert stored.to_pylist() == [1, -1, -1, None, 3, -1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([86_400_000 * 2**31], pa.int64()).view(pa.date64()), "column 'x' has dates"),
        (pa.array([9_223_372_036_854_776], pa.timestamp("s")), "Parquet cannot hold a value"),
    ],
)
def test_values_that_a_file_cannot_hold_end_the_job_at_once(tmp_path: Path, values: pa.Array, message: str) -> None:
    flow = ps.Flow("far")
    flow.from_tables(pa.table({"x": values})).write_parquet(tmp_path / "out")
    with pytest.raises(DataError, match=message):
        ps.run_local(flow).wait(60)


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.date64()), pa.dictionary(pa.int32(), pa.date64()), pa.decimal128(10, -3), pa.binary(0)],
    ids=str,
)
def test_types_that_files_would_change_or_cannot_hold_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    with pytest.raises(FlowError, match="column 'x' has type"):
        ParquetSink(tmp_path).output_schema([pa.schema([("x", kind)])])
