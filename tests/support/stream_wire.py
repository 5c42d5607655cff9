"""A channel over real sockets between two transports of this process, as the channel contract sees it.

``StreamEnd`` is one end with its transport; a test in another process, or in a Ray actor, uses it as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from penstock.actors.transport.dialling import RECONNECT_SECONDS, Resolve
from penstock.actors.transport.listener import Listener
from penstock.actors.transport.protocol import BrokenLink
from penstock.actors.transport.streams import StreamTransport
from penstock.actors.transport.tls import Certificate
from penstock.actors.transport.wire import Codec
from penstock.engine.core.elements import Element, EndOfRound
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.exchange.channels import ChannelId, Frame, Grant, InputChannel, OutputChannel, Upstream
from support.channel_contract import ATTEMPTS, CHANNEL

PATIENCE = 20.0
"""Seconds after which what must come is given up; what does come ends the wait at once."""

FENCE = ChannelId("fence", CHANNEL.producer, CHANNEL.consumer)
"""A second channel on the same connection: what comes on it says that everything sent before has come, too."""

TOKEN = bytes(range(32))


Do = Callable[..., Any]
"""Calls a method of an end by its name."""


def told_at_once(address: Any, resolved: Callable[[Any, Any], None]) -> None:
    """Resolves addresses that are endpoints already."""
    resolved(address, None)


class StreamEnd:
    """One task with its transport, and both kinds of channel ends for the contract's channel."""

    def __init__(
        self,
        task: TaskId,
        *,
        unix: bool = True,
        token: bytes = TOKEN,
        resolve: Resolve = told_at_once,
        codecs: Mapping[str, Codec] | None = None,
        incarnation: str = "",
        host: str = "127.0.0.1",
        reconnect: float = RECONNECT_SECONDS,
        certificate: Certificate | None = None,
    ) -> None:
        self.task = task
        self._changed = threading.Condition()
        self._dropped = 0
        self._gap = ""
        self._broken: list[BrokenLink] = []
        self.inputs: dict[ChannelId, InputChannel] = {}
        self.outputs: dict[ChannelId, OutputChannel] = {}
        listener = Listener(token, incarnation or str(task), host, unix, certificate)
        self.endpoint = listener.endpoint
        self.transport = StreamTransport(
            task, listener, token, resolve, self._arrived, self._breaks, codecs, reconnect, certificate
        )

    def connect(
        self, own: Attempt, peers: Mapping[TaskId, tuple[Attempt, Any]], channels: Mapping[ChannelId, Any], credit: int
    ) -> None:
        """Connect to ``peers``, with ends for the ``channels`` (each with its attempts) that touch this task."""
        with self._changed:
            self.outputs = {
                channel: OutputChannel(channel, attempts, self.transport.send, credit)
                for channel, attempts in channels.items()
                if channel.producer == self.task
            }
            self.inputs = {
                channel: InputChannel(channel, attempts, self.transport.reply)
                for channel, attempts in channels.items()
                if channel.consumer == self.task
            }
        self.transport.connect({self.task: (own, self.endpoint), **peers})

    def _arrived(self, frames: tuple[Frame, ...], upstream: tuple[Upstream, ...]) -> None:
        with self._changed:
            for frame in frames:
                self._receive(frame)
            for message in upstream:
                self.outputs[message.channel].deliver(message)
            self._changed.notify_all()

    def _receive(self, frame: Frame) -> None:
        try:
            self._dropped += not self.inputs[frame.channel].receive(frame)
        except Exception as error:
            self._gap = str(error)

    def _breaks(self, link: BrokenLink) -> None:
        with self._changed:
            self._broken.append(link)
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], patience: float = PATIENCE) -> bool:
        """Whether the condition holds within a moment."""
        with self._changed:
            return self._changed.wait_for(condition, patience)

    def send(self, element: Element, channel: ChannelId = CHANNEL) -> None:
        with self._changed:
            self.outputs[channel].send(element)

    def take(self, channel: ChannelId = CHANNEL, patience: float = PATIENCE) -> Element | None:
        with self._changed:
            taken = self.inputs[channel]
            self._changed.wait_for(lambda: len(taken) > 0, patience)
            return taken.pop() if len(taken) else None

    def try_take(self) -> Element | None:
        return self.take(patience=0)

    def take_all(self, count: int, channel: ChannelId = CHANNEL) -> list[Element | None]:
        return [self.take(channel) for _ in range(count)]

    def wait_ready(self, channel: ChannelId = CHANNEL) -> bool:
        return self.wait(lambda: self.outputs[channel].ready)

    def wait_in_flight(self, bytes: int) -> bool:
        return self.wait(lambda: self.outputs[CHANNEL].in_flight == bytes)

    def output(self) -> tuple[bool, int, bool]:
        """Of the producer's end: ready, bytes in flight, all processed."""
        with self._changed:
            end = self.outputs[CHANNEL]
            return end.ready, end.in_flight, end.end_of_data_acknowledged

    def send_fence(self, number: int) -> None:
        self.transport.send(Frame(FENCE, ATTEMPTS, number, EndOfRound(number)))

    def pass_fence(self, number: int) -> None:
        """Wait for the fence and send it back."""
        assert self.take(FENCE) == EndOfRound(number)
        self.transport.reply(Grant(FENCE, ATTEMPTS, number + 1))

    def wait_fence(self, number: int) -> None:
        """Wait until the fence has come back."""
        assert self.wait(lambda: self.outputs[FENCE].in_flight == -number - 1)

    def put_frame(self, frame: Frame) -> None:
        self.transport.send(frame)

    def put_upstream(self, message: Upstream) -> None:
        self.transport.reply(message)

    def acknowledge_end_of_data(self) -> None:
        self.inputs[CHANNEL].acknowledge_end_of_data()

    def seen(self) -> tuple[int, str]:
        return self._dropped, self._gap

    def broken(self, patience: float = PATIENCE) -> list[BrokenLink]:
        """The broken links, as soon as there is one."""
        self.wait(lambda: bool(self._broken), patience)
        return list(self._broken)

    def close(self) -> None:
        self.transport.close()


