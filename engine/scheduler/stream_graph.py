"""Graphs of execution streams, and their runs on any scheduler.

A graph is a plan: names, factories of streams, edges. It can be kept and run any number of times, at any degree of
parallelism, which is a parameter of the run. In a *lazy* run a stream is opened when somebody first asks for its
output, in an *eager* one all are asked from the start. A stream that comes ``after`` others is opened when those are
done, and asks for them when it is asked itself.

An error or an abort quiesces the run: every stream is closed before a reader hears of it, and what a reader gets is
the first error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol, Self, runtime_checkable

from ..core.errors import FlowError, InternalError
from .pool import PoolScheduler
from .protocol import (
    Blocked,
    Dependency,
    Finished,
    Handle,
    Outcome,
    Progress,
    Quantum,
    Query,
    QueryStatistics,
    Scheduler,
    Wait,
    WaitReason,
)
from .serial import SerialScheduler
from .stream_edges import Edge, EdgeKind, Outlet
from .streams import Overflow, Stream, Underflow, Verdict


@runtime_checkable
class Driven(Protocol):
    """A scheduler without threads of its own: its readers do the work."""

    def drive(self) -> bool:
        """Do a little of what is to be done, or wait for it to come. False: nothing ever will."""


@dataclass(frozen=True, slots=True)
class Connection:
    """An edge of the plan."""

    producer: str
    consumer: str
    kind: EdgeKind


@dataclass(slots=True)
class StreamGraph:
    """The plan: see the module's docstring."""

    name: str
    streams: dict[str, Callable[[], Stream]] = field(default_factory=dict)
    connections: list[Connection] = field(default_factory=list)
    dependencies: dict[str, list[str]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        stream: Callable[[], Stream],
        inputs: Sequence[str] = (),
        *,
        kind: EdgeKind = EdgeKind.DOUBLE_BUFFER,
        after: Sequence[str] = (),
    ) -> str:
        """A stream that reads from others, which are in the graph already: so there are no cycles."""
        for known in (*inputs, *after):
            if known not in self.streams:
                raise FlowError(f"stream {name} reads from {known}, which is not in graph {self.name}")
        if name in self.streams:
            raise FlowError(f"two streams of graph {self.name} are called {name}")
        self.streams[name] = stream
        self.connections += [Connection(producer, name, kind) for producer in inputs]
        self.dependencies[name] = list(after)
        return name

    def pull(self, name: str) -> None:
        """Let callers read what the stream puts."""
        self.outputs.append(name)

    def start(self, scheduler: Scheduler, *, eager: bool = False, parallelism: int | None = None) -> GraphRun:
        """Run it on a scheduler that somebody else owns; on a serial one its readers give the turns."""
        return GraphRun(self, scheduler, eager, parallelism, owned=False)

    def run(self, degree: int | None = None, *, eager: bool = False) -> GraphRun:
        """Run it on threads of its own: 0 is the reader's thread, None as many as there are cores."""
        scheduler = SerialScheduler() if degree == 0 else PoolScheduler(degree)
        return GraphRun(self, scheduler, eager, None, owned=True)


class Node:
    """One stream of a run: what the scheduler runs, and the end of its edges."""

    def __init__(self, name: str, stream: Stream, eager: bool) -> None:
        self.name = name
        self.stream = stream
        self.asked = Dependency("somebody to ask for its output", ready=eager)
        self.done = Dependency(f"{name} to be done")
        self.after: list[Node] = []
        self.handle: Handle | None = None

    # ------------------------------------------------------------------ for its edges

    def wake(self) -> None:
        if self.handle is not None:
            self.handle.wake()

    def demand(self) -> None:
        if not self.asked.ready:
            self.asked.set_ready()
            for node in self.after:
                node.demand()
        self.wake()

    # ------------------------------------------------------------------ for the scheduler

    def open(self) -> None:
        self.stream.open()

    def run(self, quantum: Quantum) -> Outcome:
        stream = self.stream
        while True:
            if stream.outputs and all(output.abandoned for output in stream.outputs):
                return self._finished()
            step = stream.step()
            if step is Verdict.DONE:
                return self._finished()
            if isinstance(step, Underflow):
                for edge in step.edges:
                    edge.ask()
                return Blocked(tuple(Wait(WaitReason.INPUT, edge.producer.name) for edge in step.edges))
            if isinstance(step, Overflow):
                return Blocked(tuple(Wait(WaitReason.OUTPUT, edge.consumer_name) for edge in step.edges))
            if quantum.expired():
                return Progress()

    def _finished(self) -> Outcome:
        for output in self.stream.outputs:
            output.end()
        for edge in self.stream.inputs:
            edge.abandon()
        self.done.set_ready()
        return Finished()

    def close(self) -> None:
        self.stream.close()


