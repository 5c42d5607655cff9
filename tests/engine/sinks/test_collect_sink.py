"""What is particular to the collect sink: the order of its rows, and how long they are kept."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.core.identity import Attempt, CheckpointId, CommitPermit, TaskId
from penstock.engine.core.operator import OperatorContext
from penstock.engine.sinks.collect import COLLECTED, CollectedRows, CollectSink, RunningCollectSink
from support.sinks import prepared_by

SCHEMA = pa.schema([("x", pa.int64())])
JOB = "collecting"


@pytest.fixture(autouse=True)
def forget() -> None:
    COLLECTED.forget(JOB)


class Nowhere:
    def emit(self, batch: Batch) -> None:
        raise AssertionError("a sink has no output")


def open_sink(subtask: int = 0, name: str = "result") -> RunningCollectSink:
    context = OperatorContext("collect", TaskId("stage", subtask), Attempt(1, 1), 2, range(8), JOB)
    return CollectSink(name).build(context, [SCHEMA], None)


def put(sink: RunningCollectSink, value: int, tag: Tag) -> None:
    sink.process(0, Batch(pa.record_batch([pa.array([value])], schema=SCHEMA), tag), Nowhere())


def commit(sink: RunningCollectSink, number: int) -> None:
    checkpoint = CheckpointId(1, number)
    CollectSink("result").committer(JOB).commit(CommitPermit(checkpoint, tuple(prepared_by(sink, checkpoint))))


def test_rows_come_back_in_the_order_of_their_tags_whoever_collected_them() -> None:
    left, right = open_sink(0), open_sink(1)
    put(right, 2, Tag(0, 5, 0))
    put(left, 0, Tag(0, 0, 0))
    put(left, 1, Tag(0, 0, 1))
    put(left, 3, Tag(1, 0, 0))
    put(right, 4, Tag(1, 5, 0))
    commit(right, 1)
    commit(left, 1)
    assert COLLECTED.read(JOB, "result")["x"].to_pylist() == [0, 1, 2, 3, 4]


def test_rows_that_a_task_barrier_brought_stand_behind_the_round_before_it() -> None:
    left, right = open_sink(0), open_sink(1)
    put(right, 1, Tag(2, 5, 0))
    for sink in (left, right):
        sink.end_round(0, 2, Nowhere())
    put(left, 3, Tag(2, 0, 0))
    put(right, 2, Tag(1, 5, 0))
    put(left, 4, Tag(3, 0, 0))
    commit(left, 1)
    commit(right, 1)
    assert COLLECTED.read(JOB, "result")["x"].to_pylist() == [1, 2, 3, 4]


def test_result_without_rows_has_its_schema() -> None:
    open_sink()
    assert COLLECTED.read(JOB, "result") == SCHEMA.empty_table()


def test_unknown_result_is_refused_with_the_names_that_exist() -> None:
    open_sink(name="daily")
    with pytest.raises(ConfigurationError, match="nothing under 'result'") as caught:
        COLLECTED.read(JOB, "result")
    assert caught.value.remedy == "it has: daily"


def test_forgotten_job_leaves_nothing_for_the_next_one_of_its_name() -> None:
    first = open_sink()
    put(first, 1, Tag(0, 0, 0))
    commit(first, 1)
    COLLECTED.forget(JOB)
    second = open_sink()
    put(second, 2, Tag(0, 0, 0))
    commit(second, 1)
    assert COLLECTED.read(JOB, "result")["x"].to_pylist() == [2]


def test_rows_may_be_forgotten_by_the_collector_of_garbage_at_any_moment() -> None:
    rows = CollectedRows()
    rows.declare("job", "result", SCHEMA)
    with rows._lock:  # as if the collector ran in the middle of something
        rows.forget("job")
    with pytest.raises(ConfigurationError, match="has collected nothing"):
        rows.read("job", "result")
