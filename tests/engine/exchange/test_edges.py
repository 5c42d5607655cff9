"""The two ends of a channel: numbering, credit, fencing. The wires are tested by the channel contract."""

import pyarrow as pa
import pytest

from penstock.engine.core.elements import Batch, EndOfData, EndOfPartition, EndOfRound, Tag, size_of
from penstock.engine.core.errors import InternalError
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.exchange.channels import ChannelId, EndOfDataAck, Grant, InputChannel, OutputChannel

CHANNEL = ChannelId("edge", TaskId("a", 0), TaskId("b", 0))
ATTEMPTS = (Attempt(1, 1), Attempt(1, 2))


def batch(rows: int, sequence: int = 0) -> Batch:
    return Batch(pa.record_batch({"x": pa.array(range(rows), pa.int64())}), Tag(0, 0, sequence))


def ends(credit: int = 100):
    upstream = []
    consumer = InputChannel(CHANNEL, ATTEMPTS, upstream.append)
    producer = OutputChannel(CHANNEL, ATTEMPTS, consumer.receive, credit)
    return producer, consumer, upstream


def test_elements_arrive_in_order():
    producer, consumer, _ = ends()
    elements = [batch(1), EndOfRound(0), EndOfData(), EndOfPartition()]
    for element in elements:
        producer.send(element)
    assert [consumer.pop() for _ in elements] == elements
    assert consumer.data_ended
    assert consumer.closed


def test_producer_without_credit_is_not_ready_until_the_consumer_consumes():
    producer, consumer, upstream = ends(credit=100)
    producer.send(batch(50))
    assert not producer.ready
    consumer.pop()
    for message in upstream:
        producer.deliver(message)
    assert producer.ready
    assert producer.in_flight == 0


def test_control_elements_need_no_credit():
    producer, consumer, _ = ends(credit=1)
    producer.send(batch(50))
    producer.send(EndOfRound(0))
    assert len(consumer) == 2


def test_repeated_grant_adds_nothing():
    producer, _, _ = ends(credit=100)
    producer.send(batch(50))
    size = size_of(batch(50))
    producer.deliver(Grant(CHANNEL, ATTEMPTS, size))
    producer.deliver(Grant(CHANNEL, ATTEMPTS, size))
    producer.send(batch(50))
    assert not producer.ready


def test_messages_of_another_attempt_are_dropped():
    producer, consumer, _ = ends()
    stale = (Attempt(1, 0), Attempt(1, 2))
    producer.deliver(EndOfDataAck(CHANNEL, stale))
    assert not producer.end_of_data_acknowledged
    other = OutputChannel(CHANNEL, stale, consumer.receive)
    other.send(EndOfData())
    assert len(consumer) == 0


def test_repeated_frame_is_dropped():
    frames = []
    producer = OutputChannel(CHANNEL, ATTEMPTS, frames.append)
    consumer = InputChannel(CHANNEL, ATTEMPTS, lambda _: None)
    producer.send(EndOfRound(0))
    assert consumer.receive(frames[0])
    assert not consumer.receive(frames[0])
    assert len(consumer) == 1


def test_gap_in_the_numbers_is_an_error():
    frames = []
    producer = OutputChannel(CHANNEL, ATTEMPTS, frames.append)
    consumer = InputChannel(CHANNEL, ATTEMPTS, lambda _: None)
    producer.send(EndOfRound(0))
    producer.send(EndOfRound(1))
    with pytest.raises(InternalError, match="element 1 came where 0 was expected"):
        consumer.receive(frames[1])


def test_nothing_may_be_sent_after_the_end_of_the_partition():
    producer, _, _ = ends()
    producer.send(EndOfPartition())
    with pytest.raises(InternalError):
        producer.send(EndOfRound(0))


def test_producer_is_granted_credit_when_half_of_it_is_owed_or_nothing_is_left():
    granted: list[int] = []
    consumer = InputChannel(CHANNEL, ATTEMPTS, lambda message: granted.append(message.total), credit=8 * 16)
    producer = OutputChannel(CHANNEL, ATTEMPTS, consumer.receive, credit=8 * 16)
    rows = pa.record_batch({"x": pa.array([1, 2], pa.int64())})
    for number in range(8):
        producer.send(Batch(rows, Tag(0, 0, number)))
    assert not producer.ready
    consumer.pop()
    assert granted == []
    for _ in range(3):
        consumer.pop()
    assert granted == [4 * 16], "half of it"
    for _ in range(4):
        consumer.pop()
    assert granted == [4 * 16, 8 * 16], "all of it"
    producer.send(Batch(rows, Tag(1, 0, 0)))
    consumer.pop()
    assert granted[-1] == 9 * 16, "nothing is left in the queue"
