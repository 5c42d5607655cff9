"""Branches of one fork that meet again: what a port does not want yet is put aside, and nothing waits in a circle."""

import pytest

from penstock.engine.core.elements import Barrier, Batch, EndOfData, EndOfRound
from penstock.engine.exchange import input_gate
from penstock.engine.exchange.channels import Grant
from penstock.engine.exchange.input_gate import Delivered, InputGate, Spooled, SpoolingInputGate, Unwanted
from penstock.engine.state.memory import TaskMemory
from support.driver_rig import Rig, barrier, batch


@pytest.fixture
def memory(tmp_path):
    found = TaskMemory(None, str(tmp_path / "spill"))
    yield found.account("port")
    found.release()


@pytest.fixture
def rig():
    return Rig()


def gate_of(rig, memory) -> SpoolingInputGate:
    return SpoolingInputGate(InputGate([rig.driver.ports.feeds[0]]), memory, batch(0, 0, 1).records.schema)


def put_aside(gate) -> int:
    count = 0
    while isinstance(found := gate.poll((), accepts=False), Spooled):
        count += 1
    assert isinstance(found, Unwanted)
    return count


def deliver(gate) -> list:
    elements = []
    while isinstance(found := gate.poll(()), Delivered):
        elements.append(found.element)
    return elements


@pytest.mark.parametrize("limit", [1, 40, 1 << 20])
def test_elements_come_back_in_order_whether_they_were_on_disk_or_not(rig, memory, monkeypatch, limit):
    monkeypatch.setattr(input_gate, "MEMORY_BYTES", limit)
    sent = [each for number in range(5) for each in (batch(number, 0, number, number + 1), EndOfRound(number))]
    rig.send(*sent)
    gate = gate_of(rig, memory)
    assert put_aside(gate) == len(sent)
    granted = [each.total for each in rig.upstream if isinstance(each, Grant)]
    assert granted[-1] == 5 * 16, "the producer may go on"
    rig.send(batch(5, 0, 5), EndOfData())
    assert deliver(gate) == [*sent, batch(5, 0, 5), EndOfData()]


def test_barriers_and_ends_are_not_put_aside(rig, memory):
    rig.send(batch(0, 0, 1), EndOfRound(0), barrier(1), batch(1, 0, 2))
    gate = gate_of(rig, memory)
    assert put_aside(gate) == 2
    assert [type(each) for each in deliver(gate)] == [Batch, EndOfRound, Barrier, Batch]


def test_end_of_a_round_before_any_batch_is_delivered_where_it_is(rig, memory):
    rig.send(EndOfRound(0), batch(1, 0, 1))
    gate = gate_of(rig, memory)
    assert gate.poll((), accepts=False) == Delivered(0, EndOfRound(0))
    assert put_aside(gate) == 1


def test_elements_may_be_put_aside_while_older_ones_are_given_out(rig, memory, monkeypatch):
    monkeypatch.setattr(input_gate, "MEMORY_BYTES", 1)
    gate = gate_of(rig, memory)
    sent = [batch(0, lane, lane) for lane in range(6)]
    rig.send(*sent[:3])
    put_aside(gate)
    assert gate.poll(()) == Delivered(0, sent[0])
    rig.send(*sent[3:])
    put_aside(gate)
    assert deliver(gate) == sent[1:]


def test_nothing_is_left_in_memory_or_on_disk(rig, memory, monkeypatch, tmp_path):
    monkeypatch.setattr(input_gate, "MEMORY_BYTES", 1)
    gate = gate_of(rig, memory)
    rig.send(*(batch(0, lane, lane) for lane in range(4)))
    put_aside(gate)
    assert memory.statistics().files == 3, "what comes next is in memory"
    deliver(gate)
    assert memory.statistics().files == 0
