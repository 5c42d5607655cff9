"""Conversations that are damaged on their way: any bytes, cut anywhere, any bit flipped; streams, greetings, feeds.

The outcome is an error of ours or an end of the connection, soon; what came before the damage is right, nothing comes
after it, no length is believed that was not checked, and others are served as before.
"""

from __future__ import annotations

import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from penstock.actors.feed.tcp_server import TcpFeedServer
from penstock.actors.feed.wire import ReplyReader, ReplyWriter, failure_parts, receive_request, request_bytes
from penstock.actors.transport import greeting
from penstock.actors.transport.dialling import Secrets, Stop, connect
from penstock.actors.transport.frames import GarbageError
from penstock.actors.transport.greeting import Caller, GreetingError, greet, receive_greeting
from penstock.actors.transport.link import Link
from penstock.actors.transport.listener import Listener
from penstock.actors.transport.protocol import BrokenLink
from penstock.actors.transport.sockets import let_calls_return
from penstock.actors.transport.wire import Bye, MessageEncoder, message
from penstock.engine.core.elements import Barrier, Batch, EndOfData, EndOfRound, Tag
from penstock.engine.core.errors import PenstockError
from penstock.engine.core.identity import Attempt, BarrierKind, CheckpointId, TaskId
from penstock.engine.exchange.channels import EndOfDataAck, Frame, Grant, Upstream
from penstock.engine.feed.messages import Ask, Commit, FeedEnded, RankGroup, Reply, Slice
from support.channel_contract import ATTEMPTS, CHANNEL, shapes
from support.stream_wire import PATIENCE, TOKEN

Damage = Callable[[bytes], bytes]
CALLER = Caller(CHANNEL.consumer, ATTEMPTS[1], CHANNEL.producer, ATTEMPTS[0])
PRELUDE = greeting.MAGIC + greeting.VERSION.to_bytes(4, "little")
MOST_MEMORY = 64 * 2**20
often = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@some.composite
def damages(draw: some.DrawFn) -> Damage:
    """What happens to bytes: they are cut, a bit flips, some or all are others."""
    kind = draw(some.sampled_from(["cut", "flip", "other", "any"]))
    seed, other = draw(some.integers(0, 2**32)), draw(some.binary(min_size=1, max_size=40))

    def damage(data: bytes) -> bytes:
        chance = random.Random(seed)
        at = chance.randrange(len(data))
        match kind:
            case "cut":
                return data[:at]
            case "flip":
                return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
            case "other":
                return data[:at] + other + data[at + len(other) :]
        return other

    return damage


def given_to(data: bytes) -> socket.socket:
    """The end of a connection to which these bytes come, and then the end."""
    here, there = socket.socketpair()
    thread = threading.Thread(target=send, args=(there, data), daemon=True)
    thread.start()
    return here


def send(connection: socket.socket, data: bytes) -> None:
    with connection, suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


# ---------------------------------------------------------------------- streams between tasks


@cache
def stream() -> tuple[tuple[Frame | Upstream, ...], bytes]:
    """A conversation, as it is meant and as it is sent."""
    said: list[Frame | Upstream] = [Grant(CHANNEL, ATTEMPTS, 7)]
    said += [
        Frame(CHANNEL, ATTEMPTS, number, Batch(records, Tag(0, 0, number)), records.nbytes)
        for number, records in enumerate([*shapes(), *shapes()])
        if records.nbytes < 2**16
    ]
    barrier = Barrier(CheckpointId(3, 4), BarrierKind.CHECKPOINT, 1.5)
    said += [Frame(CHANNEL, ATTEMPTS, 100 + at, each) for at, each in enumerate([EndOfRound(1), barrier, EndOfData()])]
    said.append(EndOfDataAck(CHANNEL, ATTEMPTS))
    data = bytearray()
    for each in said:  # one by one, so that grants keep their place
        encoder = _encoder()
        encoder.put(each)
        data += b"".join(bytes(part) for part in encoder.take())
    return tuple(said), bytes(data) + message(Bye())


@cache
def _encoder() -> MessageEncoder:
    return MessageEncoder({})


