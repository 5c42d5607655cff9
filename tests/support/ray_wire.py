"""A channel between two actors over the Ray transport, as the channel contract sees it."""

from __future__ import annotations

import threading
from typing import Any

import ray

from penstock.actors.transport.packets import Packet, pack, unpack
from penstock.actors.transport.protocol import BrokenLink
from penstock.actors.transport.ray_calls import RayCallTransport
from penstock.engine.edges import Frame, InputChannel, OutputChannel, Upstream
from penstock.engine.elements import Element
from support.channel_contract import ATTEMPTS, CHANNEL

PATIENCE = 3.0
"""Seconds after which nothing more is expected to come; what does come ends the wait at once."""


class End:
    """An actor with one end of the channel and a transport of its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._dropped = 0
        self._gap = ""
        self._broken: list[BrokenLink] = []
        self._transport = RayCallTransport(self._breaks)

    def connect(self, peer: Any, side: str, credit: int) -> None:
        task, attempt = (CHANNEL.consumer, ATTEMPTS[1]) if side == "producer" else (CHANNEL.producer, ATTEMPTS[0])
        self._transport.connect({task: (attempt, peer)})
        self.output = OutputChannel(CHANNEL, ATTEMPTS, self._transport.send, credit)
        self.input = InputChannel(CHANNEL, ATTEMPTS, self._transport.reply)

    @ray.method(concurrency_group="data")
    def receive(self, packet: Packet) -> None:
        with self._changed:
            for frame in unpack(packet):
                self._receive(frame)
            for message in packet.upstream:
                self.output.deliver(message)
            self._changed.notify_all()

    def _receive(self, frame: Frame) -> None:
        try:
            self._dropped += not self.input.receive(frame)
        except Exception as error:
            self._gap = str(error)

    def send(self, element: Packet) -> None:
        with self._changed:
            self.output.send(_opened(element))

    def put_frame(self, frame: Frame) -> None:
        self._transport.send(frame)

    def put_upstream(self, message: Upstream) -> None:
        self._transport.reply(message)

    def take(self) -> Packet | None:
        with self._changed:
            self._changed.wait_for(lambda: len(self.input) > 0, PATIENCE)
            return _wrapped(self.input.pop()) if len(self.input) else None

    def wait_ready(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.output.ready, PATIENCE)

    def wait_in_flight(self, bytes: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.output.in_flight == bytes, PATIENCE)

    def all_processed(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.output.all_processed, PATIENCE)

    def say_all_processed(self) -> None:
        self.input.say_all_processed()

    def seen(self) -> tuple[int, str]:
        return self._dropped, self._gap

    def broken(self) -> list[BrokenLink]:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._broken), 20)
            return self._broken

    def _breaks(self, link: BrokenLink) -> None:
        with self._changed:
            self._broken.append(link)
            self._changed.notify_all()


class RayWire:
    """Both ends; ``make`` reuses two actors for all channels of a test."""

    def __init__(self, producer: Any, consumer: Any, credit: int) -> None:
        self._producer, self._consumer = producer, consumer
        ray.get([producer.connect.remote(consumer, "producer", credit), consumer.connect.remote(producer, "", credit)])

    def _do(self, method: Any, *arguments: object) -> Any:
        return ray.get(method.remote(*arguments))

    def send(self, element: Element) -> None:
        self._do(self._producer.send, _wrapped(element))

    def put_frame(self, frame: Frame) -> None:
        self._do(self._producer.put_frame, frame)

    def put_upstream(self, message: Upstream) -> None:
        self._do(self._consumer.put_upstream, message)

    def take(self) -> Element | None:
        taken = self._do(self._consumer.take)
        return None if taken is None else _opened(taken)

    def dropped(self) -> int:
        return int(self._do(self._consumer.seen)[0])

    def gap(self) -> str:
        return str(self._do(self._consumer.seen)[1])

    def wait_ready(self) -> bool:
        return bool(self._do(self._producer.wait_ready))

    def wait_in_flight(self, bytes: int) -> bool:
        return bool(self._do(self._producer.wait_in_flight, bytes))

    def say_all_processed(self) -> None:
        self._do(self._consumer.say_all_processed)

    def all_processed(self) -> bool:
        return bool(self._do(self._producer.all_processed))

    def close(self) -> None:
        for actor in (self._producer, self._consumer):
            ray.kill(actor)


def _wrapped(element: Element) -> Packet:
    """The element for the way between test and actor: pickling loses the length of a batch without columns."""
    return pack([Frame(CHANNEL, ATTEMPTS, 0, element)], [])


def _opened(packet: Packet) -> Element:
    return unpack(packet)[0].element


def make_end() -> Any:
    """An actor with one end."""
    return ray.remote(num_cpus=0, concurrency_groups={"data": 1})(End).remote()


def ray_wire(credit: int) -> RayWire:
    """A channel between two new actors."""
    return RayWire(make_end(), make_end(), credit)
