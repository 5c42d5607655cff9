"""A paced operator that is full: who is told, what the sources do, and what still comes."""

from __future__ import annotations

import pyarrow as pa

from penstock.engine.core.elements import Barrier, Batch, EndOfRound
from penstock.engine.core.identity import BarrierKind, CheckpointId
from penstock.engine.core.operator import Stateless
from penstock.engine.exchange.channels import PauseRounds
from penstock.engine.plan.rounds import lanes_of
from penstock.engine.runtime import orders
from penstock.engine.sources.memory import MemorySource
from penstock.engine.sources.reader import SplitReader
from support.driver_rig import Double, Rig, barrier, batch

CUT = CheckpointId(1, 1)


class Tank(Stateless):
    """Takes ``room`` batches, and all while barriers are on their way."""

    def __init__(self, room: int) -> None:
        self.room, self.taken = room, 0
        self.expected: CheckpointId | None = None
        self.committed_up_to: CheckpointId | None = None
        self.is_released = False

    def process(self, port, batch, out):
        self.taken += 1

    def accepts(self, port):
        return self.expected is not None or not self.is_full

    def expect(self, checkpoint):
        self.expected = checkpoint

    def abort(self, checkpoint):
        self.expected = None

    def committed(self, checkpoint):
        self.committed_up_to = checkpoint

    @property
    def is_full(self):
        return self.taken >= self.room

    @property
    def waiting_for(self):
        return "the drain" if self.is_full else ""


def holds(rig: Rig) -> list[bool]:
    return [message.paused for message in rig.upstream if isinstance(message, PauseRounds)]


def test_full_operator_holds_the_producers_once_and_says_for_whom_it_waits():
    tank = Tank(2)
    rig = Rig(tank).send(*(batch(0, lane, lane) for lane in range(4)))
    rig.run()
    assert (tank.taken, holds(rig)) == (2, [True])
    assert rig.driver.wait is not None
    assert "the drain" in str(rig.driver.wait)
    tank.room = 10
    rig.run()
    assert (tank.taken, holds(rig)) == (4, [True, False])


def test_what_stands_before_a_barrier_is_taken_though_there_is_no_room():
    tank = Tank(1)
    rig = Rig(tank).send(*(batch(0, lane, lane) for lane in range(3)), EndOfRound(0), barrier(1), batch(1, 0, 9))
    rig.run()
    assert tank.taken == 1
    rig.driver.send(orders.ExpectBarriers(CUT))
    assert barrier(1) in rig.run()
    rig.driver.send(orders.AbortCheckpoint(CUT))
    rig.run()
    assert tank.expected is None
    rig.driver.send(orders.NotifyCommitted(CUT))
    rig.run()
    assert tank.committed_up_to == CUT


def test_driver_between_passes_the_word_on_and_takes_it_back():
    rig = Rig(Double())
    for hold in (True, True, False):
        rig.driver.send(orders.Deliver(rig.output, PauseRounds(rig.output.channel, rig.output.attempts, hold)))
        rig.run()
    assert holds(rig) == [True, False]


def test_task_waits_for_those_who_read():
    tank = Tank(1)
    rig = Rig(tank)
    assert not rig.driver.is_released
    tank.is_released = True
    assert rig.driver.is_released
    assert Rig(Double()).driver.is_released


def test_held_source_ends_its_round_and_begins_none_but_those_up_to_a_barrier():
    table = pa.table({"x": pa.array(range(100), pa.int64())})
    source = MemorySource((table,))
    reader = SplitReader("source", source.schema, source.splits(), lanes_of(0, 1, 1), 1, quota=10)

    def drained() -> list[object]:
        found = []
        while reader.peek() is not None:
            element = reader.pop()
            found.append("rows" if isinstance(element, Batch) else element)
        return found

    assert isinstance(reader.pop(), Batch)
    reader.pause_rounds(True)
    assert drained() == [EndOfRound(0)]
    assert reader.propose(CUT) == 0
    cut = Barrier(CUT, BarrierKind.CHECKPOINT, 0.0)
    reader.trigger(cut, 1)
    assert drained() == ["rows", EndOfRound(1), cut], "another source stood in round 1"
    later = Barrier(CheckpointId(1, 2), BarrierKind.CHECKPOINT, 0.0)
    assert reader.propose(later.checkpoint) == 1
    reader.trigger(later, 1)
    assert drained() == [later], "nothing stands before the next one"
    reader.pause_rounds(False)
    assert drained().count("rows") == 8
