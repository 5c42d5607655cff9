"""The two processes of ``benchmarks/transport.py`` and the ways in which batches go from one to the other."""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.flight

from harness import sized
from penstock.actors.transport.listener import Listener
from penstock.actors.transport.streams import StreamTransport
from penstock.engine.core.elements import Batch, EndOfData, Tag
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.exchange.channels import DEFAULT_CREDIT, ChannelId, Frame, InputChannel, OutputChannel, Upstream

SIZES = sized((1 << 10, 16 << 10, 64 << 10, 256 << 10), (1 << 10, 16 << 10))
BATCHES = {1 << 10: sized(4000, 40), 16 << 10: sized(1600, 16), 64 << 10: 400, 256 << 10: 120}
"""Batches per round, by rows."""

TOKEN = bytes(32)
CHANNEL = ChannelId("gather-1", TaskId("source", 0), TaskId("sink", 0))
ATTEMPTS = (Attempt(1, 1), Attempt(1, 1))


def make_records(rows: int) -> pa.RecordBatch:
    """Rows of 24 bytes."""
    return pa.record_batch({name: pa.array(range(rows), pa.int64()) for name in "abc"})


class Task:
    """One end of our channel, with a transport and a mailbox, as a task's thread has them."""

    def __init__(self, task: TaskId, unix: bool) -> None:
        self._task = task
        self._arrived: SimpleQueue[tuple[tuple[Frame, ...], tuple[Upstream, ...]]] = SimpleQueue()
        listener = Listener(TOKEN, str(task), "127.0.0.1", unix)
        self.endpoint = listener.endpoint
        self._transport = StreamTransport(task, listener, TOKEN, _told_at_once, self._take, _broke)
        self.output = OutputChannel(CHANNEL, ATTEMPTS, self._transport.send, DEFAULT_CREDIT)
        self.input = InputChannel(CHANNEL, ATTEMPTS, self._transport.reply)

    def connect(self, peer: TaskId, endpoint: Any) -> None:
        self._transport.connect({self._task: (ATTEMPTS[0], self.endpoint), peer: (ATTEMPTS[1], endpoint)})

    def _take(self, frames: tuple[Frame, ...], upstream: tuple[Upstream, ...]) -> None:
        self._arrived.put((frames, upstream))

    def take(self, block: bool) -> None:
        """Take what arrived; wait for something if told so."""
        while block or not self._arrived.empty():
            frames, upstream = self._arrived.get()
            for frame in frames:
                self.input.receive(frame)
            for message in upstream:
                self.output.deliver(message)
            block = False

    def close(self) -> None:
        self._transport.close()


def _told_at_once(address: Any, resolved: Callable[[Any, Any], None]) -> None:
    resolved(address, None)


def _broke(link: object) -> None:
    raise AssertionError(link)


def produce(task: Task, records: pa.RecordBatch, count: int) -> None:
    """What a source does: one batch after another, as credit allows."""
    for number in range(count):
        while not task.output.ready:
            task.take(block=True)
        task.output.send(Batch(records, Tag(0, 0, number)))
    task.output.send(EndOfData())


def consume(task: Task) -> int:
    """What a sink does; returns the rows."""
    rows = 0
    while True:
        while task.input.peek() is None:
            task.take(block=True)
        element = task.input.pop()
        if isinstance(element, EndOfData):
            return rows
        assert isinstance(element, Batch)
        rows += element.records.num_rows


