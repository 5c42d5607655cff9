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
    newest = 0
    for _ in range(60):
        cut.validate()
        draw = chance.random()
        live = [each for each in channels if each in over]
        before = cut.barrier
        done = False
        if cut.phase is CutPhase.ASKED and draw < 0.3:
            taken.append(before.checkpoint.number)
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
