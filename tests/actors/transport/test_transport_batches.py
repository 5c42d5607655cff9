"""Batches as pieces of an Arrow stream: schemas once, dictionaries right, nothing large copied."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.actors.transport.frames import HEAD_BYTES, DamagedError, GarbageError, head_of, read_head
from penstock.actors.transport.wire import (
    NOTE_LIMIT,
    BatchReader,
    BatchWriter,
    Codec,
    GrantNote,
    MessageDecoder,
    MessageEncoder,
    Open,
    note_of,
)
from penstock.engine.core.elements import Barrier, Batch, EndOfRound, Tag
from penstock.engine.core.identity import BarrierKind, CheckpointId
from penstock.engine.exchange.channels import ChannelId, EndOfDataAck, Frame, Grant, Upstream
from support.channel_contract import ATTEMPTS, CHANNEL, shapes

NUMBERS = pa.record_batch({"n": pa.array(range(100_000), pa.int64())})


def sizes(batches: Iterable[pa.RecordBatch], codec: Codec | None = None) -> list[tuple[int, bool]]:
    """Write and read the batches, which must come out equal; bytes on the wire, and whether a stream began."""
    writer, reader = BatchWriter(codec), BatchReader()
    written = []
    for records in batches:
        piece, fresh = writer.write(records)
        data = b"".join(bytes(part) for part in piece)
        got = reader.read(pa.py_buffer(data), fresh)
        got.validate(full=True)
        assert got.schema.equals(records.schema, check_metadata=True)
        assert got.equals(records)
        assert got.num_rows == records.num_rows
        written.append((len(data), fresh))
    return written


def words(dictionary: list[str | None], indices: list[int | None]) -> pa.RecordBatch:
    column = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(dictionary, pa.string()))
    return pa.record_batch({"word": column})


def test_schema_travels_once_and_again_when_it_changes() -> None:
    wide = pa.record_batch({f"column-{number}": pa.array([number]) for number in range(50)})
    first, second, narrow, again = sizes([wide, wide, NUMBERS.slice(0, 1), wide])
    assert (first[1], second[1], narrow[1], again[1]) == (True, False, True, True)
    assert second[0] < first[0]
    assert again == first


def test_schema_that_differs_only_in_metadata_begins_a_new_stream() -> None:
    described = NUMBERS.replace_schema_metadata({"unit": "m"})
    assert [fresh for _, fresh in sizes([NUMBERS, described, described, NUMBERS])] == [True, True, False, True]


def test_batches_of_every_shape_survive_in_any_company() -> None:
    several = [*shapes(), *shapes()]
    assert len(sizes(several)) == len(several)
    assert len(sizes(several, "zstd")) == len(several)


def test_dictionary_travels_once_as_long_as_it_stays() -> None:
    long = [f"word number {number}" for number in range(1000)]
    first, second = sizes([words(long, [1, 2, None]), words(long, [3, 4, 5])])
    assert second[0] < first[0] / 10


def test_dictionary_that_grew_sends_only_what_is_new() -> None:
    long = [f"word number {number}" for number in range(1000)]
    first, second, third = sizes([words(long, [0]), words([*long, "new"], [1000]), words([*long, "new"], [0])])
    assert second[0] < first[0] / 10
    assert third[0] < second[0]


def test_replaced_dictionary_leaves_earlier_batches_as_they_were() -> None:
    writer, reader = BatchWriter(), BatchReader()
    kept = []
    sent = [words(["a", "b"], [0, 1]), words(["c"], [0, 0]), words(["a", None, "b"], [1, 2]), words([], [None])]
    for records in sent:
        piece, fresh = writer.write(records)
        kept.append(reader.read(pa.py_buffer(b"".join(bytes(part) for part in piece)), fresh))
    assert kept == sent


@given(some.lists(some.tuples(some.lists(some.text(max_size=3), max_size=5, unique=True), some.integers(0, 9))))
def test_any_sequence_of_dictionaries_arrives_exactly(steps: list[tuple[list[str], int]]) -> None:
    sizes(
        pa.record_batch({"word": pa.array(dictionary * repeats, pa.string()).dictionary_encode(), "n": pa.nulls(size)})
        for dictionary, repeats in steps
        if (size := len(dictionary) * repeats)
    )


def test_dictionaries_inside_dictionaries_and_lists_arrive_exactly() -> None:
    inner = pa.array(["x", "y", "x", "z"]).dictionary_encode()
    nested = pa.ListArray.from_arrays([0, 2, 4], inner)
    outer = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, None]), nested)
    grown = pa.DictionaryArray.from_arrays(
        pa.array([2, 0]),
        pa.ListArray.from_arrays([0, 2, 4, 5], pa.array(["x", "y", "x", "z", "q"]).dictionary_encode()),
    )
    sizes([pa.record_batch({"d": each}) for each in (outer, outer, grown, outer.slice(1, 2))])


def test_extension_types_arrive_as_what_they_are() -> None:
    ids = pa.array([b"0123456789abcdef", None], pa.uuid())
    tensors = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2, 2]), pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.int32(), 4))
    )
    sizes([pa.record_batch({"id": ids, "tensor": tensors, "json": pa.array(["{}", "[]"], pa.json_())})] * 2)


def test_large_columns_are_sent_from_where_they_lie() -> None:
    piece, _ = BatchWriter().write(NUMBERS)
    [column] = [part for part in piece if not isinstance(part, bytes)]
    assert column.address == NUMBERS.column(0).buffers()[1].address


def test_batch_that_is_read_lies_in_the_buffer_that_was_received() -> None:
    piece, fresh = BatchWriter().write(NUMBERS)
    received = pa.py_buffer(b"".join(bytes(part) for part in piece))
    read = BatchReader().read(received, fresh)
    address = read.column(0).buffers()[1].address
    assert received.address <= address < received.address + received.size


def test_slice_sends_its_rows_and_no_more() -> None:
    [(size, _)] = sizes([NUMBERS.slice(500, 10)])
    assert size < 1000


def test_compression_makes_less_of_what_repeats() -> None:
    [(plain, _)] = sizes([NUMBERS])
    assert sizes([NUMBERS], "lz4")[0][0] < plain
    assert sizes([NUMBERS], "zstd")[0][0] < plain / 2


# ---------------------------------------------------------------------- messages


def over_the_wire(messages: Iterable[Frame | Upstream]) -> tuple[list[Frame | Upstream], list[object]]:
    """What comes out at the other end, and the notes that went over."""
    encoder, decoder = MessageEncoder({}), MessageDecoder()
    for each in messages:
        encoder.put(each)
    data, at = b"".join(bytes(part) for part in encoder.take()), 0
    found, notes = [], []
    while at < len(data):
        head = read_head(data, NOTE_LIMIT, at)
        at += HEAD_BYTES
        body = data[at + head.note : at + head.note + head.body]
        head.check(data[at : at + head.note], body)
        note = note_of(data[at : at + head.note])
        at += head.note + head.body
        message = decoder.decode(note, pa.py_buffer(body) if body else None)
        notes.append(note)
        found += [message] if message is not None else []
    return found, notes


def test_messages_of_several_channels_keep_their_order_and_names() -> None:
    other = ChannelId("gather-2", CHANNEL.producer, CHANNEL.consumer)
    barrier = Barrier(CheckpointId(3, 4), BarrierKind.DRAIN, 12.25)
    sent = [
        Frame(CHANNEL, ATTEMPTS, 0, Batch(NUMBERS.slice(0, 5), Tag(1, 2, 3))),
        Frame(other, ATTEMPTS, 0, barrier),
        Frame(CHANNEL, ATTEMPTS, 1, Batch(NUMBERS.slice(5, 5), Tag(2**62, 2, 4))),
        EndOfDataAck(other, ATTEMPTS),
        Frame(other, ATTEMPTS, 1, EndOfRound(2**62)),
    ]
    found, notes = over_the_wire(sent)
    assert found == sent
    assert sum(isinstance(note, Open) for note in notes) == 2


def test_only_the_last_of_several_grants_of_a_channel_is_sent() -> None:
    found, notes = over_the_wire(Grant(CHANNEL, ATTEMPTS, total) for total in (10, 20, 30))
    assert found == [Grant(CHANNEL, ATTEMPTS, 30)]
    assert sum(isinstance(note, GrantNote) for note in notes) == 1


@pytest.mark.parametrize(
    "note",
    [b"", b"\xc1", b"\x93\x00\x01\x02", b"\x92\x09\x00", b"nonsense", b"\x92\x03\x00"],
)
def test_note_of_no_kind_is_garbage(note: bytes) -> None:
    with pytest.raises(GarbageError):
        note_of(note)


class Huge(bytes):
    """Says that it is longer than anything."""

    def __len__(self) -> int:
        return 2**60


def test_lengths_beyond_all_reason_are_garbage() -> None:
    for note, body in ((b"x" * (NOTE_LIMIT + 1), b""), (b"note", Huge(b"body"))):
        with pytest.raises(GarbageError, match="announces"):
            read_head(head_of(note, [body]), NOTE_LIMIT)


def test_every_bit_of_a_head_counts() -> None:
    head = head_of(b"note", [b"body"])
    read_head(head, NOTE_LIMIT).check(b"note", b"body")
    for bit in range(8 * len(head)):
        damaged = bytearray(head)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedError):
            read_head(damaged, NOTE_LIMIT)


def test_channel_that_was_not_introduced_is_garbage() -> None:
    with pytest.raises(GarbageError, match="which it has not introduced"):
        MessageDecoder().decode(GrantNote(7, 1), None)
