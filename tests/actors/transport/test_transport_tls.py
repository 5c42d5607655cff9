"""Streams between machines that are encrypted: who gets in, what can be seen, and large batches in both directions."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.actors.transport.tls import Certificate, SecureSocket, make_certificate
from support.channel_contract import ATTEMPTS, CHANNEL
from support.stream_wire import StreamEnd

OURS, THEIRS = make_certificate("ours"), make_certificate("theirs")
SIZE = 8 * 2**20


@pytest.fixture
def pair() -> Iterator[tuple[SecureSocket, SecureSocket]]:
    """Both ends of an encrypted connection."""
    made = secured(OURS, OURS)
    yield made
    for each in made:
        each.close()


def secured(server: Certificate, client: Certificate) -> tuple[SecureSocket, SecureSocket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname(), timeout=20)
        far, _ = listening.accept()
    far.settimeout(20)
    found: list[Any] = []

    def accept() -> None:
        try:
            found.append(SecureSocket(far, server.context(server=True), server=True))
            found[0].greet(time.monotonic() + 20)
        except OSError as error:
            found.pop().close()
            found.append(error)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        near = SecureSocket(near, client.context(server=False), server=False)
        near.greet(time.monotonic() + 20)
    except OSError:
        near.close()
        raise
    finally:
        thread.join()
    if isinstance(found[0], OSError):
        near.close()
        raise found[0]
    return near, found[0]


def test_large_amounts_pass_in_both_directions_at_once(pair: tuple[SecureSocket, SecureSocket]) -> None:
    data = [bytes(range(256)) * (SIZE // 256), bytes(range(255, -1, -1)) * (SIZE // 256)]
    got = [bytearray(SIZE), bytearray(SIZE)]

    def receive(at: int) -> None:
        assert pair[at].recv_into(got[at], 0, socket.MSG_WAITALL) == SIZE

    readers = [threading.Thread(target=receive, args=(at,)) for at in (0, 1)]
    writers = [threading.Thread(target=pair[at].sendall, args=(data[at],)) for at in (0, 1)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in (*readers, *writers):
        thread.join(60)
    assert got == [data[1], data[0]]


def test_nothing_is_received_when_nothing_has_come_and_nobody_wants_to_wait(
    pair: tuple[SecureSocket, SecureSocket],
) -> None:
    pair[0].settimeout(None)
    with pytest.raises(BlockingIOError):
        pair[0].recv_into(bytearray(1), 0, socket.MSG_DONTWAIT)


def test_end_of_the_stream_is_seen(pair: tuple[SecureSocket, SecureSocket]) -> None:
    pair[0].sendall(b"last")
    pair[0].shutdown(socket.SHUT_RDWR)
    assert pair[1].recv(10) == b"last"
    assert pair[1].recv(10) == b""


def test_process_with_another_certificate_is_turned_away() -> None:
    with pytest.raises(OSError, match=r"(?i)certificate|alert"):
        secured(OURS, THEIRS)


def test_peer_without_the_certificate_cannot_be_reached_and_says_so() -> None:
    listens = StreamEnd(CHANNEL.producer, unix=False, certificate=OURS)
    dials = StreamEnd(CHANNEL.consumer, unix=False, certificate=THEIRS, reconnect=0.5)
    named = dict.fromkeys((CHANNEL,), ATTEMPTS)
    dials.connect(ATTEMPTS[1], {CHANNEL.producer: (ATTEMPTS[0], listens.endpoint)}, named, 1000)
    (broken,) = dials.broken()
    assert "no connection to 127.0.0.1" in broken.reason
    for end in (listens, dials):
        end.close()
