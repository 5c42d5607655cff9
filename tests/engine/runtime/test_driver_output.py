"""The driver: operators that put out much, need no more rows, or have work under way elsewhere."""

import pyarrow as pa
import pytest

from penstock.engine.core.elements import FINAL_ROUND, Barrier, Batch, EndOfData, EndOfRound, Tag
from penstock.engine.core.errors import DataError
from penstock.engine.core.identity import BarrierKind, CheckpointId
from penstock.engine.core.operator import Emitter, Stateless
from penstock.engine.exchange.channels import CancelInput
from penstock.engine.runtime.orders import Deliver, InjectBarrier
from penstock.engine.scheduler.protocol import Blocked, Failed, Progress, WaitReason
from support.driver_rig import Brief, Double, Endless, Rig, Sum, barrier, batch, tags


def drain(number: int) -> Barrier:
    return Barrier(CheckpointId(1, number), BarrierKind.DRAIN, 0.0)


class Hoard(Stateless):
    """Keeps every batch until the end or a task barrier, then puts out one with each step."""

    def __init__(self) -> None:
        self._held: list[Batch] = []
        self._emitter = Emitter()
        self.emitted = 0

    def process(self, port, batch, out):
        self._held.append(batch)

    def _release(self, round, out):
        while self._held:
            self._emitter.emit(self._held.pop(0).records, round, 0, out)
            self.emitted += 1
            yield

    def finish(self, out):
        return self._release(FINAL_ROUND, out)

    def drain(self, out):
        return self._release(0, out)


def test_operator_that_holds_much_puts_it_out_as_fast_as_it_is_read():
    hoard = Hoard()
    rig = Rig(hoard, credit=1).send(*(batch(0, lane, lane) for lane in range(8)), EndOfRound(0), EndOfData())
    taken = []
    while True:
        while rig.driver.step():
            pass
        assert hoard.emitted <= len(taken) + 2, "one is sent, one is pending"
        if not len(rig.sink):
            break
        taken.append(rig.sink.pop())
    values = [e.records.column(0).to_pylist() if isinstance(e, Batch) else e for e in taken]
    assert values == [EndOfRound(0), *([lane] for lane in range(8)), EndOfRound(FINAL_ROUND), EndOfData()]


def test_what_an_operator_puts_out_in_steps_comes_before_the_barrier_that_asked_for_it():
    rig = Rig(Hoard(), Double()).send(batch(0, 0, 1), batch(0, 1, 2), EndOfRound(0), drain(1), batch(1, 0, 3))
    assert tags(rig.run()) == [EndOfRound(0), *(Tag(0, 0, number) for number in range(4)), drain(1)]
    [(number, window)] = rig.host.windows
    assert number == 1
    assert [(each.operator, each.rows_in, each.rows_out) for each in window] == [("op0", 2, 2), ("op1", 2, 4)]


def test_operator_that_holds_at_task_barriers_is_not_drained():
    hoard = Hoard()
    rig = Rig(hoard)
    rig.driver.operators[0].hold = True
    assert rig.send(batch(0, 0, 1), EndOfRound(0), drain(1)).run() == [EndOfRound(0), drain(1)]
    assert hoard.emitted == 0
    assert len([e for e in rig.send(EndOfData()).run() if isinstance(e, Batch)]) == 1


def test_checkpoint_that_is_injected_while_much_is_put_out_comes_behind_it():
    rig = Rig(Hoard(), credit=1).send(*(batch(0, lane, lane) for lane in range(3)), EndOfRound(0), EndOfData())
    while rig.driver.step():
        pass
    rig.driver.send(InjectBarrier(barrier(1), [0]))
    found = []
    while elements := rig.run():
        found += elements
    assert found[-1] == barrier(1)
    assert found[-2] == EndOfData()


class Few(Stateless):
    """Passes the first ``limit`` batches of each window."""

    def __init__(self, limit: int) -> None:
        self._limit, self.seen = limit, 0

    def process(self, port, batch, out):
        self.seen += 1
        if self.seen <= self._limit:
            out.emit(batch)

    def needs_no_more(self, port):
        return self.seen >= self._limit

    def drain(self, out):
        self.seen = 0


def test_operator_that_needs_no_more_rows_stops_the_producer_until_the_next_task_barrier():
    few = Few(1)
    rig = Rig(Double(), few)
    channel = rig.sources[0]
    rig.driver.ports.feeds[0]._reply = lambda message: (rig.upstream.append(message), channel.deliver(message))
    assert tags(rig.send(batch(0, 0, 1)).run()) == [Tag(0, 0, 0)]
    assert channel.cancelled
    rig.send(batch(0, 1, 1), EndOfRound(0), drain(1))
    assert not channel.cancelled, "the window is over"
    assert tags(rig.run()) == [EndOfRound(0), drain(1)]
    assert tags(rig.send(batch(1, 0, 1)).run()) == [Tag(1, 0, 0)]
    assert [message.window for message in rig.upstream if isinstance(message, CancelInput)] == [0, 1]


