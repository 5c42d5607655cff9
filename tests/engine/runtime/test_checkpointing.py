"""Barriers that overtake batches at one driver: what is cut, what is kept, and what goes out when."""

import pytest

from penstock.engine.core.elements import CancelBarrier, EndOfData, EndOfPartition, EndOfRound
from penstock.engine.core.identity import CheckpointId, Holds
from penstock.engine.runtime.orders import PlaceBarrier
from penstock.engine.scheduler.protocol import Blocked
from penstock.engine.sources.reader import SplitReader
from support.driver_rig import Double, Sum, barrier, batch, rows
from support.overtaking_rig import OvertakingRig, timed, unaligned, values


def full() -> OvertakingRig:
    """A driver that has made a batch which nobody takes, and has more to read."""
    rig = OvertakingRig(Double(), feeds=1, credit=1)
    rig.send(batch(0, 0, 1), batch(0, 1, 2), EndOfRound(0), batch(1, 0, 3))
    assert values(rig.run()) == [[1]]
    return rig


def test_barrier_leaves_a_driver_without_credit_and_the_cut_holds_exactly_what_it_overtook() -> None:
    rig = full().send(unaligned(7))
    assert rig.run() == [unaligned(7)]
    assert rig.held(7, Holds.OUTPUT) == [(0, [1])]
    assert rig.held(7, Holds.INPUT) == [(0, [2]), (1, [3])]
    assert [(part.exchange, part.holds) for part in rig.host.cuts[7].channels] == [
        ("in", Holds.INPUT),
        ("out", Holds.OUTPUT),
    ]


def test_what_was_overtaken_is_processed_behind_the_barrier() -> None:
    rig = full().send(unaligned(7))
    rig.run()
    rig.output._credit = 1 << 20
    assert values(rig.run()) == [[1], [2], [2], EndOfRound(0), [3], [3]]


def test_state_is_that_of_the_first_barrier_and_batches_before_the_others_are_kept_until_they_come() -> None:
    rig = OvertakingRig(Sum(), feeds=3)
    rig.send(batch(0, 0, 1)).run()
    rig.send(unaligned(1), batch(0, 0, 10), feed=0).send(batch(0, 1, 2), feed=1)
    assert rig.run() == [unaligned(1)]
    assert not rig.host.cuts, "two barriers are missing"
    rig.send(batch(0, 1, 3), unaligned(1), batch(0, 1, 20), feed=1).run()
    assert not rig.host.cuts, "one barrier is missing"
    rig.send(EndOfRound(0), feed=0).send(EndOfRound(0), feed=1).send(EndOfRound(0), EndOfData(), feed=2)
    assert values(rig.run())[-2:] == [[36], EndOfRound(0)]
    rig.send(EndOfPartition(), feed=2).run()
    assert rig.held(1, Holds.INPUT) == [(0, [2]), (0, [3])]
    assert rig.host.cuts[1].unaligned
    (table,) = rig.host.cuts[1].tables.values()
    assert table["total"].to_pylist() == [0], "the sum of a round is added when that ends, behind the cut"


def test_operator_that_is_emitting_finishes_its_element_before_the_cut() -> None:
    class Slow(Double):
        def end_round(self, port, round, out):
            for value in range(3):
                self._emitter.emit(batch(round, 0, value).records, round, 0, out)
                yield

    rig = OvertakingRig(Slow(), feeds=1, credit=1)
    rig.send(EndOfRound(0))
    assert values(rig.run()) == [[0]]
    rig.send(unaligned(1))
    assert rig.run() == [], "two thirds of the element are still to come"
    rig.output._credit = 1
    assert values(rig.run()) == [[1]]
    rig.output._credit = 1
    assert values(rig.run()) == [[2], EndOfRound(0), unaligned(1)]
    assert rig.host.cuts[1].channels == ()


def test_barrier_waits_for_its_turn_where_what_was_made_may_not_be_overtaken() -> None:
    rig = OvertakingRig(Double(), feeds=1, credit=1, output=None)
    rig.send(batch(0, 0, 1), batch(0, 1, 2))
    assert values(rig.run()) == [[1]]
    assert rig.send(unaligned(1)).run() == []
    assert rig.held(1, Holds.INPUT) == [(0, [2])], "the cut is at once, though the barrier waits"
    rig.output._credit = 1 << 20
    assert values(rig.run()) == [[1], unaligned(1), [2], [2]]


def test_savepoint_is_aligned_where_checkpoints_are_not() -> None:
    rig = full().send(barrier(1))
    assert rig.run() == []
    rig.output._credit = 1 << 20
    assert values(rig.run()) == [[1], [2], [2], EndOfRound(0), [3], [3], barrier(1)]
    assert rig.host.cuts[1].channels == ()
    assert not rig.host.cuts[1].unaligned


