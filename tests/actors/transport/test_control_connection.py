"""Orders and reports over real connections that are cut, refused, replaced and never made."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock.actors.protocol.messages import Sign
from penstock.actors.transport.control_wire import COORDINATOR, Begin, encode_note
from penstock.actors.transport.conversation import Packet
from penstock.actors.transport.dialling import Secrets, Stop, connect
from penstock.actors.transport.greeting import Caller
from penstock.actors.transport.tls import make_certificate
from penstock.coordinator.model.events import TaskCommitted
from penstock.engine.core.identity import Attempt, CheckpointId, TaskId
from support.control_ends import PATIENCE, SLOT, TOKEN, Coordinator, Process, order, report

OURS = make_certificate("ours")
WAYS: dict[str, dict[str, Any]] = {
    "unix": {},
    "tcp": {"unix": False},
    "tls": {"unix": False, "certificate": OURS},
}


@pytest.fixture
def made() -> Iterator[Callable[[Any], Any]]:
    """Keeps ends, and closes them."""
    all_made: list[Any] = []

    def keep(each: Any) -> Any:
        all_made.append(each)
        return each

    yield keep
    for each in reversed(all_made):
        each.end.close()


@pytest.mark.parametrize("way", WAYS)
def test_orders_and_reports_go_over_the_connection(made: Callable[[Any], Any], way: str) -> None:
    process = made(Process(**WAYS[way]))
    coordinator = made(Coordinator(process, certificate=WAYS[way].get("certificate")))
    coordinator.accepted()
    coordinator.wait_connected()
    for number in range(200):
        coordinator.end.put(SLOT, order(number))
        process.end.put(report(number))
    process.wait(lambda: process.orders == list(range(200)))
    coordinator.wait(lambda: coordinator.reports == list(range(200)))
    assert not coordinator.calls
    assert not coordinator.called


def test_nothing_can_be_said_to_a_process_that_has_taken_nothing(made: Callable[[Any], Any]) -> None:
    coordinator = made(Coordinator(made(Process())))
    assert not coordinator.end.put(SLOT, order(1))
    assert not coordinator.end.ask(SLOT)


@pytest.mark.parametrize("seed", range(4))
def test_everything_comes_once_and_in_order_though_the_connection_is_cut(made: Callable[[Any], Any], seed: int) -> None:
    chance = random.Random(seed)
    process = made(Process())
    coordinator = made(Coordinator(process))
    coordinator.accepted()
    for number in range(300):
        coordinator.end.put(SLOT, order(number))
        process.end.put(report(number))
        if chance.random() < 0.05:
            coordinator.wait_connected()
            coordinator.cut()
        if chance.random() < 0.3:
            coordinator.carry()
    coordinator.wait_connected()
    process.wait(lambda: process.orders == list(range(300)))
    coordinator.wait(lambda: coordinator.reports == list(range(300)))
    coordinator.carry()
    assert process.orders == coordinator.reports == list(range(300))


@pytest.mark.timeout(60)
def test_who_is_given_a_report_may_be_asked_for_a_sign_meanwhile(made: Callable[[Any], Any]) -> None:
    given, asked = threading.Event(), threading.Event()

    class Slow(Coordinator):
        def _report(self, event: Any) -> None:
            given.set()
            assert asked.wait(PATIENCE)
            super()._report(event)

    process = made(Process())
    coordinator = made(Slow(process))
    coordinator.accepted()
    coordinator.wait_connected()
    process.end.put(report(1))
    assert given.wait(PATIENCE)
    ask = coordinator.end.ask

    def asking(slot: Any) -> bool:
        asked.set()
        return ask(slot)

    coordinator.end.ask = asking
    coordinator.wait_connected()
    coordinator.wait(lambda: coordinator.reports == [1])


def test_reports_by_calls_stay_behind_those_of_the_connection(made: Callable[[Any], Any]) -> None:
    """1. Report 1 comes over the connection, and is being given. 2. Reports 2 and 3 come by a call."""
    first, went_on = threading.Event(), threading.Event()

    class Slow(Coordinator):
        def _report(self, event: Any) -> None:
            if not first.is_set():
                first.set()
                assert went_on.wait(PATIENCE)
            super()._report(event)

    process = made(Process())
    coordinator = made(Slow(process))
    coordinator.accepted()
    coordinator.wait_connected()
    process.end.put(report(1))
    assert first.wait(PATIENCE)
    packets = [Packet(number, 1, 0, report(number)) for number in (2, 3)]
    calling = threading.Thread(target=coordinator.end.called, args=(SLOT, process.incarnation, 1, packets))
    calling.start()
    went_on.set()
    calling.join(PATIENCE)
    assert not calling.is_alive()
    coordinator.wait(lambda: len(coordinator.reports) == 3)
    assert coordinator.reports == [1, 2, 3]


def test_calls_carry_what_a_lost_connection_has_not(made: Callable[[Any], Any]) -> None:
    process = made(Process())
    coordinator = made(Coordinator(process))
    coordinator.accepted()
    coordinator.wait_connected()
    process.end.close()  # and listens no more
    lost = [order(1), order(2)]
    while coordinator.end.ask(SLOT):
        pass
    for each in lost:
        coordinator.end.put(SLOT, each)
    assert [packet.content for packets in coordinator.called for packet in packets] == lost
    coordinator.carry()
    assert process.orders == [1, 2]


def test_later_coordinator_wins_and_the_one_before_is_refused(made: Callable[[Any], Any]) -> None:
    process = made(Process())
    old = made(Coordinator(process, 1))
    old.accepted()
    old.wait_connected()
    process.asked = []
    new = made(Coordinator(process, 2))
    new.accepted()
    new.end.put(SLOT, order(2))
    process.wait(lambda: process.orders == [2])
    old.end.put(SLOT, order(1))
    old.carry()
    new.end.put(SLOT, order(3))
    process.wait(lambda: process.orders[-1] == 3)
    assert process.orders == [2, 3]
    process.end.put(report(4))
    new.wait(lambda: new.reports == [4])
    new.carry()
    assert old.reports == []


def test_what_was_said_to_a_coordinator_that_is_gone_comes_to_the_next_one(made: Callable[[Any], Any]) -> None:
    process = made(Process())
    old = made(Coordinator(process, 1))
    process.end.hear(1)
    process.end.put(report(1))  # by a call that never comes
    new = made(Coordinator(process, 2))
    new.accepted()
    new.wait(lambda: new.reports == [1])
    assert old.reports == []


def test_sign_of_life_is_given_by_whoever_is_to_prove_it(made: Callable[[Any], Any]) -> None:
    process = made(Process())
    coordinator = made(Coordinator(process))
    coordinator.accepted()
    coordinator.wait_connected()
    process.asked = []
    assert coordinator.end.ask(SLOT)
    process.wait(lambda: len(process.asked or []) == 1)
    process.end.put(report(1))  # behind which an answer would have come
    coordinator.wait(lambda: coordinator.reports == [1])
    assert coordinator.end.sign(SLOT) is Sign.NONE
    process.asked[0]()
    process.end.put(report(2))
    coordinator.wait(lambda: coordinator.reports == [1, 2])
    assert coordinator.end.sign(SLOT) is Sign.ALIVE
    assert coordinator.end.sign(SLOT) is Sign.NONE, "it has been looked at"


def test_answer_to_an_order_is_a_sign_and_what_a_process_says_of_itself_is_none(made: Callable[[Any], Any]) -> None:
    process = made(Process())
    coordinator = made(Coordinator(process))
    coordinator.accepted()
    coordinator.wait_connected()
    process.end.put(report(1))
    coordinator.wait(lambda: coordinator.reports == [1])
    assert coordinator.end.sign(SLOT) is not Sign.ANSWER
    process.end.put(TaskCommitted(SLOT, Attempt(1, 2), CheckpointId(1, 1), 0.0))
    coordinator.wait(lambda: coordinator.reports == [1, 2])
    assert coordinator.end.sign(SLOT) is Sign.ANSWER


def test_end_of_a_connection_is_told_once_and_the_process_is_dialled_again(made: Callable[[Any], Any]) -> None:
    process = made(Process())
    coordinator = made(Coordinator(process))
    coordinator.accepted()
    coordinator.wait_connected()
    coordinator.cut()
    process.wait(lambda: process.lost == 1)
    coordinator.wait_connected()
    assert process.lost == 1


def test_process_of_another_job_is_left_alone(made: Callable[[Any], Any]) -> None:
    process = made(Process(job="another"))
    coordinator = made(Coordinator(process))
    coordinator.accepted()
    assert coordinator.end.put(SLOT, order(1))
    process.end.put(report(1))
    coordinator.wait(lambda: len(coordinator.called) == 1)
    assert not coordinator.end.ask(SLOT)
    assert process.orders == []


def test_nobody_but_a_coordinator_is_let_in(made: Callable[[Any], Any]) -> None:
    process = made(Process())
    caller = Caller(TaskId("source", 1), Attempt(1, 1), SLOT, Attempt(1, 1))
    with connect(process.end.endpoint, caller, Secrets(TOKEN), Stop()) as stranger:
        assert stranger.recv(1) == b""


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.0\r\n\r\n" * 3, bytes(64)])
def test_garbage_ends_the_connection_that_brings_it_and_no_other(made: Callable[[Any], Any], sent: bytes) -> None:
    process = made(Process())
    coordinator = made(Coordinator(process))
    coordinator.accepted()
    coordinator.wait_connected()
    caller = Caller(COORDINATOR, Attempt(1, 1), SLOT, Attempt(1, 1))
    with connect(process.end.endpoint, caller, Secrets(TOKEN), Stop()) as stranger:
        stranger.sendall(sent)
        stranger.settimeout(30)
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    coordinator.wait_connected()


def test_peer_that_takes_nothing_keeps_nobody_waiting(made: Callable[[Any], Any]) -> None:
    process = made(Process())
    caller = Caller(COORDINATOR, Attempt(1, 1), SLOT, Attempt(1, 1))
    with connect(process.end.endpoint, caller, Secrets(TOKEN), Stop()) as silent:
        silent.sendall(encode_note(Begin("uuid", Attempt(1, 1), "first", 0)))
        silent.settimeout(30)
        assert silent.recv(1, socket.MSG_PEEK)
        for number in range(30_000):
            process.end.put(report(number))
        coordinator = made(Coordinator(process, 2))
        coordinator.accepted()
        coordinator.wait(lambda: coordinator.reports == list(range(30_000)))
