"""Operators that emit in steps: the driver may stop between any two of them, and between any two operators."""

import random

import pytest

from penstock.engine.core.elements import FINAL_ROUND, Barrier, Batch, EndOfData, EndOfRound
from penstock.engine.core.errors import DataError
from penstock.engine.core.identity import BarrierKind, CheckpointId
from penstock.engine.core.operator import Emitter, Stateless, exhaust
from penstock.engine.exchange.channels import CancelInput
from penstock.engine.runtime.orders import AbortCheckpoint, Deliver, JoinBarrier
from penstock.engine.scheduler.protocol import Progress, WaitReason
from support.driver_rig import Endless, Rig, barrier, batch, rows


class Work:
    """What the operators of one test do, told by themselves: a call, and a piece of what it emits."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self, steps):
        """The steps, of which each counts."""
        for _ in steps:
            self.done += 1
            yield


class Explode(Stateless):
    """Emits each value ``at_once`` times in one call, then ``later`` times in steps; the same of what a round or the
    window summed up to, if it is to ``keep`` it."""

    def __init__(self, work: Work, at_once: int, later: int, keep: bool = False) -> None:
        self._work, self._at_once, self._later, self._keep = work, at_once, later, keep
        self._round, self._window = 0, 0
        self._emitter = Emitter()
        self.closed_steps = 0
        self.open_steps = 0

    def _emit(self, value: int, round: int, lane: int, out):
        self._work.done += 1
        assert not self.open_steps, "it is called while steps are left"
        for number in range(self._at_once):
            self._emitter.emit(rows(value * 10 + number), round, lane, out)
        return self._work(self._steps(value, round, lane, out)) if self._later else None

    def _steps(self, value, round, lane, out):
        self.open_steps += 1
        try:
            for number in range(self._later):
                self._emitter.emit(rows(value * 10 + 5 + number), round, lane, out)
                yield
        finally:
            self.open_steps -= 1
            self.closed_steps += 1

    def process(self, port, batch, out):
        [value] = batch.records.column(0).to_pylist()
        self._round += value
        return self._emit(value, batch.tag.round, batch.tag.lane, out)

    def end_round(self, port, round, out):
        value, self._round = self._round, 0
        self._window += value
        return self._emit(value, round, 1000, out) if self._keep and round != FINAL_ROUND else None

    def finish(self, out):
        return self._emit(self._window, FINAL_ROUND, 0, out) if self._keep else None

    def drain(self, out):
        value, self._window = self._window, 0
        return self._emit(value, FINAL_ROUND - 1, 0, out) if self._keep else None

    def snapshot(self):
        assert not self.open_steps, "a snapshot while steps are left"


class Sift(Stateless):
    """Passes nothing on."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def process(self, port, batch, out):
        self._work.done += 1


class Looks(Endless):
    """A turn that is over after ``questions``; the most that was done between any two looks at it."""

    def __init__(self, work: Work, questions: int = 1 << 30) -> None:
        self._work, self._questions, self._seen = work, questions, work.done
        self.most = 0

    def expired(self):
        self.most = max(self.most, self._work.done - self._seen)
        self._seen = self._work.done
        self._questions -= 1
        return self._questions < 0


def values(elements) -> list:
    return [e.records.column(0).to_pylist()[0] if isinstance(e, Batch) else e for e in elements]


@pytest.mark.parametrize("credit", [1, 1 << 20])
def test_a_turn_is_asked_after_each_piece_and_each_operator(credit):
    work = Work()
    rig = Rig(Explode(work, 2, 3), Explode(work, 0, 4), Sift(work), credit=credit)
    rig.send(batch(0, 0, 1), batch(0, 1, 2), EndOfRound(0), EndOfData())
    look = Looks(work)
    rig.driver.run(look)
    assert rig.driver.data_ended
    assert work.done == 2 * (1 + 3) + 10 * (1 + 4) + 40
    assert look.most == 1


def test_a_turn_may_end_after_any_piece():
    work = Work()
    rig = Rig(Explode(work, 0, 9)).send(batch(0, 0, 1), EndOfRound(0))
    taken = 0
    while isinstance(rig.driver.run(Looks(work, 0)), Progress):
        assert len(rig.sink) <= taken + 1
        taken = len(rig.sink)
    assert values(rig.run()) == [*range(15, 24), EndOfRound(0)]


def test_nothing_goes_on_before_a_piece_is_sent():
    work = Work()
    first, second = Explode(work, 2, 3), Explode(work, 1, 3)
    rig = Rig(first, second, credit=1).send(batch(0, 0, 1))
    rig.driver.run(Endless())
    assert rig.driver.wait.reason is WaitReason.OUTPUT
    assert len(rig.sink) == 1
    assert len(rig.driver.pending) == 1
    found = []
    while elements := rig.run():
        found += values(elements)
        assert len(rig.driver.pending) <= 1
    outer = [10, 11, 15, 16, 17]
    assert found == [each * 10 + inner for each in outer for inner in (0, 5, 6, 7)]


def test_what_is_under_way_comes_before_the_barrier_that_arrives_meanwhile():
    work = Work()
    rig = Rig(Explode(work, 0, 3), Explode(work, 0, 2), credit=1).send(batch(0, 0, 1), EndOfRound(0), barrier(1))
    rig.driver.run(Endless())
    rig.driver.send(AbortCheckpoint(CheckpointId(1, 0)))
    found = []
    while elements := rig.run():
        found += values(elements)
        assert bool(rig.host.aligned_at) == (barrier(1) in found)
    assert found == [155, 156, 165, 166, 175, 176, EndOfRound(0), barrier(1)]


