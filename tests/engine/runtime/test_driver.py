"""The driver: order of what it puts out, barriers, the end of the data, back-pressure, and operator_context."""

import pyarrow as pa
import pytest

from penstock.engine.core.elements import FINAL_ROUND, Batch, CancelBarrier, EndOfData, EndOfPartition, EndOfRound, Tag
from penstock.engine.core.errors import DataError, InternalError, UserCodeError
from penstock.engine.core.identity import CheckpointId
from penstock.engine.core.operator import Stateless
from penstock.engine.exchange.channels import DrainedAck, EndOfDataAck, Grant
from penstock.engine.runtime.driver import Driver
from penstock.engine.runtime.orders import ClosePartition, Deliver, InjectBarrier
from penstock.engine.scheduler.protocol import Blocked, Finished, WaitReason
from support.driver_rig import ATTEMPTS, Double, Endless, Rig, Sum, barrier, batch, tags


class Broken(Stateless):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def process(self, port, batch, out):
        raise self._error


def test_end_of_round_leaves_after_all_that_the_round_produced():
    rig = Rig(Double(), Double()).send(batch(0, 3, 1), EndOfRound(0))
    assert tags(rig.run()) == [*(Tag(0, 3, n) for n in range(4)), EndOfRound(0)]


def test_round_ends_for_a_driver_with_two_ports_when_both_have_ended_it():
    rig = Rig(Double(), ports=2).send(EndOfRound(0), EndOfRound(1))
    assert rig.run() == []
    rig.send(EndOfRound(0), port=1)
    assert rig.run() == [EndOfRound(0)]


def test_ended_port_counts_as_having_ended_every_round():
    rig = Rig(Double(), ports=2).send(EndOfData(), port=1).send(EndOfRound(0), EndOfRound(1))
    assert rig.run() == [EndOfRound(0), EndOfRound(1)]


def test_faster_port_waits_at_the_end_of_its_round_for_the_slower_one():
    rig = Rig(Double(), ports=2).send(EndOfRound(0), batch(1, 0, 1))
    assert rig.run() == []
    assert "in1" in str(rig.driver.wait)
    rig.send(EndOfRound(0), port=1)
    assert tags(rig.run()) == [EndOfRound(0), Tag(1, 0, 0), Tag(1, 0, 1)]


def test_port_that_stands_at_a_barrier_does_not_keep_the_barrier_of_a_later_round_from_another():
    """As after a restore in arrival order: the first port's source begins behind rounds that the second's repeats."""
    rig = Rig(Double(), ports=2).send(barrier(1), EndOfRound(1)).send(EndOfRound(0), barrier(1), EndOfRound(1), port=1)
    assert rig.run() == [barrier(1), EndOfRound(0), EndOfRound(1)]
    assert [number for number, _ in rig.host.aligned_at] == [1]


def test_operators_finish_in_order_and_emit_into_the_final_round():
    rig = Rig(Sum(), Sum()).send(batch(0, 0, 1, 2), EndOfRound(0), batch(1, 0, 5), EndOfRound(1), EndOfData())
    values = [e.records.column(0).to_pylist() if isinstance(e, Batch) else e for e in rig.run()]
    assert values == [[3], EndOfRound(0), [5], EndOfRound(1), [16], EndOfRound(FINAL_ROUND), EndOfData()]
    assert rig.driver.data_ended


def test_driver_says_all_processed_for_each_input_that_ended():
    rig = Rig(Double(), ports=2).send(EndOfData())
    rig.run()
    assert [type(message) for message in rig.upstream] == [EndOfDataAck, DrainedAck]


def test_driver_says_settled_when_its_consumers_have_said_so():
    rig = Rig(Sum()).send(batch(0, 0, 1, 2), EndOfRound(0), EndOfData())
    rig.run()
    assert [type(message) for message in rig.upstream if not isinstance(message, Grant)] == [EndOfDataAck]
    rig.driver.send(Deliver(rig.output, DrainedAck(rig.output.channel, rig.output.attempts)))
    rig.run()
    assert isinstance(rig.upstream[-1], DrainedAck)


