"""Runs a chain of operators in a driver, and cuts it wherever the driver may stop: between any two calls and pieces.

Rules:

1. At a cut what is under way in the chain is captured, then the operators' state, the control elements that are being
   handled, and what the driver has made and not sent. All of it passes through storage; a new driver goes on with it.
2. Where the ports stand is put back by hand, as a task does it (``runtime.task``), and what is queued before them.
3. What comes out is what an uncut run gives: rows in their order, controls in their places, tags that ascend.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from penstock.engine.core.elements import Batch, Element, EndOfData, Tag
from penstock.engine.core.identity import TaskId
from penstock.engine.core.operator import OperatorConfig, OperatorContext, PortPlace
from penstock.engine.core.traits import traits_of
from penstock.engine.exchange.channels import ChannelId, InputChannel, OutputChannel
from penstock.engine.exchange.input_gate import InputGate
from penstock.engine.runtime.chain_flight import ChainFlight
from penstock.engine.runtime.continuations import Control
from penstock.engine.runtime.driver import Driver
from penstock.engine.runtime.operator_chain import OperatorInstance
from penstock.engine.runtime.orders import Deliver
from support.driver_rig import ATTEMPTS, Brief, Host
from support.operator_harness import context, rows_of, through_storage

Seen = tuple[Any, ...]


@dataclass
class HeldWork:
    """A background that does its work when a seed says so."""

    chance: random.Random

    def __post_init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append((work, done))

    def release(self) -> None:
        """Do some of the work."""
        if self.waiting:
            work, done = self.waiting.pop(self.chance.randrange(len(self.waiting)))
            done(work())


class CutDriver:
    """One run, over however many attempts. ``streams``: what each port says."""

    def __init__(
        self,
        configs: Sequence[OperatorConfig],
        schemas: Sequence[pa.Schema],
        streams: Sequence[Sequence[Element]],
        chance: random.Random,
        *,
        output_rows: int,
        credit: int,
    ) -> None:
        self._configs, self._chance, self._credit = configs, chance, credit
        self._where = replace(context(), output_rows=output_rows)
        self._inputs: list[Sequence[pa.Schema]] = [schemas]
        for config in configs:
            self._inputs.append([config.output_schema(self._inputs[-1])])
        self.found: list[Seen] = []
        self._last: dict[int, Tag] = {}
        self._left = [list(stream) for stream in streams]
        #: steps since the last cut, and how many there are to be: a call that is made again is to come further
        self._since, self._patience = 0, 1
        self._before: tuple[ChainFlight, tuple[Control, ...]] | None = None
        self._begin([None] * len(configs), [()] * len(configs), [])

    def _begin(
        self, states: Sequence[pa.Table | None], places: Sequence[Sequence[PortPlace]], queued: Sequence[list[Element]]
    ) -> None:
        self._background = HeldWork(self._chance)
        where = replace(self._where, background=self._background)
        operators = [
            self._instance(number, replace(where, ports=tuple(ports)), state)
            for number, (state, ports) in enumerate(zip(states, places, strict=True))
        ]
        self._sources, gates = [], []
        for number in range(len(self._left)):
            channel = ChannelId(f"in{number}", TaskId("up", number), TaskId("here", 0))
            consumer = InputChannel(channel, ATTEMPTS, lambda message: None)
            self._sources.append(OutputChannel(channel, ATTEMPTS, consumer.receive, 1 << 40))
            gates.append(InputGate([consumer]))
        channel = ChannelId("out", TaskId("here", 0), TaskId("down", 0))
        self._sink = InputChannel(channel, ATTEMPTS, lambda message: self.driver.perform(Deliver(output, message)))
        output = OutputChannel(channel, ATTEMPTS, self._sink.receive, self._credit)
        self.driver = Driver("driver", gates, operators, [output], Host())
        for source, elements in zip(self._sources, queued, strict=False):
            for element in elements:
                source.send(element)

    def _instance(self, number: int, where: OperatorContext, state: pa.Table | None) -> OperatorInstance:
        config, inputs = self._configs[number], self._inputs[number]
        where = replace(where, elsewhere=None if number else self._background)
        traits, running = traits_of(config), config.build(where, inputs, state)
        plain = () if traits.takes_compact else inputs
        told: dict[str, Any] = {"cut": traits.cut, "rows_at_once": traits.rows_at_once}
        return OperatorInstance(f"op{number}", running, lanes=where.lanes, plain=plain, **told)

    def run(self, cuts: Callable[[], bool]) -> list[Seen]:
        """What comes out in all, with a cut wherever it ``cuts``."""
        idle = 0
        while not self.driver.data_ended or self.driver.pending:
            progressed = self.driver.step(Brief().expired)
            ports = [port for port, left in enumerate(self._left) if left]
            if not progressed and ports:
                port = self._chance.choice(ports)
                self._sources[port].send(self._left[port].pop(0))
            if not progressed or self._chance.random() < 0.3:
                self._background.release()
                self._read()
            idle = 0 if progressed or ports or self._background.waiting else idle + 1
            assert idle < 50, f"the driver waits: {self.driver.wait}"
            self._since += 1
            if self._since >= self._patience and cuts():
                self._cut()
        self._read()
        self.driver.close()
        return self.found

    def _read(self) -> None:
        while len(self._sink):
            self._see(self._sink.pop())

    def _see(self, element: Element) -> None:
        if not isinstance(element, Batch):
            if (EndOfData(),) not in self.found:  # a driver that is restored behind its end says that again
                self.found.append((element,))
            return
        tag = element.tag
        assert tag.lane not in self._last or self._last[tag.lane] < tag, f"{tag} after {self._last[tag.lane]}"
        self._last[tag.lane] = tag
        self.found += [(tag.round, tag.lane, row) for row in rows_of(element.records)]

    def _cut(self) -> None:
        old = self.driver
        flight, batches = old.chain.capture()
        tables = old.chain.snapshot()
        controls = old.continuations.capture(flight)
        self._patience = self._patience * 2 if self._before == (flight, controls) else 1
        self._since, self._before = 0, (flight, controls)
        queued = [[port.gate.feeds[0].pop() for _ in range(len(port.gate.feeds[0]))] for port in old.ports.all]
        self._read()
        pending = list(old.pending)
        old.chain.close()
        states = [tables.get(f"op{number}") for number in range(len(self._configs))]
        states = [None if state is None else through_storage(state) for state in states]
        kept = msgspec.msgpack.decode(msgspec.msgpack.encode(flight), type=ChainFlight)
        self._begin(states, [place.ports for place in kept.places], queued)
        new = self.driver
        new.chain.put_back(kept, batches)
        new.continuations.put_back(msgspec.msgpack.decode(msgspec.msgpack.encode(controls), type=tuple[Control, ...]))
        new.pending += pending
        new.ports.past = old.ports.past
        for port, before in zip(new.ports.all, old.ports.all, strict=True):
            port.round, port.ended = before.round, before.ended
        new.go_on_from(old.round, data_ended=old.data_ended)
