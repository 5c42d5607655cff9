"""A driver with one port of several channels, on which barriers overtake batches; the test plays both peers."""

from functools import partial

from penstock.engine.core.elements import Barrier, Batch
from penstock.engine.core.identity import BarrierKind, CheckpointId, Holds, TaskId
from penstock.engine.exchange.channel_state import channel_batches
from penstock.engine.exchange.channels import ChannelId, Frame, InputChannel, OutputChannel
from penstock.engine.exchange.input_gate import ArrivalInputGate, InputGate
from penstock.engine.planner.overtaking import Overtaking
from penstock.engine.runtime.driver import Driver
from penstock.engine.runtime.operator_chain import OperatorInstance
from penstock.engine.runtime.orders import CallBack
from support.driver_rig import ATTEMPTS, Brief, Host, rows

EXCHANGE, OUTPUT = "in", "out"


def unaligned(number: int) -> Barrier:
    return Barrier(CheckpointId(1, number), BarrierKind.CHECKPOINT, 0.0, unaligned=True)


def timed(number: int, timeout: float) -> Barrier:
    return Barrier(CheckpointId(1, number), BarrierKind.CHECKPOINT, 0.0, timeout=timeout)


class OvertakingHost(Host):
    """Keeps the cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: dict = {}

    def prepared(self, driver, cut, committables):
        super().prepared(driver, cut, committables)
        self.cuts[cut.barrier.checkpoint.number] = cut


class OvertakingRig:
    """``feeds`` channels of one exchange (or a source), one channel of another; ``credit``: what that may hold."""

    def __init__(self, *operators, feeds=2, credit=1 << 20, output=OUTPUT, reader=None) -> None:
        self.host = OvertakingHost()
        self.sent: list[Frame] = []
        self.sources, inputs = [], []
        for number in range(feeds):
            channel = ChannelId(EXCHANGE, TaskId("up", number), TaskId("here", 0))
            consumer = InputChannel(channel, ATTEMPTS, lambda message: None)
            self.sources.append(OutputChannel(channel, ATTEMPTS, consumer.receive, 1 << 30))
            inputs.append(consumer)
        channel = ChannelId(OUTPUT, TaskId("here", 0), TaskId("down", 0))
        self.output = OutputChannel(channel, ATTEMPTS, self.sent.append, credit)
        instances = [OperatorInstance(f"op{number}", running) for number, running in enumerate(operators)]
        if reader is None:
            gate, readers, overtaking = ArrivalInputGate(inputs), (), Overtaking(EXCHANGE, output)
        else:
            gate, readers, overtaking = InputGate([reader]), (reader,), Overtaking("", output)
        self.driver = Driver("driver", [gate], instances, [self.output], self.host, readers, overtaking)

    def send(self, *elements, feed=0):
        """Let elements come in on a feed, as they do: through the inbox."""
        for element in elements:
            self.driver.send(CallBack(partial(self.sources[feed].send, element)))
        return self

    def run(self, now=0.0) -> list:
        """Let the driver do what it can; what it has sent since the last time."""
        turn = Brief()
        turn.now = now
        self.driver.now = now
        while self.driver.step():
            pass
        self.outcome = self.driver.run(turn)
        sent = [frame.element for frame in self.sent]
        self.sent.clear()
        return sent

    def held(self, number: int, side: Holds) -> list[tuple[int, list[int]]]:
        """What the cut of a checkpoint holds of one side: the round and the values of each batch."""
        found = [part for part in self.host.cuts[number].channels if part.holds is side]
        return [
            (batch.tag.round, batch.records.column(0).to_pylist())
            for part in found
            for batch in channel_batches(part.table, rows(0).schema, None)
        ]


def values(elements) -> list:
    """Batches as lists of their values, everything else as it is."""
    return [each.records.column(0).to_pylist() if isinstance(each, Batch) else each for each in elements]
