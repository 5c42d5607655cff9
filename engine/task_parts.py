"""Builds what a task is made of: channels, sources, operators and drivers, from the plan of its stage.

Rule: what is inside a task is wired directly, what leaves it through the owner's :class:`Wiring`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from .driver import Driver, DriverHost
from .edges import ChannelId, Frame, InputChannel, OutputChannel, Upstream
from .errors import InternalError
from .gate import Feed, Gate
from .identity import Attempt, TaskId
from .operator_instance import OperatorInstance, blame_build
from .operators.protocol import LANE, OperatorContext
from .plan import Exchange, JobPlan, OperatorPlan, PipelinePlan, PortPlan
from .rounds import lanes_of
from .sources.reader import SplitReader


class Wiring(Protocol):
    """How elements leave the task. Called on the task's thread; must not block."""

    def send(self, frame: Frame) -> None:
        """To the consumer's task."""

    def reply(self, message: Upstream) -> None:
        """To the producer's task."""


@dataclass(slots=True)
class TaskParts:
    """The parts. ``drivers`` are in order downstream first."""

    drivers: list[Driver] = field(default_factory=list)
    #: sources, each with the driver that reads it
    readers: list[tuple[SplitReader, Driver]] = field(default_factory=list)
    #: channels from other tasks, with the driver that reads them
    inputs: dict[ChannelId, tuple[InputChannel, Driver]] = field(default_factory=dict)
    #: channels to other tasks, with the driver that feeds them
    outputs: dict[ChannelId, tuple[OutputChannel, Driver]] = field(default_factory=dict)
    #: drivers that read from other tasks, with the numbers of those feeds among all their feeds
    entries: dict[Driver, list[int]] = field(default_factory=dict)
    sinks: set[str] = field(default_factory=set)

    def release(self) -> None:
        """Break the cycle between drivers, channels and task, once everything is closed."""
        self.inputs.clear()
        self.outputs.clear()


class _LocalEdge:
    """A channel inside the task. Its ends find their drivers once these exist."""

    def __init__(self, id: str, task: TaskId, attempt: Attempt) -> None:
        channel, attempts = ChannelId(id, task, task), (attempt, attempt)
        self.producer: Driver | None = None
        self.consumer: Driver | None = None
        self.output = OutputChannel(channel, attempts, self._forward)
        self.input = InputChannel(channel, attempts, self._back)

    def _forward(self, frame: Frame) -> None:
        self.input.receive(frame)
        if self.consumer is not None:
            self.consumer.wake()

    def _back(self, message: Upstream) -> None:
        self.output.deliver(message)
        if self.producer is not None:
            self.producer.wake()


def build_parts(
    plan: JobPlan,
    task: TaskId,
    attempts: Mapping[TaskId, Attempt],
    restored: Mapping[str, pa.Table],
    wiring: Wiring,
    host: DriverHost,
    more_splits: bool = False,
) -> TaskParts:
    """Build the parts of ``task``; ``restored`` holds the state of all subtasks, of which its lanes are picked.

    ``more_splits``: sources expect splits beyond those of the plan.
    """
    builder = _Builder(plan, task, attempts, restored, wiring, host)
    builder.more_splits = more_splits
    return builder.build()