class Peer:
    """The other process, seen from this one."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def run(self, kind: str, rows: int, count: int) -> float:
        """Microseconds per batch, from the first to when the other process has taken the last."""
        records = make_records(rows)
        self._pipe.send((kind, count))
        send = self._sender(kind, records, count)
        started = time.perf_counter()
        close = send()
        assert self._pipe.recv() == rows * count
        seconds = time.perf_counter() - started
        close()
        self._pipe.recv()
        return seconds / count * 1e6

    def _sender(self, kind: str, records: pa.RecordBatch, count: int) -> Callable[[], Callable[[], None]]:
        """Everything that is to be done before the clock starts; what is returned sends."""
        address = self._pipe.recv()
        if kind.startswith("bare"):
            connection = _connected(address)
            return lambda: _send_bare(connection, records, count)
        if kind == "flight":
            return lambda: _send_flight(address, records, count)
        task = Task(CHANNEL.producer, unix=kind == "unix")
        task.connect(CHANNEL.consumer, address)
        self._pipe.send(task.endpoint)
        self._pipe.recv()

        def send() -> Callable[[], None]:
            produce(task, records, count)
            return task.close

        return send


def _connected(address: Any) -> socket.socket:
    connection = socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX)
    connection.connect(address)
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _send_bare(connection: socket.socket, records: pa.RecordBatch, count: int) -> Callable[[], None]:
    with connection.makefile("wb") as file, pa.ipc.new_stream(file, records.schema) as writer:
        for _ in range(count):
            writer.write_batch(records)
            file.flush()
    connection.shutdown(socket.SHUT_WR)
    return connection.close


def _send_flight(port: int, records: pa.RecordBatch, count: int) -> Callable[[], None]:
    client = pa.flight.connect(f"grpc+tcp://127.0.0.1:{port}")
    writer, _ = client.do_put(pa.flight.FlightDescriptor.for_path("bench"), records.schema)
    for _ in range(count):
        writer.write_batch(records)
    writer.done_writing()

    def close() -> None:
        writer.close()
        client.close()

    return close


# ---------------------------------------------------------------------- the other process


@contextmanager
def started_peer() -> Iterator[Peer]:
    """The other process, until the end of the block."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield Peer(here)
    finally:
        here.send(None)
        process.join()


def _serve(pipe: Connection) -> None:
    while (order := pipe.recv()) is not None:
        kind, _ = order
        if kind.startswith("bare"):
            _serve_bare(pipe, kind)
        elif kind == "flight":
            _serve_flight(pipe)
        else:
            _serve_ours(pipe, kind)
        pipe.send("closed")


def _serve_ours(pipe: Connection, kind: str) -> None:
    task = Task(CHANNEL.consumer, unix=kind == "unix")
    pipe.send(task.endpoint)
    task.connect(CHANNEL.producer, pipe.recv())
    pipe.send("connected")
    pipe.send(consume(task))
    task.close()


def _serve_bare(pipe: Connection, kind: str) -> None:
    with socket.socket(socket.AF_UNIX if kind == "bare unix" else socket.AF_INET) as listening:
        listening.bind(f"\0penstock-bench-{time.monotonic_ns()}" if kind == "bare unix" else ("127.0.0.1", 0))
        listening.listen()
        pipe.send(listening.getsockname())
        connection, _ = listening.accept()
    rows = 0
    with connection, connection.makefile("rb") as file, pa.ipc.open_stream(file) as reader:
        for records in reader:
            rows += records.num_rows
        pipe.send(rows)


def _serve_flight(pipe: Connection) -> None:
    counts: SimpleQueue[int] = SimpleQueue()

    class Server(pa.flight.FlightServerBase):  # type: ignore[misc]
        def do_put(self, _context: Any, _descriptor: Any, reader: Any, _writer: Any) -> None:
            counts.put(sum(chunk.data.num_rows for chunk in reader))

    with Server("grpc+tcp://127.0.0.1:0") as server:
        pipe.send(server.port)
        pipe.send(counts.get())


# ---------------------------------------------------------------------- within this process, and over Ray


def local_exchange(rows: int, count: int) -> float:
    """Microseconds per batch through a channel of this process."""
    records = make_records(rows)
    frames: deque[Frame] = deque()
    source = OutputChannel(CHANNEL, ATTEMPTS, frames.append)
    sink = InputChannel(CHANNEL, ATTEMPTS, source.deliver)
    started = time.perf_counter()
    for number in range(count):
        source.send(Batch(records, Tag(0, 0, number)))
        sink.receive(frames.popleft())
        sink.pop()
    return (time.perf_counter() - started) / count * 1e6


class Receiver:
    """An actor that takes batches."""

    def receive(self, records: pa.RecordBatch) -> int:
        return int(records.num_rows)


UNDER_WAY = 16
"""Calls that have been sent and not been answered."""


def ray_calls(rows: int, count: int, store: bool) -> Callable[[], float]:
    """A side: microseconds per batch through calls of an actor; with ``store`` it is put into the store first."""
    import ray

    records = make_records(rows)
    actor = ray.remote(num_cpus=0)(Receiver).remote()
    ray.get(actor.receive.remote(records))

    def run() -> float:
        started = time.perf_counter()
        waiting: list[Any] = []
        for _ in range(count):
            if len(waiting) == UNDER_WAY:
                ray.get(waiting.pop(0))
            waiting.append(actor.receive.remote(ray.put(records) if store else records))
        ray.get(waiting)
        return (time.perf_counter() - started) / count * 1e6

    return run
