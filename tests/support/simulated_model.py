"""What a simulated flow is made of: rows, lanes, the state of a task, and the channels between tasks."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.coordinator.model.execution_graph import ExecutionGraph, Pattern, owned_lanes, pointwise_upstreams
from penstock.engine.core.identity import Attempt, CheckpointId, TaskId
from penstock.engine.feed.state import SequencerState

LANES = 8
ROWS_PER_ROUND = 2
CAPACITY = 6
LAST_ROUND = 1 << 30
"""The round of what is emitted at the end of data."""

Row = tuple[int, str]
Tag = tuple[int, int, int]
"""A row's place in the order, given at the source and carried through: round, lane, position."""
Tagged = tuple[Tag, Row]
Element = tuple[str, object]
"""What a channel holds: its kind, and what belongs to that."""


@dataclass(frozen=True)
class FeedRows:
    """Rows as a sequencer sees them."""

    values: tuple[str, ...]

    @property
    def num_rows(self) -> int:
        return len(self.values)

    def slice(self, offset: int, length: int) -> FeedRows:
        return FeedRows(self.values[offset : offset + length])


@dataclass(frozen=True)
class Flow:
    """A graph and what its sources hold: rows per lane, by vertex."""

    name: str
    graph: ExecutionGraph
    rows: Mapping[str, tuple[int, ...]]
    feed: str = ""
    """The vertex that ends in a sequencer, whose rows the ranks of a training job read."""


@dataclass
class ChannelFlight:
    """One input channel at a cut: what its consumer had taken note of, and what is to come before the barrier."""

    round: int
    data_ended: bool
    drained: bool
    elements: list[Element] = field(default_factory=list)


@dataclass
class Flight:
    """What a task was in the middle of at its cut: its inputs, what it had not sent, and where it stood itself."""

    inputs: list[ChannelFlight]
    outputs: list[list[Element]]
    round: int
    data_ended: bool

    @property
    def rows(self) -> int:
        """In channels, on both sides."""
        sides = [*(channel.elements for channel in self.inputs), *self.outputs]
        return sum(kind == "row" for elements in sides for kind, _ in elements)


@dataclass
class TaskState:
    """What a state file of the model holds, by lane."""

    cursors: dict[int, int] = field(default_factory=dict)
    totals: dict[int, tuple[int, int]] = field(default_factory=dict)
    flushed: set[int] = field(default_factory=set)
    #: Rows that wait for their round.
    held: list[Tagged] = field(default_factory=list)
    round: int = -1
    feed: SequencerState[FeedRows] | None = None
    #: Of a task that cut as a whole. It goes into a file of its own.
    flight: Flight | None = None

    def copy(self) -> TaskState:
        return TaskState(dict(self.cursors), dict(self.totals), set(self.flushed), list(self.held), self.round)

    def take(self, other: TaskState, lanes: range) -> None:
        """Take over what ``other`` has of these lanes."""
        self.cursors.update({lane: n for lane, n in other.cursors.items() if lane in lanes})
        self.totals.update({lane: t for lane, t in other.totals.items() if lane in lanes})
        self.flushed |= {lane for lane in other.flushed if lane in lanes}
        self.held += [held for held in other.held if held[1][0] in lanes]
        self.round = max(self.round, other.round)
        self.feed = other.feed or self.feed


@dataclass(eq=False)
class Channel:
    """One producer to one consumer, within one attempt of their region."""

    producer: TaskId
    elements: deque[Element] = field(default_factory=deque)
    all_processed: bool = False
    #: The consumer's side.
    exchange: str = ""
    rekey: bool = False
    round: int = -1
    data_ended: bool = False
    drained: bool = True
    closed: bool = False
    barrier: CheckpointId | None = None


def lanes_of(subtask: int, parallelism: int) -> range:
    """The lanes that a subtask owns."""
    return owned_lanes(subtask, parallelism, LANES)


def exchange_name(source: str, target: str) -> str:
    return f"{source} to {target}"


def digest(value: str) -> int:
    return zlib.crc32(value.encode())


class Channels:
    """Every channel of every attempt, made when first asked for."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, TaskId, TaskId, Attempt], Channel] = {}

    def get(self, edge: int, producer: TaskId, consumer: TaskId, attempt: Attempt) -> Channel:
        return self._made.setdefault((edge, producer, consumer, attempt), Channel(producer))


def connect(
    flow: Flow, channels: Channels, task: TaskId, attempt: Attempt, round: int
) -> tuple[list[Channel], list[tuple[int, TaskId, Channel]]]:
    """The channels of an attempt: its inputs, and its outputs with the number of their edge and who consumes them."""
    graph = flow.graph
    inputs: list[Channel] = []
    outputs: list[tuple[int, TaskId, Channel]] = []
    for number, edge in enumerate(graph.edges):
        s, t = graph.parallelism[edge.source], graph.parallelism[edge.target]
        wide, name = edge.pattern is Pattern.ALL_TO_ALL, exchange_name(edge.source, edge.target)
        if edge.target == task.vertex:
            for feeder in range(s) if wide else pointwise_upstreams(s, t, task.subtask):
                channel = channels.get(number, TaskId(edge.source, feeder), task, attempt)
                channel.rekey, channel.round, channel.exchange = wide, round, name
                inputs.append(channel)
        if edge.source == task.vertex:
            for consumer in (TaskId(edge.target, subtask) for subtask in range(t)):
                if wide or task.subtask in pointwise_upstreams(s, t, consumer.subtask):
                    outputs.append((number, consumer, channels.get(number, task, consumer, attempt)))
    return inputs, outputs
