"""A driver between real channels, with operators that say what they do. The task is played by :class:`Host`."""

import pyarrow as pa

from penstock.engine.core.elements import FINAL_ROUND, Barrier, Batch, Tag
from penstock.engine.core.identity import Attempt, BarrierKind, CheckpointId, TaskId
from penstock.engine.core.operator import LANE, Emitter, Stateless
from penstock.engine.exchange.channels import ChannelId, InputChannel, OutputChannel
from penstock.engine.exchange.input_gate import InputGate
from penstock.engine.runtime.driver import Driver
from penstock.engine.runtime.operator_chain import OperatorInstance
from penstock.engine.runtime.orders import Deliver

ATTEMPTS = (Attempt(1, 1), Attempt(1, 1))


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})


def batch(round: int, lane: int, *values: int) -> Batch:
    return Batch(rows(*values), Tag(round, lane, 0))


def barrier(number: int) -> Barrier:
    return Barrier(CheckpointId(1, number), BarrierKind.CHECKPOINT, 0.0)


class Double(Stateless):
    """Emits every batch twice; keeps a list of the calls it got."""

    def __init__(self) -> None:
        self.calls: list = []
        self._emitter = Emitter()

    def process(self, port, batch, out):
        self.calls.append(("process", port, batch.tag.round))
        for _ in range(2):
            self._emitter.emit(batch.records, batch.tag.round, batch.tag.lane, out)

    def end_round(self, port, round, out):
        self.calls.append(("end_round", port, round))

    def end_port(self, port, out):
        self.calls.append(("end_port", port))

    def close(self):
        self.calls.append(("close",))


class Sum(Stateless):
    """Adds up each round, emits the sum when the round ends, and the sum of all in the end."""

    def __init__(self) -> None:
        self._round, self._total = 0, 0
        self._emitter = Emitter()

    def process(self, port, batch, out):
        self._round += sum(batch.records.column(0).to_pylist())

    def end_round(self, port, round, out):
        if round != FINAL_ROUND:
            self._emitter.emit(rows(self._round), round, 0, out)
        self._total, self._round = self._total + self._round, 0

    def finish(self, out):
        self._emitter.emit(rows(self._total), FINAL_ROUND, 0, out)

    def snapshot(self):
        return pa.table({LANE: pa.array([0], pa.int32()), "total": [self._total]})


class Endless:
    """A turn that never ends by itself."""

    now = 0.0

    def expired(self):
        return False


class Brief(Endless):
    """A turn of one element."""

    def expired(self):
        return True


class Host:
    def __init__(self) -> None:
        self.aligned_at: list = []
        self.gave_up: list = []
        self.windows: list = []
        self.errors: list = []

    def end_advanced(self, driver):
        pass

    def drained(self, driver, barrier, window):
        self.windows.append((barrier.number, window))

    def closed(self, driver, errors):
        self.errors += errors

    def barrier_arrived(self, driver, barrier):
        pass

    def prepared(self, driver, cut, committables):
        self.aligned_at.append((cut.barrier.checkpoint.number, cut.tables))

    def rounds_proposed(self, driver, checkpoint, rounds):
        pass

    def checkpoint_aborted(self, driver, checkpoint):
        self.gave_up.append(checkpoint.number)


class Rig:
    """A driver between real channels: ``ports`` inputs of one channel each, one output."""

    def __init__(self, *operators, ports=1, credit=1 << 20) -> None:
        self.sources, inputs = [], []
        self.upstream: list = []
        for number in range(ports):
            channel = ChannelId(f"in{number}", TaskId("up", number), TaskId("here", 0))
            consumer = InputChannel(channel, ATTEMPTS, self.upstream.append)
            self.sources.append(OutputChannel(channel, ATTEMPTS, consumer.receive, 1 << 30))
            inputs.append(consumer)
        channel = ChannelId("out", TaskId("here", 0), TaskId("down", 0))
        self.sink = InputChannel(channel, ATTEMPTS, self._grant)
        self.output = OutputChannel(channel, ATTEMPTS, self.sink.receive, credit)
        self.host = Host()
        instances = [OperatorInstance(f"op{number}", running) for number, running in enumerate(operators)]
        self.driver = Driver(
            "driver", [InputGate([channel]) for channel in inputs], instances, [self.output], self.host
        )

    def _grant(self, message):
        self.driver.perform(Deliver(self.output, message))

    def send(self, *elements, port=0):
        for element in elements:
            self.sources[port].send(element)
        return self

    def run(self) -> list:
        while self.driver.step():
            pass
        return [self.sink.pop() for _ in range(len(self.sink))]


def tags(elements) -> list:
    return [element.tag if isinstance(element, Batch) else element for element in elements]
