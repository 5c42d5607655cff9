"""Barriers of a checkpoint that was given up while they stood in their queues, and of the next one: whatever is read
when, the cut is that of the checkpoint that is due, and goes under its barrier."""

from __future__ import annotations

import random

import pytest

from penstock.engine.core.elements import Barrier, EndOfData, EndOfPartition, EndOfRound
from penstock.engine.core.identity import CheckpointId, TaskId
from penstock.engine.exchange.channels import ChannelId, InputChannel, OutputChannel
from penstock.engine.exchange.input_gate import ArrivalInputGate, InputGate, UnorderedInputGate
from penstock.engine.runtime.driver import Driver
from penstock.engine.runtime.operator_chain import OperatorInstance
from penstock.engine.runtime.orders import AbortCheckpoint
from support.barrier_rig import BarrierRig
from support.driver_rig import ATTEMPTS, Double, Host, barrier, batch

FIRST = CheckpointId(1, 1)


def barriers(sent: list) -> list[int]:
    return [element.checkpoint.number for element in sent if isinstance(element, Barrier)]


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_barriers_behind_those_of_a_checkpoint_that_was_given_up(first: int) -> None:
    """On each feed rows, a barrier, rows, the next one; the first checkpoint is given up; rows leave one a second."""
    for seed in range(first, first + 100):
        draw = random.Random(seed)
        feeds = draw.randint(2, 3)
        rig, now, sent = BarrierRig(Double(), feeds=feeds, credit=1), 0.0, []
        for feed in range(feeds):
            rig.send(*[batch(0, feed, n) for n in range(draw.randint(0, 4))], EndOfRound(0), barrier(1), feed=feed)
        for _ in range(draw.randint(0, 4)):
            sent += rig.run(now)
            now, rig.output._credit = now + 1, 1
        rig.driver.send(AbortCheckpoint(FIRST))
        sent += rig.run(now)
        for feed in range(feeds):
            rig.send(*[batch(1, feed, n) for n in range(draw.randint(0, 4))], EndOfRound(1), barrier(2), feed=feed)
        for _ in range(draw.randint(0, 14)):
            now, rig.output._credit = now + 1, 1
            sent += rig.run(now)
        rig.output._credit = 1 << 20
        sent += rig.run(now)
        told = [1, 2] if 1 in rig.host.cuts else [2]
        assert list(rig.host.cuts) == barriers(sent) == told, f"seed {seed}"


@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("kind", [InputGate, ArrivalInputGate, UnorderedInputGate])
def test_end_of_a_channel_counts_for_the_checkpoint_that_is_due(kind: type[InputGate], ports: int) -> None:
    """One feed has ended its data; behind that stands a barrier that was given up, then the end of the partition."""
    for seed in range(100):
        assert _told(random.Random(seed), kind, ports) == [2], f"seed {seed}"


def _told(draw: random.Random, kind: type[InputGate], ports: int) -> list[int]:
    host, sources, inputs = Host(), [], []
    for number in range(2):
        channel = ChannelId("in", TaskId("up", number), TaskId("here", 0))
        consumer = InputChannel(channel, ATTEMPTS, lambda message: None)
        sources.append(OutputChannel(channel, ATTEMPTS, consumer.receive, 1 << 30))
        inputs.append(consumer)
    out = OutputChannel(ChannelId("out", TaskId("here", 0), TaskId("down", 0)), ATTEMPTS, lambda frame: None, 1)
    gates = [kind(inputs)] if ports == 1 else [kind([each]) for each in inputs]
    driver = Driver("driver", gates, [OperatorInstance("op", Double())], [out], host)

    def run(turns: int, credit: int = 1) -> None:
        for _ in range(turns):
            out._credit = credit
            while driver.step():
                pass

    going, ended = draw.sample(sources, 2)
    ended.send(EndOfRound(0))
    ended.send(EndOfData())
    for number in range(draw.randint(0, 3)):
        going.send(batch(0, number, number))
    going.send(EndOfRound(0))
    run(draw.randint(0, 6))
    ended.send(barrier(1))
    closed = draw.random() < 0.7
    if closed:
        ended.send(EndOfPartition())
    run(draw.randint(0, 1))
    driver.send(AbortCheckpoint(FIRST))
    for number in range(draw.randint(0, 3)):
        going.send(batch(1, number, number))
    going.send(EndOfRound(1))
    going.send(barrier(2))
    run(draw.randint(0, 8))
    if not closed:
        ended.send(EndOfPartition())
    run(2, credit=1 << 20)
    return [number for number, _ in host.aligned_at]
