"""A channel between two Ray actors over streams, as the channel contract sees it. Control goes over Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import ray

from penstock.actors.transport.dialling import Endpoint
from penstock.actors.transport.wire import BatchReader, BatchWriter
from penstock.engine.core.elements import Batch, Element
from penstock.engine.exchange.channels import Frame
from support.channel_contract import ATTEMPTS, CHANNEL
from support.stream_wire import FENCE, FencedWire, StreamEnd


def asked(actor: Any, resolved: Callable[[Any, Any], None]) -> None:
    """Resolves the address of an actor by asking it, as the driver actors do."""
    future = actor.endpoint.remote().future()
    future.add_done_callback(lambda done: resolved(None if done.exception() else done.result(), done.exception()))


class End:
    """An actor with one end of the channel."""

    def __init__(self, side: str) -> None:
        self._end = StreamEnd(getattr(CHANNEL, side), resolve=asked)

    def endpoint(self) -> Endpoint:
        return self._end.endpoint

    def connect(self, peer: Any, credit: int) -> None:
        named = dict.fromkeys((CHANNEL, FENCE), ATTEMPTS)
        own, other = ATTEMPTS if self._end.task == CHANNEL.producer else ATTEMPTS[::-1]
        task = CHANNEL.consumer if self._end.task == CHANNEL.producer else CHANNEL.producer
        self._end.connect(own, {task: (other, peer)}, named, credit)

    def do(self, method: str, *arguments: Any) -> Any:
        """Call a method of the end; batches are packed on the way, since pickling loses the length of empty ones."""
        return packed(getattr(self._end, method)(*(unpacked(each) for each in arguments)))


def packed(value: Any) -> Any:
    """A batch as bytes, anything else as it is."""
    if not isinstance(value, Batch):
        return value
    piece, _ = BatchWriter().write(value.records)
    return ("batch", b"".join(bytes(part) for part in piece), value.tag)


def unpacked(value: Any) -> Any:
    """What :func:`packed` made, back."""
    match value:
        case ("batch", data, tag):
            return Batch(BatchReader().read(pa.py_buffer(data), fresh=True), tag)
    return value


def make_end(side: str) -> Any:
    """An actor with one end, of the ``producer`` or the ``consumer``."""
    return ray.remote(num_cpus=0, max_concurrency=2)(End).remote(side)


def connected_ends(credit: int) -> tuple[Any, Any]:
    """Two actors with a channel between them."""
    producer, consumer = make_end("producer"), make_end("consumer")
    ray.get([producer.connect.remote(consumer, credit), consumer.connect.remote(producer, credit)])
    return producer, consumer


def ray_wire(credit: int) -> FencedWire:
    """A channel between two new actors, which end with it."""
    producer, consumer = connected_ends(credit)

    def caller(actor: Any) -> Callable[..., Any]:
        def call(method: str, *arguments: object) -> Any:
            done = unpacked(ray.get(actor.do.remote(method, *(packed(each) for each in arguments))))
            if method == "close":
                ray.kill(actor)
            return done

        return call

    return FencedWire(caller(producer), caller(consumer))


def put_frame(actor: Any, number: int, element: Element) -> None:
    """Put a frame on the wire of a producer's actor."""
    ray.get(actor.do.remote("put_frame", Frame(CHANNEL, ATTEMPTS, number, element)))
