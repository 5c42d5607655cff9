"""From producers to consumers: how batches are divided, and the gate that takes pieces from whoever has some."""

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.core.elements import Batch, EndOfData, EndOfPartition, EndOfRound, Tag
from penstock.engine.core.identity import FINAL_ROUND, Attempt, TaskId
from penstock.engine.exchange.channels import ChannelId, Frame, Grant, InputChannel, OutputChannel
from penstock.engine.exchange.input_gate import Delivered, Starved, UnorderedInputGate, Unwanted
from penstock.engine.exchange.result_partition import (
    MOST_ROWS,
    SMALL_ROWS,
    BroadcastPartition,
    ShuffledPartition,
)
from penstock.engine.plan.partitioning import PART, HashPartitioning, RangePartitioning, RoundRobin

PAIR = (Attempt(1, 1), Attempt(1, 1))


class Wire:
    """Channels of one producer to several consumers, with what has been sent."""

    def __init__(self, consumers: int, credit: int = 1 << 20) -> None:
        self.sent: list[list] = [[] for _ in range(consumers)]
        self.channels = []
        for number in range(consumers):
            id = ChannelId("edge", TaskId("a", 0), TaskId("b", number))
            self.channels.append(OutputChannel(id, PAIR, self._take(number), credit))

    def _take(self, number: int):
        return lambda frame: self.sent[number].append(frame.element)


def batch(values, round=0, lane=0, sequence=0) -> Batch:
    records = pa.record_batch({"k": pa.array(values, pa.int64()), "row": pa.array(range(len(values)))})
    return Batch(records, Tag(round, lane, sequence))


RANGES = RangePartitioning("k", (10, 20, 30))


def outlet(wire: Wire, config=RANGES) -> ShuffledPartition:
    return ShuffledPartition(wire.channels, config.partitioner(batch([1]).records.schema), config.parts)


def send(partition: ShuffledPartition, *elements) -> None:
    for element in elements:
        partition.send(element)


def test_each_consumer_gets_the_rows_of_its_parts_in_their_order_with_the_part():
    wire = Wire(2)
    send(outlet(wire), batch([25, 5, 35, 12, 6, None], 3, 1, 7), EndOfRound(3))
    [low, _], [high, _] = wire.sent
    assert low.tag == high.tag == Tag(3, 1, 7)
    assert low.records.schema.names == ["k", "row", PART]
    assert [list(row.values()) for row in low.records.to_pylist()] == [[5, 1, 0], [6, 4, 0], [12, 3, 1]]
    assert [list(row.values()) for row in high.records.to_pylist()] == [[25, 0, 2], [35, 2, 3], [None, 5, 3]]


def test_empty_pieces_are_not_sent_and_other_elements_go_to_all():
    wire = Wire(3)
    found = outlet(wire)
    for element in (batch([1, 2]), EndOfRound(0), EndOfData(), EndOfPartition()):
        found.send(element)
    assert [[type(element) for element in each] for each in wire.sent] == [
        [Batch, EndOfRound, EndOfData, EndOfPartition],
        [EndOfRound, EndOfData, EndOfPartition],
        [EndOfRound, EndOfData, EndOfPartition],
    ]


@pytest.mark.parametrize("consumers", [1, 2, 3, 7, 16])
def test_no_row_is_lost_and_every_part_has_one_owner(consumers):
    wire = Wire(consumers)
    values = np.random.default_rng(consumers).integers(0, 500, 2000)
    send(outlet(wire, HashPartitioning(("k",), 16)), batch(values), EndOfRound(0))
    wire.sent = [[found for found in each if isinstance(found, Batch)] for each in wire.sent]
    rows = [row for each in wire.sent for found in each for row in found.records.column("row").to_pylist()]
    assert sorted(rows) == list(range(2000))
    owners: dict[int, set[int]] = {}
    for number, each in enumerate(wire.sent):
        for found in each:
            for part in found.records.column(PART).to_pylist():
                owners.setdefault(part, set()).add(number)
    assert all(len(each) == 1 for each in owners.values())


def test_an_outlet_is_ready_when_all_its_channels_are():
    wire = Wire(2, credit=1)
    found = outlet(wire)
    send(found, batch([1]), EndOfRound(0))
    assert [channel.ready for channel in wire.channels] == [False, True]
    assert not found.ready
    wire.channels[0].deliver(Grant(wire.channels[0].channel, PAIR, 1000))
    assert found.ready


def large(count: int, **tag) -> Batch:
    return batch(np.arange(count) % 40, **tag)


@pytest.mark.parametrize(
    ("sent", "arrive"),
    [
        # small ones of a lane and round are one, under the tag of the first
        ([batch([1, 30]), batch([2, 31], sequence=1), EndOfRound(0)], [(0, [[1, 2], [30, 31]]), None]),
        # not those of another lane or round
        ([batch([1]), batch([2], lane=1), EndOfRound(0)], [(0, [[1]]), (0, [[2]]), None]),
        ([batch([1]), EndOfRound(0), batch([2], round=1), EndOfRound(1)], [(0, [[1]]), None, (0, [[2]]), None]),
    ],
)
def test_small_neighbours_are_divided_together(sent, arrive):
    wire = Wire(1)
    send(outlet(wire, RangePartitioning("k", (10,))), *sent)
    found = [None if not isinstance(each, Batch) else (each.tag.sequence, by_part(each)) for each in wire.sent[0]]
    assert found == arrive


