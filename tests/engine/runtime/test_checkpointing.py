"""Barriers by agreement at one driver: when it cuts, and what goes out when."""

import pytest

from penstock.engine.core.elements import CancelBarrier, EndOfData, EndOfPartition, EndOfRound
from penstock.engine.core.identity import CheckpointId
from support.barrier_rig import BarrierRig, values
from support.driver_rig import Double, Sum, barrier, batch


def test_state_is_that_of_the_last_barrier_and_a_feed_is_not_read_behind_its_own() -> None:
    rig = BarrierRig(Sum(), feeds=2)
    ended = [EndOfRound(0), barrier(1), batch(1, 0, 100)]
    rig.send(batch(0, 0, 1), *ended).run()
    assert not rig.host.cuts, "a barrier is missing"
    rig.send(batch(0, 1, 2), EndOfRound(0), feed=1).run()
    assert values(rig.send(barrier(1), batch(1, 1, 200), feed=1).run()) == [barrier(1)]
    (table,) = rig.host.cuts[1].tables.values()
    assert table["total"].to_pylist() == [3]
    assert not rig.host.cuts[1].unaligned


def test_operator_that_is_emitting_finishes_its_element_before_the_cut() -> None:
    class Slow(Double):
        def end_round(self, port, round, out):
            for value in range(3):
                self._emitter.emit(batch(round, 0, value).records, round, 0, out)
                yield

    rig = BarrierRig(Slow(), feeds=1, credit=1)
    rig.send(EndOfRound(0), barrier(1))
    assert values(rig.run()) == [[0]]
    assert not rig.host.cuts, "two thirds of the element are still to come"
    rig.output._credit = 1
    assert values(rig.run()) == [[1]]
    rig.output._credit = 1
    assert values(rig.run()) == [[2], EndOfRound(0), barrier(1)]
    assert list(rig.host.cuts) == [1]


def test_barrier_waits_for_what_was_made_before_it() -> None:
    rig = BarrierRig(Double(), feeds=1, credit=1)
    rig.send(batch(0, 0, 1), EndOfRound(0), barrier(1))
    assert values(rig.run()) == [[1]]
    assert rig.run() == []
    rig.output._credit = 1 << 20
    assert values(rig.run()) == [[1], EndOfRound(0), barrier(1)]


def test_barrier_of_a_checkpoint_that_was_given_up_means_nothing() -> None:
    rig = BarrierRig(Double(), feeds=2)
    rig.send(barrier(1)).run()
    rig.driver.checkpointing.abort(CheckpointId(1, 1))
    assert CancelBarrier(CheckpointId(1, 1)) in rig.run()
    assert rig.host.gave_up == [1]
    rig.send(batch(0, 1, 2), barrier(1), feed=1)
    assert values(rig.run()) == [[2], [2]], "a late barrier of it means nothing"
    rig.send(barrier(2), feed=0).send(barrier(2), feed=1)
    assert rig.run() == [barrier(2)]
    assert list(rig.host.cuts) == [2]


def test_newer_checkpoint_takes_the_place_of_one_that_still_waits() -> None:
    rig = BarrierRig(Double(), feeds=2)
    rig.send(barrier(1)).run()
    rig.send(barrier(2), feed=1).run()
    rig.send(barrier(2), feed=0).run()
    assert list(rig.host.cuts) == [2]
    assert rig.host.gave_up == [1]


def test_time_from_the_first_barrier_to_the_last_is_that_of_the_alignment() -> None:
    rig = BarrierRig(Double(), feeds=2)
    rig.send(barrier(1)).run(now=1.0)
    rig.send(batch(0, 1, 2), barrier(1), feed=1).run(now=4.0)
    cut = rig.host.cuts[1]
    assert (cut.alignment, cut.processed_bytes) == (3.0, 8)


@pytest.mark.parametrize("number", [1, 2])
def test_trigger_at_a_driver_whose_inputs_have_ended_for_good_cuts_it_unless_it_has_been(number: int) -> None:
    rig = BarrierRig(Double(), feeds=1)
    rig.send(EndOfRound(0), EndOfData(), barrier(1), EndOfPartition()).run()
    assert list(rig.host.cuts) == [1]
    rig.driver.checkpointing.inject(barrier(number), [0])
    assert rig.run() == [barrier(2)] * (number == 2)
    assert list(rig.host.cuts) == list(range(1, number + 1))
