"""The ordered merge: the same sequence whatever channel speaks first, and nobody starves."""

import random

import pyarrow as pa
import pytest

from penstock.engine.core.elements import Barrier, Batch, EndOfData, EndOfPartition, EndOfRound, Tag
from penstock.engine.core.identity import Attempt, BarrierKind, CheckpointId, TaskId
from penstock.engine.exchange.channels import ChannelId, Frame, InputChannel
from penstock.engine.exchange.input_gate import Delivered, InputGate, Starved, Unwanted

ATTEMPTS = (Attempt(1, 1), Attempt(1, 1))
BARRIER = Barrier(CheckpointId(1, 1), BarrierKind.CHECKPOINT, 0.0)


def batch(round: int, lane: int, sequence: int = 0) -> Batch:
    return Batch(pa.record_batch({"x": [0]}), Tag(round, lane, sequence))


class Channel(InputChannel):
    """An input channel that a test fills by hand."""

    def __init__(self, number: int, *elements) -> None:
        super().__init__(ChannelId("e", TaskId("a", number), TaskId("b", 0)), ATTEMPTS, lambda _: None)
        self._sent = 0
        self.put(*elements)

    def put(self, *elements) -> None:
        for element in elements:
            self.receive(Frame(self.channel, ATTEMPTS, self._sent, element))
            self._sent += 1


def poll(gate, blocked=(), accepts=True):
    found = gate.poll(blocked, accepts)
    return (found.feed, found.element) if isinstance(found, Delivered) else found


def test_batches_come_in_the_order_of_their_tags():
    gate = InputGate([Channel(0, batch(0, 1), EndOfRound(0)), Channel(1, batch(0, 0), batch(0, 2), EndOfRound(0))])
    lanes = [poll(gate)[1].tag.lane for _ in range(3)]
    assert lanes == [0, 1, 2]


def test_gate_waits_for_a_channel_that_may_still_send_something_earlier():
    gate = InputGate([Channel(0, batch(0, 1)), Channel(1)])
    assert poll(gate) == Starved((1,))


def test_end_of_round_is_delivered_once_when_all_channels_have_ended_it():
    first, second = Channel(0, EndOfRound(0)), Channel(1)
    gate = InputGate([first, second])
    assert poll(gate) == Starved((1,))
    second.put(EndOfRound(0), batch(1, 0))
    assert poll(gate) == (0, EndOfRound(0))
    assert poll(gate) == Starved((0,))


def test_ended_channel_is_not_waited_for():
    gate = InputGate([Channel(0, EndOfData()), Channel(1, batch(3, 0), EndOfRound(3))])
    assert poll(gate) == (0, EndOfData())
    assert poll(gate)[1].tag == Tag(3, 0, 0)
    assert poll(gate)[1] == EndOfRound(3)


def test_batch_is_left_in_its_channel_while_the_operator_refuses():
    channel = Channel(0, batch(0, 0))
    gate = InputGate([channel])
    assert poll(gate, accepts=False) == Unwanted()
    assert len(channel) == 1


def test_control_elements_are_delivered_while_the_operator_refuses():
    gate = InputGate([Channel(0, EndOfRound(0), BARRIER)])
    assert poll(gate, accepts=False) == (0, EndOfRound(0))
    assert poll(gate, accepts=False) == (0, BARRIER)


def test_blocked_channel_is_not_read():
    gate = InputGate([Channel(0, batch(1, 0)), Channel(1, BARRIER)])
    assert poll(gate, blocked={0}) == (1, BARRIER)
    assert poll(gate, blocked={0, 1}) == Starved((0, 1))


def test_end_of_partition_is_delivered_after_the_data():
    gate = InputGate([Channel(0, EndOfData(), EndOfPartition())])
    assert [poll(gate)[1] for _ in range(2)] == [EndOfData(), EndOfPartition()]
    assert gate.data_ended


@pytest.mark.parametrize("seed", range(50))
def test_sequence_does_not_depend_on_when_elements_arrive(seed):
    rng = random.Random(seed)
    lanes, rounds = 6, 5
    channels = [Channel(number) for number in range(3)]
    scripts = []
    for number in range(3):
        script = []
        for round in range(rounds):
            for lane in range(number * 2, number * 2 + 2):
                script += [batch(round, lane, piece) for piece in range((round * lane) % 3)]
            script.append(EndOfRound(round))
        scripts.append([*script, EndOfData()])
    expected = sorted(e.tag for script in scripts for e in script if isinstance(e, Batch))
    gate, seen, ends = InputGate(channels), [], []
    assert lanes == 6
    while not gate.data_ended:
        found = poll(gate)
        if isinstance(found, Starved):
            number = rng.choice([n for n in range(3) if scripts[n]])
            channels[number].put(scripts[number].pop(0))
        elif isinstance(found[1], Batch):
            seen.append(found[1].tag)
        elif isinstance(found[1], EndOfRound):
            ends.append(found[1].round)
    assert seen == expected
    assert ends == list(range(rounds))