def by_part(found: Batch) -> list[list]:
    parts, values = found.records.column(PART).to_pylist(), found.records.column("k").to_pylist()
    return [[value for value, each in zip(values, parts, strict=True) if each == part] for part in sorted(set(parts))]


def test_a_large_batch_goes_at_once_behind_the_small_ones_that_wait():
    wire = Wire(1)
    send(outlet(wire), batch([1]), large(SMALL_ROWS + 1, sequence=1))
    assert [each.records.num_rows for each in wire.sent[0]] == [1, SMALL_ROWS + 1]


def test_no_more_wait_than_become_one():
    wire = Wire(1)
    send(outlet(wire), *(large(SMALL_ROWS, sequence=number) for number in range(5)), EndOfRound(0))
    rows = [each.records.num_rows for each in wire.sent[0] if isinstance(each, Batch)]
    assert rows == [MOST_ROWS, MOST_ROWS, SMALL_ROWS]


def test_rows_without_columns_are_divided_as_they_come():
    wire = Wire(2)
    found = ShuffledPartition(wire.channels, RoundRobin(4).partitioner(pa.schema([])), 4)
    records = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    send(found, Batch(records, Tag(0, 0, 0)), Batch(records, Tag(0, 0, 1)), EndOfRound(0))
    assert sum(each.records.num_rows for every in wire.sent for each in every if isinstance(each, Batch)) == 4


def test_what_a_consumer_is_sent_counts_for_about_its_rows():
    """The bytes of a piece are its share of the batch's, of which nothing is lost but what does not divide."""
    wire = Wire(2)
    found = large(SMALL_ROWS + 1)
    send(outlet(wire), found)
    sizes = [each.size for every in wire.sent for each in every]
    assert found.size + 2 * found.rows - 2 <= sum(sizes) <= found.size + 2 * found.rows


def test_a_copying_outlet_sends_every_element_to_all():
    wire = Wire(3)
    found = BroadcastPartition(wire.channels)
    for element in (sent := [batch([1]), EndOfRound(0)]):
        found.send(element)
    assert wire.sent == [sent] * 3


# --- the gate ----------------------------------------------------------------------------------------------------


class Inputs:
    """Channels of several producers to one consumer, and their gate."""

    def __init__(self, producers: int) -> None:
        ids = [ChannelId("edge", TaskId("a", number), TaskId("b", 0)) for number in range(producers)]
        self.feeds = [InputChannel(id, PAIR, lambda message: None) for id in ids]
        self._sent = [0] * producers
        self.gate = UnorderedInputGate(self.feeds)

    def send(self, producer: int, *elements) -> None:
        for element in elements:
            self.feeds[producer].receive(Frame(self.feeds[producer].channel, PAIR, self._sent[producer], element))
            self._sent[producer] += 1

    def deliver(self, **options) -> list:
        found = []
        while isinstance(each := self.gate.poll(options.get("blocked", ())), Delivered):
            found.append(each.element)
        return found


def test_pieces_are_delivered_whether_or_not_other_producers_have_spoken():
    inputs = Inputs(3)
    inputs.send(2, batch([1], 0, 9), batch([1], 0, 9, 1))
    assert [element.tag.sequence for element in inputs.deliver()] == [0, 1]
    assert inputs.gate.poll(()) == Starved((0, 1, 2))


def test_a_round_ends_when_all_have_ended_it_and_no_piece_of_the_next_one_comes_before():
    inputs = Inputs(2)
    inputs.send(0, EndOfRound(0), batch([1], 1, 0))
    assert inputs.deliver() == []
    assert inputs.gate.poll(()) == Starved((1,))
    inputs.send(1, batch([2], 0, 5), EndOfRound(0))
    found = inputs.deliver()
    assert [type(element) for element in found] == [Batch, EndOfRound, Batch]
    assert [element.tag.round for element in found if isinstance(element, Batch)] == [0, 1]


def test_a_producer_that_has_ended_holds_up_no_round():
    inputs = Inputs(2)
    inputs.send(0, EndOfRound(0), batch([1], FINAL_ROUND), EndOfRound(FINAL_ROUND), EndOfData())
    inputs.send(1, EndOfRound(0), EndOfRound(1), EndOfRound(2))
    ended = [element.round for element in inputs.deliver() if isinstance(element, EndOfRound)]
    assert ended == [0, 1, 2]
    inputs.send(1, EndOfRound(FINAL_ROUND), EndOfData())
    found = inputs.deliver()
    assert found[0] == EndOfRound(FINAL_ROUND)
    assert inputs.gate.data_ended


def test_no_producer_is_kept_waiting_by_a_busy_one():
    inputs = Inputs(2)
    inputs.send(0, *(batch([1], 0, 0, number) for number in range(5)))
    inputs.send(1, *(batch([1], 0, 1, number) for number in range(5)))
    assert [element.tag.lane for element in inputs.deliver()] == [0, 1] * 5


def test_blocked_producers_are_passed_over_and_refusals_respected():
    inputs = Inputs(2)
    inputs.send(0, batch([1]))
    inputs.send(1, EndOfRound(0))
    assert inputs.gate.poll({0}) == Delivered(0, EndOfRound(0))
    assert isinstance(inputs.gate.poll((), accepts=False), Unwanted)
    inputs.send(1, EndOfData())
    assert isinstance(inputs.gate.poll({0}, controls=False), Unwanted)
    assert inputs.gate.poll({0}) == Delivered(1, EndOfData())
