"""What every sink that says "exactly once" promises, whatever dies and when."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import dataset, fs

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import StorageError
from penstock.engine.core.identity import Attempt, CheckpointId, CommitPermit, Committable, TaskId
from penstock.engine.core.operator import LANE, OperatorContext, RunningSink, SinkConfig
from penstock.engine.files.paths import resolve
from penstock.engine.sinks.collect import COLLECTED, CollectSink
from penstock.engine.sinks.parquet import ParquetSink
from support.sinks import prepared_by

JOB = "daily delays"
SCHEMA = pa.schema([("x", pa.int64())])
FIRST, SECOND, THIRD = (CheckpointId(1, number) for number in (1, 2, 3))


@dataclass(frozen=True)
class Place:
    """A sink and a way to read what it has made visible."""

    config: Any
    read: Callable[[], list[int]]

    def open(self, attempt: int = 1, restored: pa.Table | None = None, subtask: int = 0) -> RunningSink:
        context = OperatorContext("write", TaskId("stage", subtask), Attempt(1, attempt), 2, range(8), JOB)
        sink: RunningSink = self.config.build(context, [SCHEMA], restored)
        return sink

    def commit(self, checkpoint: CheckpointId, committables: Sequence[Committable]) -> None:
        self.config.committer(JOB).commit(CommitPermit(checkpoint, tuple(committables)))

    def clean(self, *keep: Committable) -> None:
        self.config.committer(JOB).clean(keep)


class Nowhere:
    def emit(self, batch: Batch) -> None:
        raise AssertionError("a sink has no output")


def put(sink: RunningSink, *values: int, round: int = 0, lane: int = 0) -> None:
    records = pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)
    sink.process(0, Batch(records, Tag(round, lane, 0)), Nowhere())


def parquet_place(folder: Path) -> Place:
    def read() -> list[int]:
        table = dataset.dataset(str(folder / "out"), format="parquet").to_table()
        return sorted(table["x"].to_pylist()) if table.num_columns else []

    return Place(ParquetSink(folder / "out", rows_per_file=3, row_group_rows=2), read)


def collect_place(folder: Path) -> Place:
    return Place(CollectSink("result"), lambda: sorted(COLLECTED.read(JOB, "result")["x"].to_pylist()))


def bucket_place(scheme: str, bucket: str) -> Place:
    url = f"{scheme}://{bucket}/some/out"

    def read() -> list[int]:
        filesystem, folder = resolve(url)
        if filesystem.get_file_info(folder).type == fs.FileType.NotFound:
            return []
        table = dataset.dataset(folder, format="parquet", filesystem=filesystem).to_table()
        return sorted(table["x"].to_pylist()) if table.num_columns else []

    return Place(ParquetSink(url, rows_per_file=3, row_group_rows=2), read)


@pytest.fixture(params=["parquet", "collect", "s3", "gs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    COLLECTED.forget(JOB)
    if request.param in ("s3", "gs"):
        made = bucket_place(request.param, request.getfixturevalue("bucket"))
    else:
        made = (parquet_place if request.param == "parquet" else collect_place)(tmp_path)
    made.config.check(JOB)
    return made


def test_sink_is_one_and_says_what_it_guarantees(place: Place) -> None:
    assert isinstance(place.config, SinkConfig)
    assert place.config.guarantee == "exactly once"
    assert place.config.output_schema([SCHEMA]) == SCHEMA
    assert pickle.loads(pickle.dumps(place.config)) == place.config


def test_rows_are_invisible_until_their_checkpoint_is_committed(place: Place) -> None:
    sink = place.open()
    put(sink, 1, 2, 3, 4, 5, 6, 7)
    assert place.read() == []
    prepared = prepared_by(sink, FIRST)
    put(sink, 8)
    assert place.read() == []
    place.commit(FIRST, prepared)
    assert place.read() == [1, 2, 3, 4, 5, 6, 7]
    assert sum(each.rows for each in prepared) == 7


def test_committing_again_changes_nothing(place: Place) -> None:
    sink = place.open()
    put(sink, 1, 2)
    first = prepared_by(sink, FIRST)
    put(sink, 3, 4, 5, 6)
    second = prepared_by(sink, SECOND)
    for checkpoint, prepared in [(FIRST, first), (FIRST, first), (SECOND, second), (FIRST, first), (SECOND, second)]:
        place.commit(checkpoint, prepared)
    assert place.read() == [1, 2, 3, 4, 5, 6]


def test_committables_of_several_checkpoints_can_be_committed_at_once(place: Place) -> None:
    sink = place.open()
    put(sink, 1)
    prepared = prepared_by(sink, FIRST)
    put(sink, 2)
    prepared += prepared_by(sink, SECOND)  # the first one was given up
    place.commit(SECOND, prepared)
    assert place.read() == [1, 2]


def test_rows_prepared_by_an_attempt_that_died_are_committed_by_anyone(place: Place) -> None:
    sink = place.open()
    put(sink, 1, 2)
    prepared = prepared_by(sink, FIRST)
    put(sink, 3)
    del sink  # no close: the process is gone
    place.clean(*prepared)
    place.commit(FIRST, prepared)
    assert place.read() == [1, 2]


def test_committables_survive_being_stored_as_json(place: Place) -> None:
    sink = place.open()
    put(sink, 1, 2)
    stored = msgspec.json.encode(prepared_by(sink, FIRST))
    place.commit(FIRST, msgspec.json.decode(stored, type=list[Committable]))
    assert place.read() == [1, 2]


def test_next_attempt_writes_the_rows_after_the_cut_once(place: Place) -> None:
    first = place.open(attempt=1)
    put(first, 1, 2)
    prepared, state = prepared_by(first, FIRST), first.snapshot()
    put(first, 3, 4)
    lost = prepared_by(first, SECOND)  # acknowledged to nobody
    put(first, 5)
    place.clean(*prepared)
    second = place.open(attempt=2, restored=state)
    place.commit(FIRST, prepared)
    put(second, 3, 4, 5)
    place.commit(THIRD, prepared_by(second, THIRD))
    assert place.read() == [1, 2, 3, 4, 5]
    with pytest.raises(StorageError):
        place.commit(SECOND, lost)


def test_clean_keeps_what_is_referred_to(place: Place) -> None:
    sink = place.open()
    put(sink, 1)
    first = prepared_by(sink, FIRST)
    put(sink, 2)
    second = prepared_by(sink, SECOND)
    place.clean(*second)
    place.clean(*second)
    place.commit(SECOND, second)
    assert place.read() == [2]
    with pytest.raises(StorageError):
        place.commit(FIRST, first)


def test_clean_leaves_visible_rows_alone(place: Place) -> None:
    sink = place.open()
    put(sink, 1)
    place.commit(FIRST, prepared_by(sink, FIRST))
    place.clean()
    assert place.read() == [1]


def test_nothing_is_prepared_without_rows(place: Place) -> None:
    sink = place.open()
    assert prepared_by(sink, FIRST) == []
    put(sink, 1)
    assert len(prepared_by(sink, SECOND)) == 1
    assert prepared_by(sink, THIRD) == []


def test_subtasks_do_not_disturb_each_other(place: Place) -> None:
    sinks = [place.open(subtask=subtask) for subtask in range(2)]
    for subtask, sink in enumerate(sinks):
        put(sink, subtask, lane=subtask)
    place.commit(FIRST, [each for sink in sinks for each in prepared_by(sink, FIRST)])
    assert place.read() == [0, 1]


def test_snapshot_counts_the_rows_of_each_lane_across_restores(place: Place) -> None:
    first = place.open()
    assert first.snapshot() is None
    put(first, 1, 2, lane=3)
    put(first, 3, lane=1)
    state = first.snapshot()
    put(first, 4, lane=1)  # after the cut: not counted
    second = place.open(attempt=2, restored=state)
    put(second, 5, 6, lane=1)
    found = second.snapshot()
    assert found is not None
    assert found.to_pydict() == {LANE: [1, 3], "rows": [3, 2]}
    assert found.schema.field(LANE).type == pa.int32()


def test_counts_of_lanes_from_two_subtasks_are_joined(place: Place) -> None:
    parts = [pa.table({LANE: pa.array([lane], pa.int32()), "rows": [lane + 10]}) for lane in (0, 4)]
    sink = place.open(restored=pa.concat_tables(parts))
    put(sink, 1, lane=4)
    found = sink.snapshot()
    assert found is not None
    assert found.to_pydict() == {LANE: [0, 4], "rows": [10, 15]}


def test_visible_rows_are_those_committed(place: Place) -> None:
    sink = place.open()
    put(sink, 1, 2, 3, 4)
    prepared = prepared_by(sink, FIRST)
    assert place.config.visible_rows(JOB) == 0
    place.commit(FIRST, prepared)
    assert place.config.visible_rows(JOB) == 4
