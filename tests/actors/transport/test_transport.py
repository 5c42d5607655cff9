"""The channel contract, over a function call and over every stream; and that it would notice a wire that breaks it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.actors.transport.tls import make_certificate
from penstock.engine.core.elements import EndOfRound
from support.channel_contract import ATTEMPTS, CHANNEL, CHECKS, LocalWire, Wired, check_channel
from support.stream_wire import stream_wire

STREAMS: dict[str, dict[str, Any]] = {
    "unix": {},
    "tcp": {"unix": False},
    "tcp-lz4": {"unix": False, "codecs": {CHANNEL.edge: "lz4"}},
    "tcp-zstd": {"unix": False, "codecs": {CHANNEL.edge: "zstd"}},
    "tls": {"unix": False, "certificate": make_certificate("contract")},
    "tls-lz4": {"unix": False, "certificate": make_certificate("contract"), "codecs": {CHANNEL.edge: "lz4"}},
}


def test_local_wire_keeps_the_channel_contract() -> None:
    check_channel(LocalWire)


@pytest.mark.parametrize("lost", [0, 1, 5])
def test_contract_notices_a_wire_that_loses_a_frame(lost: int) -> None:
    with pytest.raises(AssertionError):
        check_channel(lambda credit: LocalWire(credit, lose=frozenset({lost})))


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_streams_keep_the_channel_contract(kind: str, check: Any) -> None:
    wired: Wired = stream_wire(100_000, **STREAMS[kind])
    try:
        check(wired)
    finally:
        wired.close()


@pytest.mark.ray
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_streams_between_ray_actors_keep_the_channel_contract(cluster: str, check: Any) -> None:
    from support.ray_wire import ray_wire

    wired: Wired = ray_wire(100_000)
    try:
        check(wired)
    finally:
        wired.close()


@pytest.mark.ray
def test_link_is_reported_as_broken_once_when_the_actor_at_its_end_dies(cluster: str) -> None:
    import ray

    from support.ray_wire import connected_ends, put_frame

    producer, consumer = connected_ends(1000)
    put_frame(producer, 0, EndOfRound(0))
    assert ray.get(consumer.do.remote("take")) == EndOfRound(0)
    ray.kill(consumer)
    (broken,) = ray.get(producer.do.remote("broken"))
    assert (broken.task, broken.attempt) == (CHANNEL.consumer, ATTEMPTS[1])
    for number in range(1, 5):
        put_frame(producer, number, EndOfRound(number))
    assert ray.get(producer.do.remote("broken")) == [broken]
    ray.kill(producer)


@pytest.mark.ray
def test_actor_that_is_gone_for_good_is_reported_by_its_dialler(cluster: str) -> None:
    import ray

    from support.ray_wire import make_end

    producer, consumer = make_end("producer"), make_end("consumer")
    ray.get([producer.endpoint.remote(), consumer.endpoint.remote()])
    ray.kill(producer)
    ray.get(consumer.connect.remote(producer, 1000))
    (broken,) = ray.get(consumer.do.remote("broken"))
    assert (broken.task, broken.attempt) == (CHANNEL.producer, ATTEMPTS[0])
    assert "died" in broken.reason
    ray.kill(consumer)
