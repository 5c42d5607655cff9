"""What every wire under a channel must keep, as one check: ``check_channel(make)``.

``make(credit)`` gives a :class:`Wired` channel: both ends of ``engine.exchange.channels`` with the wire under test
between them, seen from outside. The contract is that of ``engine.exchange.channels`` (rules 1 to 4) and
``actors/transport/protocol.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Protocol

import pyarrow as pa
from msgspec.structs import replace

from penstock.engine.core.elements import (
    Barrier,
    Batch,
    CancelBarrier,
    Element,
    EndOfData,
    EndOfPartition,
    EndOfRound,
    Tag,
    Watermark,
)
from penstock.engine.core.identity import Attempt, BarrierKind, CheckpointId, TaskId
from penstock.engine.exchange.channels import (
    ChannelId,
    EndOfDataAck,
    Frame,
    Grant,
    InputChannel,
    OutputChannel,
    Upstream,
)

CHANNEL = ChannelId("gather-1", TaskId("source", 0), TaskId("sink", 0))
ATTEMPTS = (Attempt(1, 3), Attempt(1, 4))
STALE = (Attempt(1, 2), Attempt(1, 4))


class Wired(Protocol):
    """A channel with its wire. What crosses the wire may take a while: ``take`` and ``wait_ready`` wait for it."""

    def send(self, element: Element) -> None:
        """Send from the producer's end."""

    def put_frame(self, frame: Frame) -> None:
        """Put a frame on the wire behind the producer's end's back."""

    def put_upstream(self, message: Upstream) -> None:
        """Put a message to the producer on the wire, behind the consumer's end's back."""

    def take(self) -> Element | None:
        """The next element at the consumer's end; None if none comes within a moment."""

    def dropped(self) -> int:
        """Frames that the consumer's end has refused."""

    def gap(self) -> str:
        """The error that the consumer's end met, if any."""

    def wait_ready(self) -> bool:
        """Whether the producer's end may send a batch, within a moment."""

    def wait_in_flight(self, bytes: int) -> bool:
        """Whether ``bytes`` are sent and not yet granted again, as the producer's end knows, within a moment."""

    def acknowledge_end_of_data(self) -> None:
        """Say so at the consumer's end."""

    def end_of_data_acknowledged(self) -> bool:
        """Whether the producer's end has heard it, within a moment."""

    def close(self) -> None: ...


Make = Callable[[int], Wired]


def check_channel(make: Make) -> None:
    """Run the whole contract against fresh channels made by ``make(credit)``."""
    for check in CHECKS:
        with closing(make(CREDIT)) as wired:
            check(wired)


CREDIT = 100_000


def batch(sequence: int, rows: int = 100) -> Batch:
    """A batch of ``rows`` integers that tell it from all others."""
    return Batch(pa.record_batch({"n": pa.array(range(sequence, sequence + rows), pa.int64())}), Tag(0, 0, sequence))


def elements_arrive_in_order_and_complete(wired: Wired) -> None:
    checkpoint = CheckpointId(1, 7)
    sent: list[Element] = []
    for number in range(20):
        sent += [batch(number), EndOfRound(number), Watermark(number)]
    sent += [Barrier(checkpoint, BarrierKind.CHECKPOINT, 1.5), CancelBarrier(checkpoint), EndOfData(), EndOfPartition()]
    for element in sent:
        wired.send(element)
    assert [wired.take() for _ in sent] == sent
    assert wired.take() is None


def credit_bounds_the_bytes_in_flight(wired: Wired) -> None:
    sent = 0
    while wired.wait_ready() and sent < 1000:
        wired.send(batch(sent, rows=1000))
        sent += 1
    assert sent == 13, "100 000 bytes of credit let 13 batches of 8 000 bytes pass"
    assert wired.wait_in_flight(13 * 8000)
    for _ in range(sent):
        assert wired.take() is not None
    assert wired.wait_ready()
    assert wired.wait_in_flight(0)


def control_passes_without_credit(wired: Wired) -> None:
    wired.send(batch(0, rows=50_000))
    assert not wired.wait_ready()
    wired.send(EndOfRound(0))
    wired.send(EndOfData())
    assert [wired.take() for _ in range(3)] == [batch(0, rows=50_000), EndOfRound(0), EndOfData()]


def one_batch_larger_than_all_credit_passes(wired: Wired) -> None:
    huge = batch(0, rows=1_000_000)
    wired.send(huge)
    assert wired.take() == huge
    assert wired.wait_ready()


def repeated_frames_are_dropped(wired: Wired) -> None:
    for number in range(3):
        wired.put_frame(Frame(CHANNEL, ATTEMPTS, number, EndOfRound(number)))
        wired.put_frame(Frame(CHANNEL, ATTEMPTS, number, EndOfRound(number)))
    wired.put_frame(Frame(CHANNEL, ATTEMPTS, 0, EndOfRound(0)))
    assert [wired.take() for _ in range(4)] == [EndOfRound(0), EndOfRound(1), EndOfRound(2), None]
    assert wired.dropped() == 4


def a_gap_is_an_error(wired: Wired) -> None:
    wired.put_frame(Frame(CHANNEL, ATTEMPTS, 0, EndOfRound(0)))
    wired.put_frame(Frame(CHANNEL, ATTEMPTS, 2, EndOfRound(2)))
    assert wired.take() == EndOfRound(0)
    assert wired.take() is None
    assert "element 2 came where 1 was expected" in wired.gap()


