"""The channel contract, over a function call and over Ray; and that it would notice a wire that breaks it."""

from __future__ import annotations

import pytest

from penstock.actors.transport.links import PACKET_BYTES, WINDOW, Link
from penstock.engine.edges import AllProcessed, Frame, Grant
from penstock.engine.elements import EndOfRound
from support.channel_contract import ATTEMPTS, CHANNEL, CHECKS, LocalWire, Wired, batch, check_channel


def test_local_wire_keeps_the_channel_contract() -> None:
    check_channel(LocalWire)


@pytest.mark.parametrize("lost", [0, 1, 5])
def test_contract_notices_a_wire_that_loses_a_frame(lost: int) -> None:
    with pytest.raises(AssertionError):
        check_channel(lambda credit: LocalWire(credit, lose=frozenset({lost})))


@pytest.mark.ray
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_ray_transport_keeps_the_channel_contract(cluster: str, check: object) -> None:
    from support.ray_wire import ray_wire

    wired: Wired = ray_wire(100_000)
    try:
        check(wired)  # type: ignore[operator]
    finally:
        wired.close()


@pytest.mark.ray
def test_ray_transport_reports_a_link_as_broken_once_when_the_peer_dies(cluster: str) -> None:
    import ray

    from support.ray_wire import make_end

    producer, consumer = make_end(), make_end()
    ray.get(producer.connect.remote(consumer, "producer", 1000))
    ray.kill(consumer)
    for number in range(5):
        ray.get(producer.put_frame.remote(Frame(CHANNEL, ATTEMPTS, number, EndOfRound(number))))
    (broken,) = ray.get(producer.broken.remote())
    assert (broken.task, broken.attempt) == (CHANNEL.consumer, ATTEMPTS[1])
    ray.kill(producer)


def frame(number: int, rows: int = 1) -> Frame:
    return Frame(CHANNEL, ATTEMPTS, number, batch(number, rows))


def test_link_gives_what_waits_in_one_packet() -> None:
    link = Link(CHANNEL.consumer, ATTEMPTS[1], None)
    frames = [frame(number) for number in range(5)]
    for each in frames:
        link.put_frame(each)
    assert link.take() == (frames, [])
    assert not link.sendable


def test_link_starts_another_packet_when_one_is_full() -> None:
    link = Link(CHANNEL.consumer, ATTEMPTS[1], None)
    half = PACKET_BYTES // 8 // 2 + 1
    for number in range(3):
        link.put_frame(frame(number, half))
    assert [each.sequence for each in link.take()[0]] == [0, 1]
    assert [each.sequence for each in link.take()[0]] == [2]


def test_link_sends_only_the_newest_grant_of_a_channel() -> None:
    link = Link(CHANNEL.producer, ATTEMPTS[0], None)
    for total in (10, 20, 30):
        link.put_upstream(Grant(CHANNEL, ATTEMPTS, total))
    link.put_upstream(AllProcessed(CHANNEL, ATTEMPTS))
    assert link.take() == ([], [Grant(CHANNEL, ATTEMPTS, 30), AllProcessed(CHANNEL, ATTEMPTS)])


def test_link_holds_messages_back_while_its_window_is_full() -> None:
    link = Link(CHANNEL.consumer, ATTEMPTS[1], None)
    for number in range(WINDOW):
        link.put_frame(frame(number))
        link.take()
    link.put_frame(frame(WINDOW))
    assert not link.sendable
    link.under_way -= 1
    assert link.sendable


def test_link_takes_nothing_after_it_was_closed() -> None:
    link = Link(CHANNEL.consumer, ATTEMPTS[1], None)
    link.put_frame(frame(0))
    link.close()
    link.put_frame(frame(1))
    link.put_upstream(Grant(CHANNEL, ATTEMPTS, 10))
    assert not link.sendable
