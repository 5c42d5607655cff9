"""A driver with one port of several channels, on which barriers by agreement come; the test plays both peers."""

from functools import partial

from penstock.engine.core.elements import Batch
from penstock.engine.core.identity import TaskId
from penstock.engine.exchange.channels import ChannelId, Frame, InputChannel, OutputChannel
from penstock.engine.exchange.input_gate import ArrivalInputGate
from penstock.engine.runtime.driver import Driver
from penstock.engine.runtime.operator_chain import OperatorInstance
from penstock.engine.runtime.orders import CallBack
from support.driver_rig import ATTEMPTS, Brief, Host


class CutHost(Host):
    """Keeps the cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: dict = {}

    def prepared(self, driver, cut, committables):
        super().prepared(driver, cut, committables)
        self.cuts[cut.barrier.checkpoint.number] = cut


class BarrierRig:
    """``feeds`` channels of one exchange, one channel of another; ``credit``: what that may hold."""

    def __init__(self, *operators, feeds=2, credit=1 << 20) -> None:
        self.host = CutHost()
        self.sent: list[Frame] = []
        self.sources, inputs = [], []
        for number in range(feeds):
            channel = ChannelId("in", TaskId("up", number), TaskId("here", 0))
            consumer = InputChannel(channel, ATTEMPTS, lambda message: None)
            self.sources.append(OutputChannel(channel, ATTEMPTS, consumer.receive, 1 << 30))
            inputs.append(consumer)
        channel = ChannelId("out", TaskId("here", 0), TaskId("down", 0))
        self.output = OutputChannel(channel, ATTEMPTS, self.sent.append, credit)
        instances = [OperatorInstance(f"op{number}", running) for number, running in enumerate(operators)]
        self.driver = Driver("driver", [ArrivalInputGate(inputs)], instances, [self.output], self.host)

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


def values(elements) -> list:
    """Batches as lists of their values, everything else as it is."""
    return [each.records.column(0).to_pylist() if isinstance(each, Batch) else each for each in elements]