def test_snapshot_is_taken_when_all_barriers_have_come_and_the_barrier_leaves_behind_the_data():
    rig = Rig(Double(), ports=2)
    rig.send(batch(0, 0, 1), EndOfRound(0), barrier(1), batch(1, 0, 1)).send(EndOfRound(0), port=1)
    assert [type(e) for e in rig.run()] == [Batch, Batch, EndOfRound]
    assert rig.driver.wait.reason is WaitReason.ALIGNMENT
    rig.send(barrier(1), port=1)
    assert tags(rig.run()) == [barrier(1), Tag(1, 0, 0), Tag(1, 0, 1)]
    assert [number for number, _ in rig.host.aligned_at] == [1]


def test_barrier_after_the_end_of_the_data_is_served():
    rig = Rig(Sum()).send(batch(0, 0, 4), EndOfRound(0), EndOfData())
    rig.run()
    assert rig.send(barrier(7)).run() == [barrier(7)]
    number, tables = rig.host.aligned_at[0]
    assert number == 7
    assert tables["op0"].column("total").to_pylist() == [4]


def test_cancel_marker_goes_on_and_the_checkpoint_is_given_up():
    rig = Rig(Double(), ports=2).send(barrier(1)).send(CancelBarrier(CheckpointId(1, 1)), port=1)
    assert rig.run() == [CancelBarrier(CheckpointId(1, 1))]
    assert rig.host.gave_up == [1]


def test_driver_without_credit_waits_for_output_and_takes_no_input():
    rig = Rig(Double(), credit=1).send(batch(0, 0, 1), batch(0, 1, 1))
    assert rig.driver.step()
    assert not rig.driver.step()
    assert rig.driver.wait.reason is WaitReason.OUTPUT
    assert len(rig.sink) == 1
    assert rig.driver.run(Endless()) == Blocked((rig.driver.wait,))


class Handle:
    def __init__(self) -> None:
        self.wakes = 0

    def wake(self):
        self.wakes += 1


def test_credit_wakes_a_driver_that_waits_for_it_and_no_other():
    rig = Rig(Double(), credit=1)
    rig.driver.handle = handle = Handle()
    rig.driver.run(Endless())
    rig.driver.deliver(rig.output, Grant(rig.output.channel, ATTEMPTS, 0))
    assert handle.wakes == 0, "it waits for input"
    rig.send(batch(0, 0, 1)).driver.run(Endless())
    assert rig.driver.wait.reason is WaitReason.OUTPUT
    rig.driver.deliver(rig.output, Grant(rig.output.channel, ATTEMPTS, 1 << 20))
    assert handle.wakes == 1
    rig.driver.deliver(rig.output, EndOfDataAck(rig.output.channel, ATTEMPTS))
    assert handle.wakes == 2


def test_credit_that_comes_just_before_the_driver_says_that_it_waits_is_not_lost(monkeypatch):
    """1. A step finds no credit. 2. Credit comes, and nobody is woken who does not wait. 3. The turn ends, waiting."""
    rig = Rig(Double(), credit=1).send(batch(0, 0, 1))
    rig.driver.handle = handle = Handle()
    flush, brought = Driver._flush, []

    def late(self):
        sent = flush(self)
        if self.pending and not (sent or brought):
            brought.append(self.wait)
            self.deliver(rig.output, Grant(rig.output.channel, ATTEMPTS, 1 << 20))
        return sent

    monkeypatch.setattr(Driver, "_flush", late)
    rig.driver.run(Endless())
    assert (brought, handle.wakes) == ([None], 0)
    assert len(rig.sink) == 2
    assert rig.driver.wait.reason is WaitReason.INPUT