def test_barrier_of_the_task_waits_for_what_is_under_way():
    """A driver whose inputs are all closed gets it from the task, whatever it is in the middle of."""
    work = Work()
    rig = Rig(Explode(work, 0, 2, keep=True), Explode(work, 0, 2), credit=1).send(EndOfData())
    rig.driver.run(Endless())
    rig.sources[0].send(barrier(1))
    rig.driver.send(JoinBarrier(barrier(1)))
    assert not rig.host.aligned_at
    found = []
    while elements := rig.run():
        found += values(elements)
    assert found[-3:] == [EndOfRound(FINAL_ROUND), EndOfData(), barrier(1)]


def test_consumer_that_needs_no_more_does_not_ask_an_operator_in_the_middle_of_a_step():
    class Nosy(Explode):
        def needs_no_more(self, port):
            assert not self.open_steps
            return False

    work = Work()
    rig = Rig(Nosy(work, 0, 3), credit=1).send(batch(0, 0, 1))
    rig.driver.run(Endless())
    rig.driver.send(Deliver(rig.output, CancelInput(rig.output.channel, rig.output.attempts, 0)))
    assert values(rig.run()) == [15]
    assert [type(message) for message in rig.upstream if isinstance(message, CancelInput)] == [CancelInput]


def test_error_in_a_step_names_its_operator_and_batch():
    class Torn(Stateless):
        def process(self, port, batch, out):
            yield
            raise DataError("unsorted", "sort it")

    rig = Rig(Torn(), Explode(Work(), 1, 0)).send(batch(4, 2, 1))
    with pytest.raises(DataError, match="unsorted") as caught:
        rig.run()
    assert (caught.value.operator, caught.value.batch) == ("op0", (4, 2))


def test_closing_ends_the_steps_before_the_operators():
    class Orderly(Explode):
        def close(self):
            assert not self.open_steps

    first, second = Orderly(Work(), 0, 3), Orderly(Work(), 0, 3)
    rig = Rig(first, second, credit=1).send(batch(0, 0, 1))
    rig.driver.run(Endless())
    assert first.open_steps
    assert second.open_steps
    rig.driver.close()
    assert not rig.host.errors
    assert not rig.driver.busy


# ------------------------------------------------------------------ against a chain that takes all steps at once


class Behind:
    """The output of an operator whose successor takes what it emits at once, all of it."""

    def __init__(self, operators: list[Explode], left: list) -> None:
        self._first, self._left = operators[:1], left
        self._out = Behind(operators[1:], left) if operators else None

    def emit(self, batch: Batch) -> None:
        for operator in self._first:
            exhaust(operator.process(0, batch, self._out))
            return
        self._left.append((batch.tag, batch.records.column(0).to_pylist()))


def in_one_go(operators: list[Explode], elements) -> list:
    """What leaves a chain that calls operators one within the other."""
    left: list = []
    outputs = [Behind(operators[number + 1 :], left) for number in range(len(operators))]

    def each(name, *arguments):
        for number, (operator, out) in enumerate(zip(operators, outputs, strict=True)):
            if name == "finish" and number:
                exhaust(operator.end_round(0, FINAL_ROUND, out))
            exhaust(getattr(operator, name)(*arguments, out))

    for element in elements:
        if isinstance(element, Batch):
            Behind(operators, left).emit(element)
            continue
        if isinstance(element, EndOfRound):
            each("end_round", 0, element.round)
        elif isinstance(element, EndOfData):
            each("finish")
            left.append(EndOfRound(FINAL_ROUND))
        elif element.kind is BarrierKind.DRAIN:
            each("drain")
        left.append(element)
    return left


@pytest.mark.parametrize("seed", range(100))
def test_chain_emits_what_one_that_takes_all_steps_at_once_does(seed):
    chance = random.Random(seed)
    shapes = [(chance.randrange(3), chance.randrange(4), chance.random() < 0.5) for _ in range(chance.randrange(5))]
    elements: list = []
    for round in range(3):
        elements += [batch(round, lane, chance.randrange(9)) for lane in range(chance.randrange(4))]
        elements.append(EndOfRound(round))
        kind = chance.choice([None, BarrierKind.DRAIN, BarrierKind.CHECKPOINT])
        if kind is not None:
            elements.append(Barrier(CheckpointId(1, round), kind, 0.0))
    elements.append(EndOfData())
    wanted = in_one_go([Explode(Work(), *shape) for shape in shapes], elements)
    work = Work()
    rig = Rig(*(Explode(work, *shape) for shape in shapes), credit=chance.choice([1, 100, 1 << 20])).send(*elements)
    found, spans = [], []
    while rig.driver.phase.state.value == "running" or rig.driver.pending:
        look = Looks(work, chance.randrange(6))
        rig.driver.run(look)
        spans.append(look.most)
        for _ in range(chance.randrange(3)):
            if len(rig.sink):
                found.append(rig.sink.pop())
    found += rig.run()
    assert max(spans) <= 1
    told = [(e.tag, e.records.column(0).to_pylist()) if isinstance(e, Batch) else e for e in found]
    assert told == wanted


class Asked(Stateless):
    """Asks the chain, in a call and in a step of what it has answered, who is at a piece."""

    def __init__(self) -> None:
        self.chain, self.heard = None, []

    def process(self, port, batch, out):
        self.heard.append(self.chain.piece())
        return self._steps()

    def _steps(self):
        self.heard.append(self.chain.piece())
        yield


def test_chain_says_who_is_at_a_piece_and_for_how_long():
    asked = Asked()
    rig = Rig(Explode(Work(), 1, 0), asked).send(batch(0, 0, 1), EndOfRound(0))
    asked.chain = rig.driver.chain
    rig.run()
    assert [operator for operator, _ in asked.heard] == ["op1", "op1"]
    assert all(seconds >= 0 for _, seconds in asked.heard)
    assert rig.driver.chain.piece() is None
