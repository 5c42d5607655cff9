"""The running source of a job that stops with a savepoint: drained or suspended behind the barrier's round."""

import pyarrow as pa
import pytest

from penstock.engine.core.elements import (
    FINAL_ROUND,
    Barrier,
    Batch,
    CancelBarrier,
    EndOfData,
    EndOfPartition,
    EndOfRound,
)
from penstock.engine.core.identity import BarrierKind, CheckpointId
from penstock.engine.plan.rounds import lanes_of
from penstock.engine.sources.reader import SplitReader

SCHEMA = pa.schema([("x", pa.int64())])
ID = CheckpointId(1, 1)
BARRIER = Barrier(ID, BarrierKind.SAVEPOINT, 0.0)


class One:
    """A split of one row."""

    rows = 1

    def __init__(self, number: int) -> None:
        self.id, self._number = f"s{number}", number

    def open(self, start):
        yield pa.record_batch([pa.array([self._number], pa.int64())], SCHEMA).slice(start)


def reader(rounds, restored=None) -> SplitReader:
    """One lane that reads a row in each round."""
    return SplitReader("source", SCHEMA, [One(n) for n in range(rounds)], lanes_of(0, 1, 1), 1, restored=restored)


def taken(found) -> list:
    elements = []
    while found.peek() is not None:
        element = found.pop()
        elements.append(element.records.column(0)[0].as_py() if isinstance(element, Batch) else element)
    return elements


def stopped(found, stop, at_round) -> list:
    """What the reader says after it has proposed in its first round."""
    found.pop()
    assert found.propose(ID) == 0
    found.trigger(BARRIER, at_round, stop)
    return taken(found)


def test_drained_reader_ends_its_data_behind_the_round_and_the_barrier_follows():
    found = reader(9)
    assert stopped(found, "drain", 1) == [EndOfRound(0), 1, EndOfRound(1), EndOfData(), BARRIER]
    assert found.data_ended
    assert found.rows == 2


def test_suspended_reader_says_nothing_behind_the_barrier():
    found = reader(9)
    assert stopped(found, "suspend", 1) == [EndOfRound(0), 1, EndOfRound(1), BARRIER]
    assert not found.data_ended


@pytest.mark.parametrize("at_round", range(4))
def test_suspended_reader_goes_on_from_its_snapshot_where_it_stopped(at_round):
    found = reader(5)
    before = stopped(found, "suspend", at_round)
    after = taken(reader(5, restored=found.snapshot()))
    undisturbed = taken(reader(5))
    assert [undisturbed[0], *before[:-1], *after] == undisturbed


@pytest.mark.parametrize("stop", ["drain", "suspend"])
def test_stop_without_a_round_comes_at_the_end_of_the_one_in_progress(stop):
    end = [EndOfData()] if stop == "drain" else []
    assert stopped(reader(9), stop, None) == [EndOfRound(0), *end, BARRIER]


def test_reader_whose_rows_end_before_the_others_stop_is_drained_with_its_own_end():
    assert stopped(reader(1), "drain", 17) == [EndOfRound(0), EndOfData(), BARRIER]


def test_reader_whose_rows_end_before_the_others_stop_cannot_be_suspended_there():
    assert stopped(reader(1), "suspend", 17) == [EndOfRound(0), CancelBarrier(ID), EndOfData()]


@pytest.mark.parametrize("stop", ["drain", "suspend"])
def test_stop_behind_the_end_of_all_data_is_a_barrier_like_any_other(stop):
    found = reader(1)
    assert stopped(found, stop, FINAL_ROUND) == [EndOfRound(0), EndOfData(), BARRIER]
    found.close()
    assert taken(found) == [EndOfPartition()]


@pytest.mark.parametrize("stop", ["drain", "suspend"])
def test_stop_that_is_given_up_before_its_round_changes_nothing(stop):
    found = reader(3)
    found.pop()
    found.propose(ID)
    found.trigger(BARRIER, 1, stop)
    found.abort(ID)
    assert taken(found)[-1] == EndOfData()
    assert found.rows == 3
