"""Strangers at the door of a process: they neither keep its peers out nor stay, however slowly they talk."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.actors.transport import dialling, greeting, listener
from penstock.actors.transport.dialling import Endpoint, Secrets, Stop, connect
from penstock.actors.transport.greeting import Caller
from penstock.actors.transport.listener import IN_ALL, PER_PEER, Greetings, Listener
from penstock.actors.transport.tls import make_certificate
from support.channel_contract import ATTEMPTS, CHANNEL
from support.stream_wire import TOKEN

CALLER = Caller(CHANNEL.consumer, ATTEMPTS[1], CHANNEL.producer, ATTEMPTS[0])
CERTIFICATE = make_certificate("strangers")
SECONDS = 1.0
"""In place of ``greeting.SECONDS``."""

# ---------------------------------------------------------------------- who has to go


def test_peer_that_has_its_share_loses_its_own_oldest() -> None:
    greetings: Greetings[int] = Greetings(per_peer=2, in_all=9)
    assert [greetings.admit(number, "one") for number in range(2)] == [None, None]
    assert greetings.admit(2, "two") is None
    assert greetings.admit(3, "one") == 0
    assert greetings.leave(3)
    assert not greetings.leave(0)
    assert greetings.all() == [1, 2]


def test_peer_with_most_makes_room_when_all_places_are_taken() -> None:
    greetings: Greetings[int] = Greetings(per_peer=3, in_all=4)
    for number, peer in enumerate(["honest", "many", "many", "few"]):
        assert greetings.admit(number, peer) is None
    assert greetings.admit(4, "new") == 1


@given(some.lists(some.tuples(some.sampled_from("abcdefgh"), some.booleans()), max_size=60))
def test_bounds_hold_for_strangers_and_peers_are_let_in(steps: list[tuple[str, bool]]) -> None:
    greetings: Greetings[int] = Greetings(per_peer=3, in_all=7)
    of: dict[int, str] = {}
    for number, (peer, leaves) in enumerate(steps):
        gone = greetings.admit(number, peer)
        of[number] = peer
        assert gone != number
        assert number in greetings.all()
        assert len(greetings) <= 7
        assert sum(of[each] == peer for each in greetings.all()) <= 3
        if leaves:
            assert greetings.leave(number)


# ---------------------------------------------------------------------- at a real door


class Door:
    """A listener, and who came through."""

    def __init__(self, kind: str) -> None:
        self.secrets = Secrets(TOKEN, CERTIFICATE if kind == "tls" else None)
        self.listener = Listener(TOKEN, "me", "127.0.0.1", kind == "unix", self.secrets.certificate)
        self.came: SimpleQueue[Caller] = SimpleQueue()
        self.error: Exception | None = None
        self.listener.open(self._take)

    def _take(self, caller: Caller, connection: socket.socket) -> None:
        connection.close()
        self.came.put(caller)
        if self.error is not None:
            raise self.error

    def knock(self) -> socket.socket:
        """A connection, and no word."""
        endpoint = self.listener.endpoint
        if endpoint.name:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(f"\0{endpoint.name}")
            return connection
        return socket.create_connection((endpoint.host, endpoint.port))

    def enter(self) -> float:
        """Somebody who belongs to the job; the seconds that it took."""
        begin = time.monotonic()
        connect(self.listener.endpoint, CALLER, self.secrets, Stop()).close()
        assert self.came.get(timeout=20) == CALLER
        return time.monotonic() - begin


@pytest.fixture(params=["unix", "tcp", "tls"])
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    made = Door(request.param)
    yield made
    made.listener.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A greeting has little time."""
    for module in (greeting, listener, dialling):
        monkeypatch.setattr(module, "SECONDS", SECONDS)


def test_peers_get_in_at_once_while_strangers_fill_all_places(door: Door) -> None:
    with ExitStack() as strangers:
        for _ in range(IN_ALL):
            strangers.enter_context(door.knock()).sendall(b"P")
        for _ in range(5):
            assert door.enter() < greeting.SECONDS / 2
        assert len(door.listener._greetings) <= PER_PEER


def test_stranger_that_trickles_is_turned_away_at_the_deadline(door: Door, short: None) -> None:
    """A byte comes long before each call gives up, but the whole greeting takes too long."""
    said = struct.pack("<8sII", greeting.MAGIC, greeting.VERSION, greeting.LIMIT)
    if door.secrets.certificate is not None:
        said = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(5)  # a TLS client's first words, which never end
    begin, gone = time.monotonic(), threading.Event()
    with door.knock() as stranger:

        def listen() -> None:
            with suppress(OSError):
                while stranger.recv(100):
                    pass
            gone.set()

        threading.Thread(target=listen, daemon=True).start()
        for byte in (said * 3)[:40]:
            if gone.wait(SECONDS / 8):
                break
            with suppress(OSError):
                stranger.send(bytes([byte]))
        assert gone.is_set()
    assert SECONDS / 2 < time.monotonic() - begin < 3 * SECONDS
    door.enter()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_dialler_does_not_wait_for_a_listener_that_trickles(tls: bool, short: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        thread = threading.Thread(target=trickle, args=(stranger, b"\x16\x03\x03\x40\x00\x02" if tls else b"PENSTOCK"))
        thread.start()
        begin = time.monotonic()
        endpoint = Endpoint("somebody", *stranger.getsockname())
        with pytest.raises(OSError, match=r"took too long|timed out"):
            connect(endpoint, CALLER, Secrets(TOKEN, CERTIFICATE if tls else None), Stop())
        assert time.monotonic() - begin < 2 * SECONDS
        thread.join()


def trickle(listening: socket.socket, said: bytes) -> None:
    connection, _ = listening.accept()
    with connection, suppress(OSError):
        for byte in said:
            connection.send(bytes([byte]))
            time.sleep(SECONDS / 5)


@pytest.mark.parametrize("error", [MemoryError("no room"), RuntimeError("a bug"), KeyError("another")])
def test_door_that_fails_for_one_is_open_for_others(door: Door, error: Exception) -> None:
    door.error = error
    door.enter()
    door.error = None
    door.enter()


def test_listener_goes_on_when_no_thread_can_be_started(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    refused = threading.Event()

    def starts(thread: Any) -> None:
        if thread.name == "penstock-read" and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    with door.knock() as stranger:
        stranger.settimeout(20)
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert refused.is_set()
    door.enter()
    assert len(door.listener._greetings) == 0