def connect_ends(
    producer: StreamEnd,
    consumer: StreamEnd,
    credit: int = 100_000,
    channels: tuple[ChannelId, ...] = (CHANNEL, FENCE),
    attempts: tuple[Attempt, Attempt] = ATTEMPTS,
) -> None:
    """Connect both with each other."""
    named = dict.fromkeys(channels, attempts)
    producer.connect(attempts[0], {consumer.task: (attempts[1], consumer.endpoint)}, named, credit)
    consumer.connect(attempts[1], {producer.task: (attempts[0], producer.endpoint)}, named, credit)


class FencedWire:
    """The contract's channel between two ends, wherever they are: what has not come when a fence has, never will."""

    def __init__(self, producer: Do, consumer: Do) -> None:
        self._producer, self._consumer = producer, consumer
        self._fences = 0

    def _settle(self) -> None:
        number, self._fences = self._fences, self._fences + 1
        self._producer("send_fence", number)
        self._consumer("pass_fence", number)
        self._producer("wait_fence", number)

    def send(self, element: Element) -> None:
        self._producer("send", element)

    def put_frame(self, frame: Frame) -> None:
        self._producer("put_frame", frame)

    def put_upstream(self, message: Upstream) -> None:
        self._consumer("put_upstream", message)

    def take(self) -> Element | None:
        taken: Element | None = self._consumer("try_take")
        if taken is None:
            self._settle()
            taken = self._consumer("try_take")
        return taken

    def dropped(self) -> int:
        self._settle()
        return int(self._consumer("seen")[0])

    def gap(self) -> str:
        self._settle()
        return str(self._consumer("seen")[1])

    def wait_ready(self) -> bool:
        return bool(self._output()[0])

    def wait_in_flight(self, bytes: int) -> bool:
        return bool(self._output()[1] == bytes)

    def acknowledge_end_of_data(self) -> None:
        self._consumer("acknowledge_end_of_data")

    def end_of_data_acknowledged(self) -> bool:
        return bool(self._output()[2])

    def _output(self) -> Any:
        self._settle()
        return self._producer("output")

    def close(self) -> None:
        self._producer("close")
        self._consumer("close")


def stream_wire(
    credit: int,
    *,
    unix: bool = True,
    codecs: Mapping[str, Codec] | None = None,
    certificate: Certificate | None = None,
) -> FencedWire:
    """The contract's channel between two ends in this process."""
    producer = StreamEnd(CHANNEL.producer, unix=unix, codecs=codecs, certificate=certificate)
    consumer = StreamEnd(CHANNEL.consumer, unix=unix, codecs=codecs, certificate=certificate)
    connect_ends(producer, consumer, credit)
    return FencedWire(
        lambda method, *arguments: getattr(producer, method)(*arguments),
        lambda method, *arguments: getattr(consumer, method)(*arguments),
    )