class _Builder:
    def __init__(
        self,
        plan: JobPlan,
        task: TaskId,
        attempts: Mapping[TaskId, Attempt],
        restored: Mapping[str, pa.Table],
        wiring: Wiring,
        host: DriverHost,
    ) -> None:
        self._plan, self._task, self._attempts = plan, task, attempts
        self._restored, self._wiring, self._host = restored, wiring, host
        self._stage = plan.stages[task.vertex]
        self._lanes = lanes_of(task.subtask, self._stage.parallelism, plan.lanes)
        self._parts = TaskParts()
        self._edges: dict[str, _LocalEdge] = {}
        self.more_splits = False

    def build(self) -> TaskParts:
        for pipeline in self._stage.pipelines:
            for output in pipeline.outputs:
                if output.kind == "local":
                    self._edges[output.id] = _LocalEdge(output.id, self._task, self._attempts[self._task])
        built = [self._driver(pipeline) for pipeline in self._stage.pipelines]
        self._parts.drivers = built[::-1]
        return self._parts

    def _driver(self, pipeline: PipelinePlan) -> Driver:
        feeds = [self._feeds(port) for port in pipeline.ports]
        operators = [self._operator(operator) for operator in pipeline.operators]
        outputs = [channel for output in pipeline.outputs for channel in self._outputs(output.kind, output.id)]
        driver = Driver(pipeline.name, [Gate(found) for found in feeds], operators, outputs, self._host)
        self._register(driver, pipeline, feeds, outputs)
        return driver

    def _register(
        self, driver: Driver, pipeline: PipelinePlan, feeds: Sequence[Sequence[Feed]], outputs: list[OutputChannel]
    ) -> None:
        number = 0
        for port, found in zip(pipeline.ports, feeds, strict=True):
            for feed in found:
                if isinstance(feed, SplitReader):
                    self._parts.readers.append((feed, driver))
                elif port.kind == "local":
                    self._edges[port.id].consumer = driver
                elif isinstance(feed, InputChannel):
                    self._parts.inputs[feed.channel] = (feed, driver)
                    self._parts.entries.setdefault(driver, []).append(number)
                number += 1
        for output in pipeline.outputs:
            if output.kind == "local":
                self._edges[output.id].producer = driver
        for channel in outputs:
            if channel.channel.consumer != self._task:
                self._parts.outputs[channel.channel] = (channel, driver)

    def _feeds(self, port: PortPlan) -> Sequence[Feed]:
        if port.kind == "local":
            return [self._edges[port.id].input]
        if port.kind == "exchange":
            exchange = self._exchange(port.id)
            producers = range(self._plan.stages[exchange.source].parallelism)
            return [self._input(exchange, TaskId(exchange.source, subtask)) for subtask in producers]
        source = self._plan.sources[port.id]
        state = self._state(port.id)
        return [
            SplitReader(
                source.id,
                source.schema,
                source.splits,
                self._lanes,
                self._plan.lanes,
                quota=None if self.more_splits else source.quota,
                rate=source.rate,
                restored=state,
                more=self.more_splits,
            )
        ]

    def _input(self, exchange: Exchange, producer: TaskId) -> InputChannel:
        channel = ChannelId(exchange.id, producer, self._task)
        return InputChannel(channel, self._pair(producer, self._task), self._wiring.reply)

    def _outputs(self, kind: str, id: str) -> list[OutputChannel]:
        if kind == "local":
            return [self._edges[id].output]
        exchange = self._exchange(id)
        consumers = self._plan.stages[exchange.target].parallelism
        if consumers != 1:
            raise InternalError(f"exchange {id} has {consumers} consumers; only a gather is known")
        consumer = TaskId(exchange.target, 0)
        channel = ChannelId(id, self._task, consumer)
        return [OutputChannel(channel, self._pair(self._task, consumer), self._wiring.send)]

    def _exchange(self, id: str) -> Exchange:
        return next(exchange for exchange in self._plan.exchanges if exchange.id == id)

    def _pair(self, producer: TaskId, consumer: TaskId) -> tuple[Attempt, Attempt]:
        return (self._attempts[producer], self._attempts[consumer])

    def _operator(self, operator: OperatorPlan) -> OperatorInstance:
        context = OperatorContext(
            operator=operator.id,
            task=self._task,
            attempt=self._attempts[self._task],
            parallelism=self._stage.parallelism,
            lanes=self._lanes,
            job=self._plan.name,
        )
        if operator.is_sink:
            self._parts.sinks.add(operator.id)
        with blame_build(operator.id):
            running = operator.config.build(context, operator.inputs, self._state(operator.id))
        return OperatorInstance(operator.id, running)

    def _state(self, operator: str) -> pa.Table | None:
        """The restored rows of the task's lanes; None if there are none."""
        table = self._restored.get(operator)
        if table is None:
            return None
        mine = table.filter((pc.field(LANE) >= self._lanes.start) & (pc.field(LANE) < self._lanes.stop))
        return mine if mine.num_rows else None