def test_request_to_stop_that_comes_when_the_next_window_has_begun_stops_nothing():
    rig = Rig(Few(1))
    channel = rig.sources[0]
    late = []
    rig.driver.ports.feeds[0]._reply = late.append
    rig.send(batch(0, 0, 1))
    rig.run()
    rig.send(EndOfRound(0), drain(1))
    for message in late:
        channel.deliver(message)
    assert not channel.cancelled


def test_request_to_stop_that_comes_while_the_window_drains_does_not_reach_into_the_next_one():
    rig = Rig(Hoard(), credit=1).send(*(batch(0, lane, lane) for lane in range(4)), EndOfRound(0), drain(1))
    rig.driver.run(Endless())
    while len(rig.sink) > 1:
        rig.sink.pop()
    assert rig.driver.run(Endless()) == Blocked((rig.driver.wait,))
    assert rig.driver.wait.reason is WaitReason.OUTPUT
    rig.driver.send(Deliver(rig.output, CancelInput(rig.output.channel, rig.output.attempts, 0)))
    assert rig.run()[-1] == drain(1)
    assert not [message for message in rig.upstream if isinstance(message, CancelInput)]
    rig.send(batch(1, 0, 7), EndOfRound(1), drain(2))
    assert [e.records.column(0).to_pylist() for e in rig.run() if isinstance(e, Batch)] == [[7]]


def test_driver_whose_output_nobody_needs_stops_its_own_producer():
    rig = Rig(Double())
    rig.driver.perform(Deliver(rig.output, CancelInput(rig.output.channel, rig.output.attempts, 0)))
    assert [type(message) for message in rig.upstream] == [CancelInput]
    assert rig.send(batch(0, 0, 1), EndOfRound(0), EndOfData()).run() == [
        EndOfRound(0),
        EndOfRound(FINAL_ROUND),
        EndOfData(),
    ]


class Remote(Stateless):
    """Hands every batch to somebody else; what has come back is put out in order."""

    def __init__(self, ring: int = 2) -> None:
        self._ring = ring
        self._asked: list[Batch] = []
        self.answers = 0

    @property
    def waits_for(self):
        return "the answers of somebody else" if self._asked else ""

    def accepts(self, port):
        return len(self._asked) < self._ring

    def process(self, port, batch, out):
        self._asked.append(batch)

    def poll(self, out):
        if not self.answers:
            return False
        self.answers -= 1
        out.emit(self._asked.pop(0))
        return True

    def unanswered(self, out):
        return list(self._asked)


def test_what_is_under_way_elsewhere_leaves_before_the_end_of_its_round():
    remote = Remote()
    rig = Rig(remote).send(batch(0, 0, 1), EndOfRound(0))
    assert rig.run() == []
    assert rig.driver.wait.reason is WaitReason.DEPENDENCY
    assert "somebody else" in str(rig.driver.wait)
    remote.answers = 1
    assert tags(rig.run()) == [Tag(0, 0, 0), EndOfRound(0)]


def test_operator_gets_no_more_batches_than_it_accepts():
    remote = Remote(ring=2)
    rig = Rig(remote, Double()).send(*(batch(0, lane, lane) for lane in range(4)))
    rig.run()
    assert len(remote._asked) == 2
    remote.answers = 1
    assert len(rig.run()) == 2
    assert len(remote._asked) == 2, "room was made for one more"


def test_barrier_waits_for_what_is_under_way_elsewhere():
    remote = Remote()
    rig = Rig(remote).send(batch(0, 0, 1), EndOfRound(0), barrier(1))
    rig.run()
    assert rig.host.aligned_at == []
    remote.answers = 1
    assert tags(rig.run()) == [Tag(0, 0, 0), EndOfRound(0), barrier(1)]


def test_turn_ends_at_the_border_of_an_element_when_it_is_over():
    rig = Rig(Double()).send(batch(0, 0, 1), batch(0, 1, 1))
    assert rig.driver.run(Brief()) == Progress()
    assert len(rig.sink) == 2
    assert rig.driver.run(Endless()) == Blocked((rig.driver.wait,))


def test_error_is_the_outcome_of_a_turn():
    class Broken(Stateless):
        def process(self, port, batch, out):
            raise pa.ArrowInvalid("divide by zero")

    outcome = Rig(Sum(), Broken()).send(batch(0, 0, 1), EndOfRound(0)).driver.run(Endless())
    assert isinstance(outcome, Failed)
    with pytest.raises(DataError, match="op1: divide by zero"):
        raise outcome.error
