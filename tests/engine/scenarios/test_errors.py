"""Errors of operators, of the data and of users' functions: what they say, and that the first one wins.

After the lists of Velox's driver and task tests.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.core.elements import Batch
from penstock.engine.core.errors import DataError, InternalError, UserCodeError
from penstock.engine.core.operator import Output, Stateless
from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask
from support.scenario_tasks import (
    MODES,
    Passing,
    finish,
    own,
    raising,
    read_to_error,
    scan,
    split,
    table,
    values,
)


@MODES
def test_division_by_zero_fails_the_task_before_any_row(degree, make_task):
    """error: the state is failed, no row was given out, and the barrier's future is ready."""
    task = make_task(scan(Flow("plan")).map_batches(_divided, table(c0=[]).schema, name="divide"), degree)
    task.add_split("rows", split(c0=[1, 2]))
    reached = task.request_barrier()
    batches, error = read_to_error(task)
    assert batches == []
    assert isinstance(error, UserCodeError)
    assert (error.operator, task.state) == ("divide", "failed")
    assert "divide by zero" in error.message
    assert str(reached.exception(0)) == str(error)


def _divided(records: pa.RecordBatch) -> dict[str, pa.Array]:
    return {"c0": pc.divide(records.column(0), 0)}


@MODES
def test_error_of_the_data_names_operator_and_column(degree, make_task):
    """additionalContextInRuntimeException: which operator, which of its columns, and what to do."""
    task = make_task(scan(Flow("plan")).project(c0="cast(c0 as tinyint)", name="narrow"), degree)
    task.add_split("rows", split(c0=[1000]))
    _, error = read_to_error(task)
    assert isinstance(error, DataError)
    assert error.operator == "narrow"
    assert "c0" in error.message
    assert error.remedy


@MODES
def test_error_of_a_kernel_names_operator_and_batch(degree, make_task):
    """additionalContextInRuntimeException: an operator that lets a kernel's error pass gets its place added."""

    def fail(records: pa.RecordBatch) -> None:
        if records.column(0)[0].as_py() == 2:
            raise pa.ArrowInvalid("a bad value")

    task = make_task(own(scan(Flow("plan")), lambda _: Passing(fail)), degree)
    for value in (1, 2):
        task.add_split("rows", split(c0=[value]))
    task.request_barrier()
    batches, error = read_to_error(task)
    assert values(batches) == [1]
    assert isinstance(error, DataError)
    assert error.operator == "own"
    assert "a bad value (round 1, lane 4, batch 0)" in error.message


class Failing(Stateless):
    """Raises a foreign exception in one of its methods."""

    def __init__(self, method: str) -> None:
        self._method = method

    def _may_fail(self, method: str) -> None:
        if method == self._method:
            raise KeyError(f"in {method}")

    def accepts(self, port: int) -> bool:
        self._may_fail("accepts")
        return True

    def process(self, port: int, batch: Batch, out: Output) -> None:
        self._may_fail("process")
        out.emit(batch)

    def end_round(self, port: int, round: int, out: Output) -> None:
        self._may_fail("end_round")

    def end_port(self, port: int, out: Output) -> None:
        self._may_fail("end_port")

    def drain(self, out: Output) -> None:
        self._may_fail("drain")

    def finish(self, out: Output) -> None:
        self._may_fail("finish")

    def close(self) -> None:
        self._may_fail("close")


@MODES
@pytest.mark.parametrize("method", ["accepts", "process", "end_round", "drain", "end_port", "finish"])
def test_foreign_exception_in_any_call_fails_the_task_with_a_name(method, degree, make_task):
    """nonVeloxOperatorException: whatever an operator raises, and wherever, becomes an error of ours."""
    task = make_task(own(scan(Flow("plan")), lambda _: Failing(method)), degree)
    task.add_split("rows", split(c0=[1]))
    if method not in {"end_port", "finish"}:
        task.request_barrier()
    else:
        task.no_more_splits("rows")
    _, error = read_to_error(task)
    assert isinstance(error, UserCodeError | InternalError)
    assert f"in {method}" in str(error)
    assert error.operator in {"own", "rows"}


@MODES
def test_error_in_close_does_not_hide_the_first_error(degree, make_task):
    """First error wins: what closing raises is added to it as a note."""
    stream = own(scan(Flow("plan")), lambda _: Failing("close"))
    task = make_task(stream.map_batches(raising("the first"), table(c0=[]).schema), degree)
    task.add_split("rows", split(c0=[1]))
    _, error = read_to_error(task)
    assert "the first" in error.message
    task.cancel()
    assert any("in close" in note for note in error.__notes__)


@MODES
def test_error_in_close_alone_does_not_undo_the_rows(degree, make_task):
    """The rows are out and the task is finished; closing cannot change that."""
    task = make_task(own(scan(Flow("plan")), lambda _: Failing("close")), degree)
    task.add_split("rows", split(c0=[1]))
    assert values(finish(task)) == [1]


class _FailingClose(Passing):
    def close(self) -> None:
        raise ValueError("in close")


@MODES
@pytest.mark.parametrize("ending", ["finished", "cancelled"])
def test_error_of_a_close_is_logged_if_there_was_no_other(degree, ending, caplog):
    task = PlanTask(own(scan(Flow("plan")), lambda _: _FailingClose()), degree=degree)
    task.add_split("rows", split(c0=[1]))
    task.no_more_splits("rows")
    assert values([task.read()]) == [1]
    assert (task.read() if ending == "finished" else task.cancel()) is None
    task.cancel()
    [told] = caplog.messages
    assert told.startswith(f"a plan that was {ending} did not close: own: ")
    assert "in close" in told


@MODES
def test_error_of_a_close_after_another_one_is_a_note_of_that(degree):
    stream = own(scan(Flow("plan")), lambda _: _FailingClose()).map_batches(raising("first"), table(c0=[]).schema)
    task = PlanTask(stream, degree=degree)
    task.add_split("rows", split(c0=[1]))
    task.request_barrier()
    with pytest.raises(UserCodeError, match="first") as failed:
        task.read()
    assert any("in close" in note for note in failed.value.__notes__)
