"""When a task cuts, and what barriers mean then: the machine alone, against a plain account of what came."""

from __future__ import annotations

from random import Random

import pytest

from penstock.engine.core.elements import Barrier
from penstock.engine.core.errors import InternalError
from penstock.engine.core.identity import BarrierKind, CheckpointId
from penstock.engine.runtime.task_cut import MEANINGLESS, CutPhase, TaskCut


def barrier(number: int) -> Barrier:
    return Barrier(CheckpointId(1, number), BarrierKind.CHECKPOINT, 0.0, unaligned=True)


def test_the_first_barrier_asks_for_a_cut_and_the_last_one_completes_it():
    cut = TaskCut("ab")
    first = cut.arrive("a", barrier(1))
    assert (first.asks, first.holds, first.completes) == (True, True, False)
    assert not cut.take()
    assert cut.waits_for == {"b"}
    last = cut.arrive("b", barrier(1))
    assert (last.holds, last.records_no_more, last.completes) == (False, True, True)
    assert cut.phase is CutPhase.NONE


def test_a_task_without_inputs_is_triggered_and_complete_at_once():
    cut = TaskCut("")
    assert cut.order(barrier(1)).asks
    assert cut.take()
    assert cut.order(barrier(1)) is MEANINGLESS


def test_the_end_of_a_partition_counts_as_its_barrier():
    cut = TaskCut("ab")
    cut.arrive("a", barrier(1))
    cut.take()
    assert cut.end("b")
    assert cut.order(barrier(2)).asks
    assert not cut.take(), "a channel that has ended is not waited for, the other one is"
    assert cut.waits_for == {"a"}


def test_a_newer_checkpoint_gives_an_older_one_up_and_barriers_of_that_mean_nothing():
    cut = TaskCut("ab")
    cut.arrive("a", barrier(1))
    cut.take()
    assert cut.arrive("b", barrier(2)).gives_up == CheckpointId(1, 1)
    assert cut.arrive("b", barrier(1)) is MEANINGLESS
    assert cut.phase is CutPhase.ASKED


def test_barriers_of_a_checkpoint_that_was_given_up_mean_nothing():
    cut = TaskCut("ab")
    cut.arrive("a", barrier(1))
    assert cut.abort(CheckpointId(1, 1)) == CheckpointId(1, 1)
    assert cut.arrive("b", barrier(1)) is MEANINGLESS
    assert cut.abort(CheckpointId(1, 3)) is None
    assert cut.order(barrier(2)) is MEANINGLESS
    assert cut.order(barrier(4)).asks


def test_a_barrier_goes_out_before_a_driver_hears_of_it_and_shuts_the_way_out_until_the_cut():
    cut = TaskCut("ab")
    assert cut.forward(barrier(1))
    assert (cut.phase, cut.is_shut) == (CutPhase.FORWARDED, True)
    assert not cut.forward(barrier(1)), "it goes out once"
    first = cut.arrive("a", barrier(1))
    assert (first.asks, first.holds, cut.phase, cut.is_shut) == (True, True, CutPhase.ASKED, True)
    assert not cut.order(barrier(1)).asks, "another driver has asked"
    cut.take()
    assert not cut.is_shut
    assert not cut.forward(barrier(1))
    assert cut.arrive("b", barrier(1)).completes


def test_a_barrier_that_could_not_go_out_at_first_does_later():
    cut = TaskCut("ab")
    assert cut.arrive("a", barrier(1)).asks
    assert not cut.is_shut
    assert cut.forward(barrier(1))
    assert (cut.phase, cut.is_shut) == (CutPhase.ASKED, True)


@pytest.mark.parametrize("heard", [False, True])
def test_the_way_out_opens_when_a_checkpoint_whose_barrier_has_gone_out_is_given_up(heard):
    cut = TaskCut("ab")
    cut.forward(barrier(1))
    if heard:
        cut.order(barrier(1))
    assert cut.abort(CheckpointId(1, 1)) == CheckpointId(1, 1)
    assert (cut.phase, cut.is_shut) == (CutPhase.NONE, False)
    assert not cut.order(barrier(1)).asks
    assert not cut.forward(barrier(1))


def test_a_newer_barrier_goes_out_behind_one_that_no_driver_has_heard_of():
    cut = TaskCut("ab")
    cut.forward(barrier(1))
    assert cut.forward(barrier(2))
    assert cut.is_shut
    assert not cut.order(barrier(1)).asks
    assert cut.order(barrier(2)).asks


def test_no_barrier_comes_twice():
    cut = TaskCut("ab")
    cut.arrive("a", barrier(1))
    with pytest.raises(InternalError, match="come twice"):
        cut.arrive("a", barrier(1))


@pytest.mark.parametrize("seed", range(300))
def test_every_checkpoint_that_is_not_given_up_is_cut_once_and_completed(seed):
    chance = Random(seed)
    channels = "abcd"[: chance.randint(0, 4)]
    cut, over, given_up = TaskCut(channels), set(channels), 0
    last = dict.fromkeys(channels, 0)
    taken: list[int] = []
    completed: list[int] = []
    newest, sends = 0, 0
    gone_out: dict[int, int] = {}
    for _ in range(60):
        cut.validate()
        draw = chance.random()
        live = [each for each in channels if each in over]
        before = cut.barrier
        done = False
        sends += not cut.is_shut
        if draw > 0.9:
            number = before.checkpoint.number if before is not None and draw > 0.95 else newest + 1
            if cut.forward(barrier(number)):
                assert number not in gone_out, "it goes out once"
                gone_out[number], newest = sends, max(newest, number)
        elif cut.phase is CutPhase.ASKED and draw < 0.3:
            number = before.checkpoint.number
            if cut.forward(before):
                gone_out[number] = sends
            assert gone_out[number] == sends, "nothing was sent between the barrier and the cut"
            taken.append(number)
            done = cut.take()
        elif draw < 0.4:
            newest += 1
            cut.order(barrier(newest))
        elif draw < 0.8 and live:
            channel = chance.choice(live)
            if last[channel] < newest:
                last[channel] = chance.randint(last[channel] + 1, newest)
                done = cut.arrive(channel, barrier(last[channel])).completes
        elif draw < 0.85 and live:
            channel = chance.choice(live)
            over.discard(channel)
            done = cut.end(channel)
        elif draw < 0.9:
            given_up = max(given_up, chance.randint(0, newest))
            cut.abort(CheckpointId(1, given_up))
        if done:
            number = before.checkpoint.number
            completed.append(number)
            assert number > given_up
            assert all(last[each] == number for each in over), "it waits for every channel that goes on"
    assert taken == sorted(set(taken)), "each is cut once, in their order"
    assert set(completed) <= set(taken)
