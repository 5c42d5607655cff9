"""Streams under load: large and tiny batches, many channels, many threads, and a consumer that does not consume."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.engine.core.elements import Barrier, Batch, EndOfData, EndOfRound, Tag
from penstock.engine.core.identity import BarrierKind, CheckpointId, TaskId
from penstock.engine.exchange.channels import DEFAULT_CREDIT, ChannelId
from support.channel_contract import ATTEMPTS, CHANNEL, batch
from support.stream_wire import FENCE, StreamEnd, connect_ends

MEBIBYTE = 2**20


@pytest.fixture(params=[True, False], ids=["unix", "tcp"])
def unix(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def ends(unix: bool) -> Iterator[tuple[StreamEnd, StreamEnd]]:
    """A connected producer and consumer, with the usual credit."""
    producer, consumer = StreamEnd(CHANNEL.producer, unix=unix), StreamEnd(CHANNEL.consumer, unix=unix)
    connect_ends(producer, consumer, DEFAULT_CREDIT)
    yield producer, consumer
    producer.close()
    consumer.close()


def test_batch_of_200_mebibytes_arrives_exactly(ends: tuple[StreamEnd, StreamEnd]) -> None:
    producer, consumer = ends
    huge = pa.record_batch({"n": pa.array(range(1000), pa.int64())})
    huge = pa.Table.from_batches([huge] * (200 * MEBIBYTE // huge.nbytes)).combine_chunks().to_batches()[0]
    assert huge.nbytes > 199 * MEBIBYTE
    producer.send(Batch(huge, Tag(0, 0, 0)))
    producer.send(EndOfRound(0))
    taken = consumer.take()
    assert isinstance(taken, Batch)
    assert taken.records.equals(huge)
    assert consumer.take() == EndOfRound(0)
    assert producer.wait_in_flight(0)


def test_ten_thousand_tiny_batches_arrive_in_order(ends: tuple[StreamEnd, StreamEnd]) -> None:
    producer, consumer = ends
    for number in range(10_000):
        assert producer.wait_ready()
        producer.send(batch(number, rows=1))
    producer.send(EndOfData())
    assert consumer.take_all(10_000) == [batch(number, rows=1) for number in range(10_000)]
    assert consumer.take() == EndOfData()
    assert producer.wait_in_flight(0)


def test_many_channels_share_one_connection_and_keep_their_order_each(unix: bool) -> None:
    channels = tuple(ChannelId(f"edge-{number}", CHANNEL.producer, CHANNEL.consumer) for number in range(50))
    producer, consumer = StreamEnd(CHANNEL.producer, unix=unix), StreamEnd(CHANNEL.consumer, unix=unix)
    connect_ends(producer, consumer, DEFAULT_CREDIT, channels)
    senders = [threading.Thread(target=send_some, args=(producer, channel)) for channel in channels]
    for each in senders:
        each.start()
    for channel in channels:
        assert consumer.take_all(20, channel) == [batch(number) for number in range(20)]
    for each in senders:
        each.join()
    assert len(producer.transport._links) == 1
    producer.close()
    consumer.close()


def send_some(end: StreamEnd, channel: ChannelId) -> None:
    for number in range(20):
        end.send(batch(number), channel)


def test_control_and_barriers_pass_while_the_consumer_stalls_and_bytes_in_flight_stay_within_credit(unix: bool) -> None:
    credit = 2 * MEBIBYTE
    producer, consumer = StreamEnd(CHANNEL.producer, unix=unix), StreamEnd(CHANNEL.consumer, unix=unix)
    connect_ends(producer, consumer, credit)
    output, barrier = producer.outputs[CHANNEL], Barrier(CheckpointId(1, 1), BarrierKind.CHECKPOINT, 0.0)
    sent = 0
    while output.ready:
        producer.send(batch(sent, rows=10_000))
        sent += 1
    producer.send(barrier)
    # the barrier is here, though nobody has taken a single batch: the wire was drained
    assert consumer.wait(lambda: len(consumer.inputs[CHANNEL]) == sent + 1)
    assert not output.ready
    assert credit <= output.in_flight == consumer.inputs[CHANNEL].queued_bytes < credit + 80_000
    assert consumer.take_all(sent) == [batch(number, rows=10_000) for number in range(sent)]
    assert consumer.take() == barrier
    assert producer.wait_in_flight(0)
    producer.close()
    consumer.close()


def test_task_with_many_peers_has_one_link_to_each(unix: bool) -> None:
    sources = [TaskId("source", number) for number in range(20)]
    consumer = StreamEnd(CHANNEL.consumer, unix=unix)
    producers = [StreamEnd(task, unix=unix) for task in sources]
    channels = {ChannelId("gather-1", task, consumer.task): ATTEMPTS for task in sources}
    for producer in producers:
        producer.connect(ATTEMPTS[0], {consumer.task: (ATTEMPTS[1], consumer.endpoint)}, channels, 1000)
    peers = {producer.task: (ATTEMPTS[0], producer.endpoint) for producer in producers}
    consumer.connect(ATTEMPTS[1], peers, channels, 1000)
    for number, channel in enumerate(channels):
        producers[number].send(batch(number), channel)
    for number, channel in enumerate(channels):
        assert consumer.take(channel) == batch(number)
    for each in (consumer, *producers):
        each.close()


def test_small_credit_is_granted_in_time_though_grants_are_gathered(ends: tuple[StreamEnd, StreamEnd]) -> None:
    producer, consumer = ends
    connect_ends(producer, consumer, credit=1, channels=(CHANNEL, FENCE), attempts=(ATTEMPTS[1], ATTEMPTS[0]))
    for number in range(100):
        assert producer.wait_ready()
        producer.send(batch(number))
        assert consumer.take() == batch(number)