def frames_of_other_attempts_are_dropped(wired: Wired) -> None:
    wired.put_frame(Frame(CHANNEL, STALE, 0, EndOfRound(99)))
    wired.put_frame(Frame(CHANNEL, ATTEMPTS, 0, EndOfRound(0)))
    assert [wired.take(), wired.take()] == [EndOfRound(0), None]


def messages_of_other_attempts_change_nothing_upstream(wired: Wired) -> None:
    wired.send(batch(0, rows=50_000))
    wired.put_upstream(Grant(CHANNEL, STALE, 10_000_000))
    wired.put_upstream(EndOfDataAck(CHANNEL, STALE))
    assert not wired.wait_ready()
    assert not wired.end_of_data_acknowledged()


def repeated_grants_count_once(wired: Wired) -> None:
    wired.send(batch(0, rows=50_000))
    for _ in range(3):
        wired.put_upstream(Grant(CHANNEL, ATTEMPTS, 200_000))
    assert wired.wait_in_flight(200_000)
    assert not wired.wait_ready()
    assert wired.wait_in_flight(200_000)


def all_processed_reaches_the_producer(wired: Wired) -> None:
    wired.send(EndOfData())
    assert wired.take() == EndOfData()
    wired.acknowledge_end_of_data()
    assert wired.end_of_data_acknowledged()


def credit_comes_back_to_the_byte_whatever_the_wire_leaves_out(wired: Wired) -> None:
    numbers = pa.array([None, 1, 2, 3, 4] * 100)
    for number, records in enumerate([pa.record_batch({"n": numbers}).filter(numbers.is_valid()), *shapes()]):
        sent = Batch(records, Tag(number, 0, 0))
        wired.send(sent)
        assert wired.take() == sent
        assert wired.wait_in_flight(0), records.schema


def batches_of_every_shape_arrive_exactly(wired: Wired) -> None:
    for number, records in enumerate(shapes()):
        sent = Batch(records, Tag(number, 3, 5))
        wired.send(sent)
        got = wired.take()
        assert isinstance(got, Batch)
        assert got.tag == sent.tag
        assert got.records.schema.equals(records.schema, check_metadata=True)
        assert got.records.num_rows == records.num_rows
        assert got.records.equals(records)


def shapes() -> Iterator[pa.RecordBatch]:
    """Batches that a wire might get wrong: no columns, dictionaries, nesting, slices, nulls, metadata, no copies."""
    words = pa.array(["a", None, "b", "a"]).dictionary_encode()
    plain = pa.record_batch({"n": pa.array([1, 2, 3, 4])})
    yield plain.select([])
    yield pa.record_batch({"word": words})
    yield pa.record_batch({"word": pa.array(["c", "d"]).dictionary_encode()})
    nested = [{"a": [1, 2], "b": None}, None, {"a": [], "b": {"c": "x"}}]
    kind = pa.struct([("a", pa.list_(pa.int32())), ("b", pa.struct([("c", pa.string())]))])
    yield pa.record_batch(
        {"nested": pa.array(nested, kind), "map": pa.array([[("k", 1)], None, []], pa.map_("str", "i4"))}
    )
    yield pa.record_batch({"n": pa.array(range(100_000)), "s": pa.array(map(str, range(100_000)))}).slice(70_001, 13)
    yield pa.record_batch({"t": pa.array([1, None], pa.timestamp("us", "UTC")), "z": pa.nulls(2)})
    schema = pa.schema([pa.field("n", pa.int64(), metadata={"unit": "m"})], metadata={"from": "test"})
    yield pa.RecordBatch.from_arrays([pa.array([1, 2])], schema=schema)


CHECKS: tuple[Callable[[Wired], None], ...] = (
    elements_arrive_in_order_and_complete,
    credit_bounds_the_bytes_in_flight,
    control_passes_without_credit,
    one_batch_larger_than_all_credit_passes,
    repeated_frames_are_dropped,
    a_gap_is_an_error,
    frames_of_other_attempts_are_dropped,
    messages_of_other_attempts_change_nothing_upstream,
    repeated_grants_count_once,
    all_processed_reaches_the_producer,
    credit_comes_back_to_the_byte_whatever_the_wire_leaves_out,
    batches_of_every_shape_arrive_exactly,
)


class LocalWire:
    """The wire of one process: a function call. ``lose`` drops the frames whose numbers it holds (a broken wire)."""

    def __init__(self, credit: int, lose: frozenset[int] = frozenset()) -> None:
        self._lose = lose
        self._dropped = 0
        self._gap = ""
        self.output = OutputChannel(CHANNEL, ATTEMPTS, self.put_frame, credit)
        self.input = InputChannel(CHANNEL, ATTEMPTS, self.output.deliver)

    def send(self, element: Element) -> None:
        self.output.send(element)

    def put_frame(self, frame: Frame) -> None:
        if frame.sequence in self._lose:
            return
        try:
            self._dropped += not self.input.receive(replace(frame))
        except Exception as error:
            self._gap = str(error)

    def put_upstream(self, message: Upstream) -> None:
        self.output.deliver(message)

    def take(self) -> Element | None:
        return self.input.pop() if len(self.input) else None

    def dropped(self) -> int:
        return self._dropped

    def gap(self) -> str:
        return self._gap

    def wait_ready(self) -> bool:
        return self.output.ready

    def wait_in_flight(self, bytes: int) -> bool:
        return self.output.in_flight == bytes

    def acknowledge_end_of_data(self) -> None:
        self.input.acknowledge_end_of_data()

    def end_of_data_acknowledged(self) -> bool:
        return self.output.end_of_data_acknowledged

    def close(self) -> None:
        pass