class Heard:
    """A link to which a conversation comes."""

    def __init__(self, data: bytes) -> None:
        self.messages: list[Frame | Upstream] = []
        self.broken: list[BrokenLink] = []
        link = Link(CHANNEL.producer, ATTEMPTS[0], self._arrived, self.broken.append, {})
        thread = threading.Thread(target=link.attach, args=(given_to(data),), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the link hangs"
        link.close()

    def _arrived(self, frames: tuple[Frame, ...], upstream: tuple[Upstream, ...]) -> None:
        self.messages += [*frames, *upstream]


def test_conversation_that_is_not_damaged_arrives() -> None:
    said, data = stream()
    heard = Heard(data)
    assert not heard.broken
    assert frames(heard.messages) == frames(said)


def frames(messages: Any) -> list[Frame]:
    return [each for each in messages if isinstance(each, Frame)]


@often
@given(damages())
def test_damaged_stream_breaks_its_link_and_gives_nothing_but_what_was_right(damage: Damage) -> None:
    said, data = stream()
    before, damaged = pa.total_allocated_bytes(), damage(data)
    heard = Heard(damaged)
    assert frames(heard.messages) == frames(said)[: len(frames(heard.messages))]
    assert set(map(str, heard.messages)) <= set(map(str, said))
    assert pa.total_allocated_bytes() - before < MOST_MEMORY
    if damaged[: len(data)] != data:
        (broken,) = heard.broken
        assert any(
            each in broken.reason for each in ("damaged", "garbage", "closed unexpectedly", "cannot be taken")
        ), broken


# ---------------------------------------------------------------------- greetings


class Relay:
    """Carries what two sides say to each other, with damage to one side's words, and keeps what each has said."""

    def __init__(self, damaged: int = 0, flip: int | None = None, cut: int | None = None) -> None:
        self.ends, inner = zip(*(socket.socketpair() for _ in range(2)), strict=True)
        self.said = [bytearray(), bytearray()]
        for side in (0, 1):
            hurt = (flip, cut) if side == damaged else (None, None)
            threading.Thread(target=self._carry, args=(side, inner[side], inner[1 - side], *hurt), daemon=True).start()

    def _carry(self, side: int, source: Any, target: Any, flip: int | None, cut: int | None) -> None:
        with suppress(OSError):
            while data := bytearray(source.recv(4096)):
                at = len(self.said[side])
                self.said[side] += data
                if flip is not None and at <= flip // 8 < at + len(data):
                    data[flip // 8 - at] ^= 1 << flip % 8
                if cut is not None and at + len(data) > cut:
                    target.sendall(data[: max(0, cut - at)])
                    break
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def greeted(relay: Relay, seconds: float) -> tuple[Any, Any]:
    """What both sides come to: the caller, or an error."""
    found: list[Any] = [None, None]
    until = time.monotonic() + seconds

    def run(side: int, part: Callable[..., Any], *arguments: Any) -> None:
        try:
            found[side] = part(relay.ends[side], *arguments, until)
        except (GreetingError, OSError) as error:
            found[side] = error
        finally:
            relay.ends[side].close()

    dialler = threading.Thread(target=run, args=(0, greet, TOKEN, CALLER, "me"))
    dialler.start()
    run(1, receive_greeting, TOKEN, "me")
    dialler.join(seconds + PATIENCE)
    assert not dialler.is_alive()
    assert time.monotonic() < until + PATIENCE / 4
    return found[0], found[1]


def test_greeting_that_is_not_damaged_is_welcome() -> None:
    assert greeted(Relay(), 20) == (None, CALLER)


@settings(parent=often, max_examples=100)
@given(some.integers(0, 1), some.integers(0, 8 * 600), some.booleans())
def test_damaged_greeting_lets_nobody_in_but_whom_it_was_meant_for(side: int, bit: int, cuts: bool) -> None:
    relay = Relay(side, **({"cut": bit // 8} if cuts else {"flip": bit}))
    _, came = greeted(relay, 0.3)
    assert came == CALLER or isinstance(came, (GreetingError, OSError))
    if side == 0 and bit // 8 < 12 + 4:  # magic, version, length
        assert came != CALLER


@settings(parent=often, max_examples=100)
@given(some.binary(max_size=300), some.sampled_from([b"", b"PENSTOCK", PRELUDE, PRELUDE + b"\x80\0\0\0"]))
def test_any_words_are_refused_by_listener_and_dialler(words: bytes, begin: bytes) -> None:
    until = time.monotonic() + 20
    with given_to(begin + words) as connection, pytest.raises((GreetingError, OSError)):
        receive_greeting(connection, TOKEN, "me", until)
    with given_to(begin + words) as connection, pytest.raises((GreetingError, OSError)):
        greet(connection, TOKEN, CALLER, "me", until)
    assert time.monotonic() < until - 15


@pytest.mark.parametrize(
    "nested", [b"\x91" * 4000, b"\x81\xa4type" * 600, b"\x82\xa4type\xa5Hello\xa1x" + b"\x91" * 3000]
)
def test_words_that_are_nested_without_end_are_refused(nested: bytes) -> None:
    words = PRELUDE + len(nested).to_bytes(4, "little") + nested
    with given_to(words) as connection, pytest.raises((GreetingError, OSError)):
        receive_greeting(connection, TOKEN, "me", time.monotonic() + 20)


# ---------------------------------------------------------------------- feeds

ASKS = [
    Ask("session", 0, 2, 0, 1, 3, 2, (3, 4, 5)),
    Ask("session", 1, 2, 0, 1, 3, 2, (), True, (Commit("model", 3, ((1, 2),)),)),
]


@cache
def replies() -> tuple[tuple[Any, ...], bytes]:
    """Replies of a feed, as rows, and as they are sent."""
    writer, data, rows = ReplyWriter(), bytearray(), pa.record_batch({"n": pa.array(range(50)), "w": ["w"] * 50})
    said = [
        Reply(RankGroup(1, 2, 0), (Slice(1, 0, at, 0, (rows.slice(at, 9),), 9), FeedEnded(1, 4, 4))) for at in (1, 2)
    ]
    for each in said:
        data += b"".join(bytes(part) for part in writer.parts(each))
    data += b"".join(failure_parts(ValueError("no")))
    return tuple(said), bytes(data)


def until_error(heard: Callable[[], Any]) -> list[Any]:
    """Everything up to an error of ours, or the end."""
    found = []
    with suppress(GarbageError, EOFError, PenstockError):
        while True:
            found.append(heard())
    return found


@often
@given(damages())
def test_damaged_reply_of_a_feed_is_an_error_and_gives_no_wrong_rows(damage: Damage) -> None:
    said, data = replies()
    before = pa.total_allocated_bytes()
    with given_to(damage(data)) as connection:
        heard = until_error(ReplyReader(connection).next)
        assert pa.total_allocated_bytes() - before < MOST_MEMORY
    assert [str(each) for each in heard] == [str(each) for each in said[: len(heard)]]


@often
@given(damages())
def test_damaged_question_is_an_error(damage: Damage) -> None:
    with given_to(damage(b"".join(request_bytes(ask, 0.25) for ask in ASKS))) as connection:
        asked = [request.ask for request in until_error(lambda: receive_request(connection))]
    assert asked == ASKS[: len(asked)]


class Server:
    """Answers everybody at once."""

    def serve(self, ask: Ask, timeout: float) -> Reply[Any]:
        return Reply(RankGroup(1, ask.ranks, 0), (), "words")

    def notify(self, ask: Ask) -> None:
        """Nothing comes of it."""

    on_disconnect = notify


@pytest.fixture(scope="module")
def served() -> Iterator[TcpFeedServer]:
    """The server of a feed, without a job."""
    server = TcpFeedServer.__new__(TcpFeedServer)
    server.servers, server._connections = {"feed": Server()}, {}  # type: ignore[dict-item]
    server._lock, server._closed = threading.Lock(), False
    server._listener = Listener(secrets.token_bytes(32), "me", "127.0.0.1")
    server._listener.open(server._on_connection)
    yield server
    server._closed = True
    server._listener.close()


def rank(server: TcpFeedServer) -> socket.socket:
    listener = server._listener
    me = Caller(TaskId("(rank)", 0), Attempt(0, 0), TaskId("feed", 0), Attempt(0, 0))
    connection = connect(listener.endpoint, me, Secrets(listener._token), Stop())
    let_calls_return(connection, PATIENCE)
    return connection


@settings(parent=often, max_examples=100)
@given(damages())
def test_server_of_a_feed_ends_a_damaged_connection_soon_and_serves_the_others(
    served: TcpFeedServer, damage: Damage
) -> None:
    with rank(served) as honest, rank(served) as broken:
        with suppress(OSError):
            broken.sendall(damage(b"".join(request_bytes(ask, 0.25) for ask in ASKS)))
            broken.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while broken.recv(4096):  # BlockingIOError, if it says nothing and does not end either
                pass
        honest.sendall(request_bytes(ASKS[0], 0.25))
        assert ReplyReader(honest).next().reason == "words"