def test_driver_names_whom_it_waits_for():
    rig = Rig(Double())
    rig.driver.step()
    assert "up[0] → here[0]" in str(rig.driver.wait)


def test_end_of_partition_leaves_only_when_the_task_closes():
    rig = Rig(Double()).send(EndOfData(), EndOfPartition())
    assert rig.run() == [EndOfRound(FINAL_ROUND), EndOfData()]
    rig.driver.send(ClosePartition())
    assert rig.driver.run(Endless()) == Finished()
    assert rig.run() == [EndOfPartition()]


def test_injected_barrier_completes_a_driver_whose_inputs_have_all_finished():
    rig = Rig(Sum(), ports=2).send(EndOfData(), EndOfPartition()).send(EndOfData(), port=1)
    rig.run()
    rig.driver.send(InjectBarrier(barrier(3), [0, 1]))
    assert rig.run() == [barrier(3)]


def test_barrier_that_is_injected_behind_the_end_of_the_partition_is_not_sent():
    rig = Rig(Double()).send(EndOfData(), EndOfPartition())
    rig.driver.run(Endless())
    rig.driver.send(ClosePartition())
    assert rig.driver.run(Endless()) == Finished()
    rig.driver.send(InjectBarrier(barrier(3), [0]))
    assert rig.driver.run(Endless()) == Finished()
    assert rig.run() == [EndOfRound(FINAL_ROUND), EndOfData(), EndOfPartition()]


def test_operators_are_closed_once_upstream_first():
    first, second = Double(), Double()
    rig = Rig(first, second)
    rig.driver.close()
    assert first.calls == second.calls == [("close",)]
    assert rig.host.errors == []


def test_operator_that_raises_while_it_is_closed_keeps_no_other_from_being_closed():
    class Jammed(Stateless):
        def close(self):
            raise OSError("jammed")

    second = Double()
    rig = Rig(Jammed(), second)
    rig.driver.close()
    assert second.calls == [("close",)]
    assert [error.operator for error in rig.host.errors] == ["op0"]


def test_kernel_error_becomes_a_data_error_that_names_operator_and_batch():
    rig = Rig(Double(), Broken(pa.ArrowInvalid("divide by zero"))).send(batch(4, 2, 1))
    with pytest.raises(DataError, match=r"op1: divide by zero \(round 4, lane 2, batch 0\)"):
        rig.run()


@pytest.mark.parametrize("error", [KeyError("lost"), SystemExit(2)])
def test_foreign_error_of_a_users_operator_becomes_the_users_with_its_traceback(error):
    rig = Rig(Broken(error)).send(batch(0, 0, 1))
    with pytest.raises(UserCodeError, match=type(error).__name__) as caught:
        rig.driver.step()
    assert caught.value.operator == "op0"
    assert "test_driver.py" in caught.value.detail


def test_foreign_error_of_the_engines_own_becomes_an_internal_error_with_its_traceback(monkeypatch):
    monkeypatch.setitem(globals(), "__name__", "penstock.engine.operators.broken")
    rig = Rig(Broken(KeyError("lost"))).send(batch(0, 0, 1))
    with pytest.raises(InternalError) as caught:
        rig.driver.step()
    assert caught.value.operator == "op0"
    assert "test_driver.py" in caught.value.detail


def test_error_of_an_inner_operator_is_not_blamed_on_the_outer_one():
    rig = Rig(Double(), Broken(DataError("unsorted", "sort it"))).send(batch(0, 0, 1))
    with pytest.raises(DataError) as caught:
        rig.run()
    assert caught.value.operator == "op1"
    assert caught.value.batch == (0, 0)


def test_driver_of_a_task_that_is_about_to_be_cut_begins_nothing():
    rig = Rig(Double()).send(batch(0, 3, 1))
    rig.driver.stops = True
    assert rig.driver.step()
    assert len(rig.sink) == 0
    rig.driver.stops = False
    assert len(rig.run()) > 0
