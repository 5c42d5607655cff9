"""A channel where tasks cut as a whole: what waits behind barriers, what is recorded, what is not heard twice."""

from __future__ import annotations

import pytest

from penstock.engine.core.channel_states import EndState
from penstock.engine.core.elements import FINAL_ROUND, Barrier, EndOfData, EndOfPartition, EndOfRound
from penstock.engine.core.identity import BarrierKind, CheckpointId, TaskId
from penstock.engine.exchange.channels import ChannelId, DrainedAck, EndOfDataAck, Frame, InputChannel
from support.driver_rig import ATTEMPTS, batch

CHANNEL = ChannelId("edge", TaskId("a", 0), TaskId("b", 0))


def cp(number: int) -> CheckpointId:
    return CheckpointId(1, number)


def barrier(number: int) -> Barrier:
    return Barrier(cp(number), BarrierKind.CHECKPOINT, 0.0, unaligned=True)


class Watched:
    """A channel, and whether barriers are held."""

    def __init__(self) -> None:
        self.said: list = []
        self.holds = True
        self.heard: list = []
        self.channel = InputChannel(CHANNEL, ATTEMPTS, self.said.append)
        self.channel.watch = self
        self._sequence = 0

    def barrier_came(self, channel, found):
        self.heard.append(found.checkpoint.number)
        return self.holds

    def partition_ended(self, channel):
        self.heard.append("end")

    def come(self, *elements):
        for element in elements:
            self.channel.receive(Frame(CHANNEL, ATTEMPTS, self._sequence, element))
            self._sequence += 1
        return self

    def read(self) -> list:
        found = []
        while self.channel.peek() is not None:
            found.append(self.channel.pop())
        return found


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_nothing_behind_a_barrier_is_read_before_the_cut(watched):
    watched.come(EndOfRound(0), barrier(1), EndOfRound(1), EndOfPartition())
    assert watched.read() == [EndOfRound(0)]
    assert watched.heard == [1]
    assert watched.channel.waits_at == cp(1)
    watched.channel.go_on_behind(cp(1))
    assert watched.read() == [EndOfRound(1), EndOfPartition()]
    assert watched.heard == [1, "end"]


def test_a_further_barrier_holds_again(watched):
    watched.come(barrier(1), EndOfRound(0), barrier(2), EndOfRound(1))
    watched.channel.go_on_behind(cp(1))
    assert watched.read() == [EndOfRound(0)]
    watched.come(EndOfRound(2))
    assert watched.read() == []
    watched.channel.go_on_behind(cp(1))
    assert watched.channel.waits_at == cp(2)
    watched.channel.go_on_behind(cp(2))
    assert watched.read() == [EndOfRound(1), EndOfRound(2)]


def test_what_comes_behind_the_cut_is_recorded_and_read(watched):
    watched.channel.record(cp(1))
    watched.come(batch(0, 0, 1), EndOfRound(0))
    assert watched.channel.recorded == [batch(0, 0, 1), EndOfRound(0)]
    assert watched.read() == [batch(0, 0, 1), EndOfRound(0)]


@pytest.mark.parametrize("given_up", [1, 2])
def test_a_cut_that_is_given_up_is_recorded_no_longer(watched, given_up):
    watched.channel.record(cp(2))
    watched.channel.give_up(cp(given_up))
    watched.come(EndOfRound(0))
    assert watched.channel.recorded == (None if given_up == 2 else [EndOfRound(0)])


def test_ends_that_were_heard_before_the_restore_are_answered_again_and_not_heard(watched):
    watched.channel.put_back([], EndState.DATA_ENDED, drained=True)
    watched.come(EndOfRound(FINAL_ROUND), EndOfData())
    assert watched.read() == []
    assert [type(each) for each in watched.said] == [EndOfDataAck, DrainedAck]
    watched.come(barrier(1), EndOfPartition())
    watched.channel.go_on_behind(cp(1))
    assert watched.read() == [EndOfPartition()]
    watched.channel.validate()


def test_ends_that_are_queued_are_read_once_and_answered_by_who_reads_them(watched):
    watched.channel.put_back([batch(0, 0, 1), EndOfRound(FINAL_ROUND), EndOfData()], EndState.OPEN, drained=False)
    watched.come(EndOfRound(FINAL_ROUND), EndOfData())
    assert watched.read() == [batch(0, 0, 1), EndOfRound(FINAL_ROUND), EndOfData()]
    assert not [each for each in watched.said if isinstance(each, EndOfDataAck)]
    assert watched.channel.restored.rows == 1
    watched.channel.validate()


@pytest.mark.parametrize("taken", [True, False])
def test_the_end_of_a_partition_is_waited_for_again_so_that_its_producer_is_answered(watched, taken):
    ends = [EndOfRound(FINAL_ROUND), EndOfData(), EndOfPartition()]
    watched.channel.put_back([] if taken else ends, EndState.CLOSED if taken else EndState.OPEN, drained=True)
    watched.read()
    assert watched.channel.data_ended
    assert not watched.channel.closed
    watched.come(EndOfRound(FINAL_ROUND), EndOfData())
    assert EndOfDataAck in [type(each) for each in watched.said]
    watched.come(EndOfPartition())
    watched.read()
    assert watched.channel.closed
    assert watched.heard == ["end"]
    watched.channel.validate()