def test_checkpoint_that_is_given_up_drops_what_was_kept_but_not_what_sinks_prepared() -> None:
    rig = OvertakingRig(Double(), feeds=2)
    rig.send(batch(0, 0, 1), unaligned(1)).run()
    rig.driver.checkpointing.abort(CheckpointId(1, 1))
    assert CancelBarrier(CheckpointId(1, 1)) in rig.run()
    assert (rig.host.gave_up, rig.host.left) == ([1], [(1, [])])
    rig.send(batch(0, 1, 2), unaligned(1), feed=1)
    assert values(rig.run()) == [[2], [2]], "a late barrier of it means nothing"
    rig.send(unaligned(2), feed=0).send(unaligned(2), feed=1)
    assert rig.run() == [unaligned(2)]
    assert list(rig.host.cuts) == [2]


def test_newer_checkpoint_takes_the_place_of_one_that_still_waits() -> None:
    rig = OvertakingRig(Double(), feeds=2)
    rig.send(unaligned(1)).run()
    rig.send(batch(0, 0, 1), unaligned(2)).send(batch(0, 1, 2), unaligned(2), feed=1)
    rig.run()
    assert list(rig.host.cuts) == [2]
    assert rig.host.gave_up == [1]
    assert rig.held(2, Holds.INPUT) == [(0, [1]), (0, [2])]


def test_alignment_that_takes_too_long_turns_unaligned_at_its_deadline() -> None:
    rig = OvertakingRig(Double(), feeds=2, credit=1)
    rig.send(batch(0, 0, 1), batch(0, 0, 2), timed(1, 5.0)).send(batch(0, 1, 3), feed=1)
    assert values(rig.run(now=10.0)) == [[1]]
    assert isinstance(rig.outcome, Blocked)
    assert rig.outcome.wake_at == 15.0
    assert rig.run(now=14.9) == []
    (sent,) = rig.run(now=15.0)
    assert sent.unaligned
    rig.send(batch(0, 1, 4), timed(1, 5.0), feed=1).run(now=16.0)
    cut = rig.host.cuts[1]
    assert (cut.unaligned, cut.alignment) == (True, 1.0)
    assert rig.held(1, Holds.OUTPUT) == [(0, [1])]
    assert sorted(rig.held(1, Holds.INPUT)) == [(0, [2]), (0, [3]), (0, [4])]


def test_alignment_that_is_fast_enough_stays_aligned() -> None:
    rig = OvertakingRig(Double(), feeds=2)
    rig.send(batch(0, 0, 1), timed(1, 5.0)).run()
    rig.send(batch(0, 1, 2), timed(1, 5.0), feed=1)
    assert values(rig.run(now=4.0)) == [[2], [2], timed(1, 5.0)]
    assert (rig.host.cuts[1].unaligned, rig.host.cuts[1].channels) == (False, ())


class TwoRows:
    """A split of two rows."""

    def __init__(self, first: int) -> None:
        self.id, self.rows, self._first = f"from {first}", 2, first

    def open(self, start):
        yield rows(*range(self._first + start, self._first + 2))


@pytest.mark.parametrize("ordered", [unaligned(1), timed(1, 3.0)], ids=["at once", "after a while"])
def test_barrier_leaves_a_source_whose_rows_nobody_takes_and_restored_it_goes_on_behind_what_was_kept(ordered) -> None:
    splits = [TwoRows(0), TwoRows(10), TwoRows(20)]
    lanes = {"lanes": range(2), "lane_count": 2, "quota": 4, "rounds": "free"}
    rig = OvertakingRig(Double(), credit=1, reader=SplitReader("s", rows(0).schema, splits, **lanes))
    assert values(rig.run()) == [[0, 1]]
    rig.driver.send(PlaceBarrier(ordered, 4, None))
    overdue = rig.run(now=0.0) + rig.run(now=3.0)
    assert [each.unaligned for each in overdue] == [True]
    assert rig.held(1, Holds.OUTPUT) == [(0, [0, 1])]
    again = SplitReader("s", rows(0).schema, splits, **lanes, restored=rig.host.cuts[1].tables["s"])
    assert values([again.pop() for _ in range(3)]) == [[10, 11], EndOfRound(5), [20, 21]]
    rig.output._credit = 1 << 20
    assert values(rig.run(now=4.0))[:2] == [[0, 1], EndOfRound(4)]


@pytest.mark.parametrize("number", [1, 2])
def test_trigger_at_a_driver_whose_inputs_have_ended_for_good_cuts_it_unless_it_has_been(number: int) -> None:
    rig = OvertakingRig(Double(), feeds=1)
    rig.send(unaligned(1), EndOfRound(0), EndOfData(), EndOfPartition()).run()
    assert list(rig.host.cuts) == [1]
    rig.driver.checkpointing.inject(unaligned(number), [0])
    assert rig.run() == [unaligned(2)] * (number == 2)
    assert list(rig.host.cuts) == list(range(1, number + 1))
