"""What a user's code raises ends the job at once, whatever it is, with the function, its rows and the remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import DataError, InternalError, PenstockError, StorageError, UserCodeError
from penstock.engine.core.user_code import is_to_be_told, user_frames

TABLE = pa.table({"k": list(range(10))})


class OwnError(BaseException):
    """No Exception at all."""


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


ERRORS: list[BaseException] = [
    ValueError("bad"),
    KeyError("k"),
    MemoryError("no room"),
    StopIteration(),
    UnprintableError(),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    OwnError("own"),
    PenstockError("of the user's own making"),
    InternalError("likewise", "", "somebody"),
]
each_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
on_either_thread = pytest.mark.parametrize("threads", [0, 1])


def failure_of(flow: ps.Flow, threads: int, kind: type[Exception] = UserCodeError) -> str:
    """What the job ends with, at once."""
    with ps.run_local(flow, threads=threads, name="user-code") as job:
        with pytest.raises(kind) as caught:
            job.wait(20)
        assert job.status().restarts == 0
    return str(caught.value)


def flow_of(function: Callable[..., Any] | type) -> ps.Flow:
    flow = ps.Flow("user-code")
    flow.from_tables([TABLE], name="rows").map_batches(function, TABLE.schema, name="mine").collect("out")
    return flow


@on_either_thread
@each_error
def test_whatever_a_function_raises_ends_the_job_at_once(error: BaseException, threads: int) -> None:
    def failing(records: pa.RecordBatch) -> pa.RecordBatch:
        raise error

    told = failure_of(flow_of(failing), threads)
    assert "mine: " in told
    assert f"failing raised {type(error).__name__}" in told
    assert "split rows memory/0" in told
    assert "fix the function" in told


@on_either_thread
def test_endless_recursion_ends_the_job_at_once(threads: int) -> None:
    def endless(records: pa.RecordBatch) -> pa.RecordBatch:
        return endless(records)

    assert "raised RecursionError" in failure_of(flow_of(endless), threads)


@on_either_thread
def test_a_model_that_cannot_be_built_ends_the_job_at_once(threads: int) -> None:
    class Model:
        def __init__(self) -> None:
            sys.exit(4)

        def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
            return records

    assert "Model could not be built: it raised SystemExit: 4" in failure_of(flow_of(Model), threads)


@pytest.mark.parametrize("wrong", [None, 3, "text", {"k": ["a"]}, {"other": [1]}, [1, 2]])
def test_a_wrong_result_ends_the_job_at_once_and_names_the_split(wrong: object) -> None:
    told = failure_of(flow_of(lambda records: wrong), 0, DataError)
    assert "mine: " in told
    assert "split rows memory/0" in told


@on_either_thread
def test_the_split_is_one_of_what_feeds_the_function_not_of_what_it_meets_in_a_join(threads: int) -> None:
    def failing(records: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("bad")

    flow = ps.Flow("user-code")
    rows, others = (flow.from_tables([TABLE, TABLE], name=name) for name in ("rows", "others"))
    rows.map_batches(failing, TABLE.schema).hash_join(others, ["k"]).collect("out")
    told = failure_of(flow, threads)
    assert "(split rows memory/" in told
    assert "others" not in told


@on_either_thread
def test_what_fails_at_the_end_of_all_rows_is_not_put_down_to_the_last_split(threads: int) -> None:
    largest = pa.table({"v": pa.array([2**63 - 1], pa.int64())})
    flow = ps.Flow("user-code")
    rows = flow.from_tables([largest, largest, largest.slice(1)], name="rows")
    rows.aggregate([], name="total", sum=("v", "sum"), last=("v", "last")).collect("out")
    told = failure_of(flow, threads, DataError)
    assert "total: sum = sum(v) does not fit into int64" in told
    assert "split" not in told


@dataclass(frozen=True)
class OneSplit:
    error: object
    id: str = "only"
    rows: int | None = None

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0].slice(start, 3)
        if isinstance(self.error, BaseException):
            raise self.error
        yield self.error  # type: ignore[misc]


@dataclass(frozen=True)
class Source:
    error: object
    kind: str = "own"
    schema: pa.Schema = field(default=TABLE.schema)

    def splits(self) -> list[OneSplit]:
        return [OneSplit(self.error)]

    def describe(self) -> str:
        return "own"


def from_source(error: object) -> ps.Flow:
    flow = ps.Flow("user-code")
    flow.from_source(Source(error), name="rows").collect("out")
    return flow


@on_either_thread
@each_error
def test_whatever_a_source_raises_ends_the_job_at_once(error: BaseException, threads: int) -> None:
    if isinstance(error, GeneratorExit | StopIteration):
        pytest.skip("in a generator these are the end of it")
    told = failure_of(from_source(error), threads)
    assert f"rows: reading split only: it raised {type(error).__name__}" in told


def test_a_source_that_gives_no_batches_ends_the_job_at_once() -> None:
    assert "split only gave a str" in failure_of(from_source("text"), 0, DataError)


def test_a_source_that_loses_its_network_is_read_again() -> None:
    with ps.run_local(from_source(OSError("net")), name="again") as job:
        job.wait_until(lambda status: status.restarts > 0, 20)
        assert not job.status().is_over


def test_a_frame_of_a_user_is_told_from_the_engines() -> None:
    def own() -> None:
        raise ValueError

    with pytest.raises(ValueError) as caught:  # noqa: PT011
        own()
    assert user_frames(caught.value) is not None
    with pytest.raises(StorageError) as engines:
        raise StorageError("x", "y")
    assert not is_to_be_told(engines.value)


def test_an_interrupt_of_the_main_thread_is_its_owners() -> None:
    assert not is_to_be_told(KeyboardInterrupt())
    assert is_to_be_told(SystemExit(1))
