"""Streams when something is wrong: dead peers, strangers, garbage, stale attempts; and what they leave behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from penstock.actors.transport import greeting
from penstock.actors.transport import link as link_module
from penstock.actors.transport.dialling import Endpoint, Secrets, Stop, connect
from penstock.actors.transport.frames import head_of
from penstock.actors.transport.greeting import VERSION, Answer, Caller, Challenge, GreetingError, Hello, greet
from penstock.actors.transport.listener import Listener
from penstock.actors.transport.protocol import BrokenLink
from penstock.engine.core.elements import EndOfRound
from penstock.engine.core.errors import InternalError, SetupError
from penstock.engine.core.identity import Attempt, TaskId
from support.channel_contract import ATTEMPTS, CHANNEL, batch
from support.stream_process import ConsumerProcess
from support.stream_wire import FENCE, TOKEN, StreamEnd, connect_ends, told_at_once

CALLER = Caller(CHANNEL.consumer, ATTEMPTS[1], CHANNEL.producer, ATTEMPTS[0])
"""The consumer dials, as its id comes first."""

PRELUDE = struct.pack("<8sI", b"PENSTOCK", VERSION)


@pytest.fixture(params=[True, False], ids=["unix", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[StreamEnd, StreamEnd]]:
    """A producer and a consumer that are not connected yet."""
    made = StreamEnd(CHANNEL.producer, unix=request.param), StreamEnd(CHANNEL.consumer, unix=request.param)
    yield made
    for each in made:
        each.close()


@pytest.fixture
def producer() -> Iterator[StreamEnd]:
    """A producer that waits for its consumer, which the test plays."""
    made = StreamEnd(CHANNEL.producer)
    named = dict.fromkeys((CHANNEL, FENCE), ATTEMPTS)
    made.connect(ATTEMPTS[0], {CHANNEL.consumer: (ATTEMPTS[1], None)}, named, 100_000)
    yield made
    made.close()


def dialled(end: StreamEnd, caller: Caller = CALLER, token: bytes = TOKEN) -> socket.socket:
    """A greeted connection to an end, made by hand."""
    return connect(end.endpoint, caller, Secrets(token), Stop())


def only(broken: list[BrokenLink]) -> BrokenLink:
    assert len(broken) == 1, broken
    return broken[0]


# ---------------------------------------------------------------------- peers that die


@pytest.mark.chaos
@pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])
def test_killed_process_breaks_its_link_once_and_at_once(unix: bool) -> None:
    with ConsumerProcess(unix=unix) as consumer:
        consumer.producer.send(EndOfRound(0))
        assert consumer.take(1) == 1
        consumer.process.kill()
        broken = only(consumer.producer.broken())
        assert (broken.task, broken.attempt) == (CHANNEL.consumer, ATTEMPTS[1])
        for number in range(5):
            consumer.producer.send(EndOfRound(number))
        assert consumer.producer.broken() == [broken]


@pytest.mark.chaos
def test_process_that_is_stopped_for_a_while_loses_nothing() -> None:
    with ConsumerProcess() as consumer:
        os.kill(consumer.process.pid, signal.SIGSTOP)
        sent = 0
        while consumer.producer.outputs[CHANNEL].ready:
            consumer.producer.send(batch(sent, rows=1000))
            sent += 1
        os.kill(consumer.process.pid, signal.SIGCONT)
        assert consumer.take(sent) == sent
        assert consumer.producer.wait_in_flight(0)
        assert consumer.producer.broken(patience=0) == []


def test_a_link_ends_once_and_takes_no_second_connection() -> None:
    (own, peer), broken = socket.socketpair(), []
    link = link_module.Link(CHANNEL.consumer, ATTEMPTS[1], lambda frames, upstream: None, broken.append, {})
    link.validate()
    reading = threading.Thread(target=link.attach, args=(own,))
    reading.start()
    peer.close()
    reading.join(60)
    link.validate()
    link.close()
    late, _ = socket.socketpair()
    link.attach(late)
    assert late.fileno() == -1, "it is closed at once"
    link.join()
    link.validate()
    assert link._machine.state is link_module.LinkState.BROKEN
    assert "the connection closed unexpectedly" in only(broken).reason


def test_closed_end_is_no_broken_link(ends: tuple[StreamEnd, StreamEnd]) -> None:
    producer, consumer = ends
    connect_ends(producer, consumer)
    producer.send(EndOfRound(0))
    assert consumer.take() == EndOfRound(0)
    producer.close()
    # the links of the consumer end, because the producer has said goodbye
    for link in list(consumer.transport._links.values()):
        link.join()
        assert link.is_gone
    assert consumer.broken(patience=0) == []


def test_new_attempts_get_new_links_and_nothing_of_the_old_ones(ends: tuple[StreamEnd, StreamEnd]) -> None:
    producer, consumer = ends
    for number in range(5):
        attempts = Attempt(1, 10 + number), Attempt(1, 20 + number)
        connect_ends(producer, consumer, attempts=attempts)
        producer.send(batch(number))
        producer.send(EndOfRound(number))
        assert consumer.take_all(2) == [batch(number), EndOfRound(number)]
    assert producer.broken(patience=0) == consumer.broken(patience=0) == []
    assert producer.seen() == consumer.seen() == (0, "")


def test_connection_that_comes_before_the_listener_knows_the_attempt_waits_for_it(
    ends: tuple[StreamEnd, StreamEnd],
) -> None:
    producer, consumer = ends
    named = dict.fromkeys((CHANNEL,), ATTEMPTS)
    consumer.connect(ATTEMPTS[1], {CHANNEL.producer: (ATTEMPTS[0], producer.endpoint)}, named, 1000)
    assert wait_for(lambda: bool(producer.transport._waiting))
    producer.connect(ATTEMPTS[0], {CHANNEL.consumer: (ATTEMPTS[1], consumer.endpoint)}, named, 1000)
    producer.send(EndOfRound(7))
    assert consumer.take() == EndOfRound(7)


def wait_for(condition: Any) -> bool:
    """Whether something that nobody announces comes true."""
    changed = threading.Event()
    return any(condition() or changed.wait(0.01) for _ in range(2000))


def test_connection_for_an_older_attempt_is_turned_away(producer: StreamEnd) -> None:
    with dialled(producer, Caller(CALLER.task, Attempt(1, 1), CALLER.peer, Attempt(1, 1))) as stale:
        assert stale.recv(1) == b""
    assert producer.broken(patience=0) == []


def test_second_connection_for_the_same_attempts_is_turned_away(producer: StreamEnd) -> None:
    """The second that a thread gets to, which need not be the one that was dialled second."""
    with dialled(producer) as one, dialled(producer) as other:
        (turned_away,), _, _ = select.select([one, other], [], [], 60)
        assert turned_away.recv(1) == b""
        producer.send(EndOfRound(0))
        assert (other if turned_away is one else one).recv(1) != b""


# ---------------------------------------------------------------------- strangers


def test_listener_that_does_not_know_the_token_is_not_trusted(producer: StreamEnd) -> None:
    with pytest.raises(GreetingError, match="it does not know the token of this job; it belongs to another job"):
        dialled(producer, token=bytes(32))


def test_dialler_that_does_not_know_the_token_is_refused(producer: StreamEnd) -> None:
    until = time.monotonic() + 20
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{producer.endpoint.name}")
        connection.sendall(PRELUDE)
        greeting._send(connection, Hello(CALLER, producer.endpoint.incarnation, b"chance"), until)
        assert connection.recv(len(PRELUDE)) == PRELUDE
        challenge, _ = greeting._receive(connection, until)
        assert isinstance(challenge, Challenge)
        greeting._send(connection, Answer(proof=challenge.proof), until)
        refusal, _ = greeting._receive(connection, until)
        assert isinstance(refusal, Answer)
        assert refusal.refusal.startswith("you do not know the token of this job")
        assert connection.recv(1) == b""


def test_wrong_token_breaks_the_link_with_a_remedy() -> None:
    producer, consumer = StreamEnd(CHANNEL.producer), StreamEnd(CHANNEL.consumer, token=bytes(32))
    connect_ends(producer, consumer)
    assert "it belongs to another job" in only(consumer.broken()).reason
    assert producer.broken(patience=0) == []
    producer.close()
    consumer.close()


def test_other_version_is_refused_with_a_remedy() -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(struct.pack("<8sI", b"PENSTOCK", VERSION + 1))
        with pytest.raises(
            GreetingError, match=r"speaks version 3 .* we speak 2; install the same version of penstock"
        ):
            greet(here, TOKEN, CALLER, "somebody", time.monotonic() + 20)


def test_dialler_of_another_version_is_told_ours(producer: StreamEnd) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{producer.endpoint.name}")
        connection.sendall(struct.pack("<8sI", b"PENSTOCK", VERSION + 1))
        assert connection.recv(len(PRELUDE)) == PRELUDE
        assert connection.recv(1) == b""


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 4096, b"PENSTOCK"])
def test_stranger_is_turned_away_without_an_answer_and_without_harm(producer: StreamEnd, garbage: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(f"\0{producer.endpoint.name}")
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
    with dialled(producer) as connection:
        producer.send(EndOfRound(0))
        assert connection.recv(1) != b""


def test_greeting_longer_than_any_is_refused() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(PRELUDE + b"\xff" * 4)
        with pytest.raises(GreetingError, match="where a few hundred were expected"):
            greeting.receive_greeting(there, TOKEN, "me", time.monotonic() + 20)


@pytest.mark.parametrize(
    ("bytes_sent", "reason"),
    [
        (b"\xff" * 100, "a message of sink[0] was damaged on its way over a unix socket: the head"),
        (head_of(bytes(10)) + b"\x01" + bytes(9), "damaged on its way over a unix socket: of 10 bytes the checksum is"),
        (head_of(bytes(10)) + bytes(10), "garbage"),
        (head_of(b"\x05") + b"\x05", "garbage"),
        (head_of(bytes(2**15)), "announces a message"),
        (head_of(bytes(100)) + b"half", "closed unexpectedly"),
        (head_of(b"note", [bytes(1000)])[:7], "closed unexpectedly"),
    ],
)
def test_garbage_after_the_greeting_breaks_the_link(producer: StreamEnd, bytes_sent: bytes, reason: str) -> None:
    with dialled(producer) as connection:
        connection.sendall(bytes_sent)
        connection.shutdown(socket.SHUT_WR)
        assert reason in only(producer.broken()).reason


@pytest.mark.parametrize("at", [0, 11, 20, 60, -1000, -1])
def test_damaged_message_breaks_the_link_and_new_attempts_go_on(
    ends: tuple[StreamEnd, StreamEnd], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """A bit flips in a length, a note, or the rows; that batch and what follows it are not delivered."""
    producer, consumer = ends
    connect_ends(producer, consumer)
    producer.send(batch(0))
    assert consumer.take() == batch(0)
    send_parts = link_module.send_parts

    def flip(connection: socket.socket, parts: list[Any], given_up: Any) -> bool:
        data = bytearray(b"".join(bytes(part) for part in parts))
        if len(data) > 1000:  # a batch of a thousand rows
            data[at] ^= 16
        return send_parts(connection, [bytes(data)], given_up)

    monkeypatch.setattr(link_module, "send_parts", flip)
    producer.send(batch(1, rows=1000))
    producer.send(batch(2))
    broken = only(consumer.broken())
    assert "a message of source[0] was damaged on its way" in broken.reason
    assert (broken.task, broken.attempt) == (CHANNEL.producer, ATTEMPTS[0])
    assert consumer.try_take() is None
    assert only(producer.broken()).task == CHANNEL.consumer
    monkeypatch.undo()
    connect_ends(producer, consumer, attempts=(Attempt(1, 10), Attempt(1, 11)))
    producer.send(batch(1, rows=1000))
    assert consumer.take() == batch(1, rows=1000)


def test_link_whose_connection_cannot_be_used_is_broken_and_does_not_hang(
    ends: tuple[StreamEnd, StreamEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: socket.socket) -> None:
        raise OSError("Invalid argument")

    monkeypatch.setattr(link_module, "let_calls_return", fail)
    producer, consumer = ends
    connect_ends(producer, consumer)
    for end in ends:
        assert "the connection cannot be used: OSError: Invalid argument" in only(end.broken()).reason


# ---------------------------------------------------------------------- peers that cannot be reached


def test_process_that_answers_but_cannot_be_reached_is_given_up_with_a_remedy() -> None:
    consumer = StreamEnd(CHANNEL.consumer, reconnect=0.5)
    nobody = Endpoint("somebody", "127.0.0.1", unused_port())
    named = dict.fromkeys((CHANNEL,), ATTEMPTS)
    consumer.connect(ATTEMPTS[1], {CHANNEL.producer: (ATTEMPTS[0], nobody)}, named, 1000)
    reason = only(consumer.broken()).reason
    assert f"no connection to 127.0.0.1:{nobody.port} in 3 tries" in reason, "0.2 s and 0.4 s after the first"
    assert "Connection refused; the machines of a cluster must reach each other on all ports" in reason
    consumer.close()


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])
def test_process_that_was_replaced_is_asked_for_again(unix: bool) -> None:
    """The address outlives the process: what is told first has gone, or belongs to somebody else by now."""
    gone = Listener(TOKEN, "first", "127.0.0.1", unix)
    gone.close()
    producer = StreamEnd(CHANNEL.producer, unix=unix, incarnation="second")
    taken_over = Endpoint("first", "127.0.0.1", producer.endpoint.port)
    answers = iter([gone.endpoint, taken_over, producer.endpoint])
    consumer = StreamEnd(CHANNEL.consumer, resolve=lambda _, resolved: resolved(next(answers), None))
    connect_ends(producer, consumer)
    producer.send(EndOfRound(3))
    assert consumer.take() == EndOfRound(3)
    producer.close()
    consumer.close()


def test_closing_ends_the_wait_for_a_process_that_is_being_replaced() -> None:
    asked: SimpleQueue[object] = SimpleQueue()
    consumer = StreamEnd(CHANNEL.consumer, resolve=lambda address, _: asked.put(address))
    named = dict.fromkeys((CHANNEL,), ATTEMPTS)
    consumer.connect(ATTEMPTS[1], {CHANNEL.producer: (ATTEMPTS[0], "where it was")}, named, 1000)
    assert asked.get(timeout=20) == "where it was"
    consumer.close()
    assert consumer.broken(patience=0) == []


def test_listener_on_an_address_of_another_machine_says_what_to_do() -> None:
    with pytest.raises(SetupError, match="ray start --node-ip-address"):
        Listener(TOKEN, "me", "192.0.2.1")


def test_task_that_is_not_told_its_own_attempt_is_refused(producer: StreamEnd) -> None:
    with pytest.raises(InternalError, match="not told its own attempt"):
        producer.transport.connect({TaskId("other", 0): (ATTEMPTS[1], None)})


# ---------------------------------------------------------------------- what is left


def test_nothing_is_left_after_close() -> None:
    threads, files = set(threading.enumerate()), open_files()
    producer, consumer = StreamEnd(CHANNEL.producer), StreamEnd(CHANNEL.consumer)
    assert producer.endpoint.name in Path("/proc/net/unix").read_text()
    connect_ends(producer, consumer)
    producer.send(batch(0))
    assert consumer.take() == batch(0)
    broken = StreamEnd(CHANNEL.consumer, resolve=told_at_once)
    for each in (producer, consumer, broken):
        each.close()
    assert wait_for(lambda: set(threading.enumerate()) <= threads and open_files() == files)
    assert producer.endpoint.name not in Path("/proc/net/unix").read_text()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((producer.endpoint.host, producer.endpoint.port))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_tcp_connections_notice_a_machine_that_has_gone() -> None:
    producer = StreamEnd(CHANNEL.producer, unix=False)
    with dialled(producer) as connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
        idle, interval, count = (
            connection.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + interval * count <= 20
    producer.close()