class GraphRun:
    """One run of a graph. ``outputs`` are in the order in which they were declared."""

    def __init__(
        self, graph: StreamGraph, scheduler: Scheduler, eager: bool, parallelism: int | None, *, owned: bool
    ) -> None:
        self._scheduler = scheduler
        self._owned = owned
        self._driving = Lock()
        self._nodes = {name: Node(name, make(), eager) for name, make in graph.streams.items()}
        self._query: Query = scheduler.open(graph.name, parallelism=parallelism, on_failure=self._failed)
        self.outputs: list[Outlet] = []
        self._connect(graph)
        self._query.start()

    def _connect(self, graph: StreamGraph) -> None:
        excludes: dict[str, list[str]] = {name: [] for name in self._nodes}
        consumers: dict[str, list[str]] = {name: [] for name in self._nodes}
        for connection in graph.connections:
            producer, consumer = self._nodes[connection.producer], self._nodes[connection.consumer]
            edge = Edge(connection.kind, producer, consumer)
            producer.stream.outputs.append(edge)
            consumer.stream.inputs.append(edge)
            consumers[connection.producer].append(connection.consumer)
            if connection.kind is EdgeKind.HANDOFF:
                excludes[connection.consumer].append(connection.producer)
            if producer.asked.ready:
                edge.ask()
        for name in graph.outputs:
            node = self._nodes[name]
            outlet = Outlet(node, self._wait, self._raise, asked=node.asked.ready)
            node.stream.outputs.append(outlet)
            self.outputs.append(outlet)
        ranks = ranks_of(consumers)
        for name, node in self._nodes.items():
            node.after = [self._nodes[other] for other in graph.dependencies[name]]
            neighbours = [handle for other in set(excludes[name]) if (handle := self._nodes[other].handle) is not None]
            after = [node.asked, *(other.done for other in node.after)]
            node.handle = self._query.add(node, rank=ranks[name], excludes=neighbours, after=after)

    # ------------------------------------------------------------------ for callers

    @property
    def closed(self) -> Future[None]:
        return self._query.closed

    @property
    def error(self) -> BaseException | None:
        return self._query.error

    def why(self) -> list[str]:
        return self._query.why()

    def statistics(self) -> QueryStatistics:
        return self._query.statistics()

    def abort(self, error: BaseException | None = None) -> None:
        """End the run now; readers get the error, or a ``concurrent.futures.CancelledError``."""
        self._query.cancel(error)
        for outlet in self.outputs:
            outlet.fail()

    def close(self) -> None:
        """End the run, whether all was read or not, and wait until nothing of it is left."""
        if not self.closed.done():
            self._query.cancel()
            for outlet in self.outputs:
                outlet.fail()
        self._quiesce()
        if self._owned:
            self._scheduler.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------------ for readers

    def _failed(self, handle: Handle | None, error: BaseException) -> None:
        for outlet in self.outputs:
            outlet.fail()

    def _wait(self, outlet: Outlet) -> None:
        """Wait until the outlet has something to tell; without threads, work for it."""
        if isinstance(self._scheduler, Driven):
            while not outlet.decided:
                with self._driving:
                    if not outlet.decided:
                        self._drive(self._scheduler)
        else:
            with outlet.changed:
                while not outlet.decided:
                    outlet.changed.wait()

    def _drive(self, scheduler: Driven) -> None:
        if not scheduler.drive():
            text = f"nothing of {self._query.name} can run"
            raise InternalError(text, "buffer the branches of a diamond with a Spool", detail="\n".join(self.why()))

    def _raise(self) -> None:
        self._quiesce()
        raise self.error or CancelledError(f"{self._query.name} was aborted")

    def _quiesce(self) -> None:
        """Wait until every stream is closed."""
        if isinstance(self._scheduler, Driven):
            with self._driving:
                while not self.closed.done():
                    self._drive(self._scheduler)
        else:
            self.closed.result()


def ranks_of(consumers: dict[str, list[str]]) -> dict[str, int]:
    """How far each stream is from an end of the graph. The names are in an order in which producers come first."""
    ranks: dict[str, int] = {}
    for name in reversed(consumers):
        ranks[name] = max((ranks[consumer] + 1 for consumer in consumers[name]), default=0)
    return ranks
