"""What is in flight comes back element by element, with whole tags, whatever its types."""

from __future__ import annotations

from random import Random

import msgspec
import pandas  # noqa: F401  (pyarrow gives timestamps in nanoseconds as its own)
import pyarrow as pa
import pytest

from penstock.engine.arrow.compact import compact_type
from penstock.engine.core.elements import (
    FINAL_ROUND,
    Barrier,
    Batch,
    EndOfData,
    EndOfPartition,
    EndOfRound,
    PickedBatch,
    Tag,
    Watermark,
)
from penstock.engine.core.errors import InternalError
from penstock.engine.core.identity import BarrierKind, CheckpointId
from penstock.engine.exchange.flight import Flight, FlightReader, FlightWriter, Mark
from support.random_tables import random_table


def stored(table: pa.Table) -> pa.Table:
    """As it comes back from a file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def through_flight(elements: list, schema: pa.Schema | None = None) -> list:
    writer = FlightWriter()
    marks = [writer.put([element], schema) for element in elements]
    found = Flight(msgspec.msgpack.encode(marks), tuple(map(stored, writer.tables())))
    reader = FlightReader(found.tables)
    again = msgspec.msgpack.decode(found.place, type=list[tuple[Mark, ...]])
    return [element for each in again for element in reader.take(each)]


def said(element: object) -> object:
    if not isinstance(element, Batch):
        return element
    counts = element.counts if isinstance(element, PickedBatch) else None
    return type(element), element.tag, counts, element.records.schema, repr(element.records.to_pylist())


def random_tag(random: Random) -> Tag:
    return Tag(random.choice([0, 7, FINAL_ROUND]), random.randrange(9), random.randrange(1 << 40))


def random_elements(random: Random) -> list:
    tables = [random_table(random, random.randint(1, 9)).combine_chunks() for _ in range(random.randint(1, 3))]
    found: list = []
    for _ in range(random.randint(0, 30)):
        records = random.choice(tables).to_batches()[0]
        start = random.randrange(records.num_rows)
        records = records.slice(start, random.randint(1, 4))
        picked = PickedBatch(records.slice(0, random.randint(0, 1)), random_tag(random), counts=(5, 1))
        found.append(
            random.choice(
                [
                    Batch(records, random_tag(random)),
                    picked,
                    EndOfRound(random.choice([3, FINAL_ROUND])),
                    Watermark(-5),
                    EndOfData(random.random() < 0.5),
                    EndOfPartition(),
                ]
            )
        )
    return found


@pytest.mark.parametrize("seed", range(60))
def test_everything_comes_back_in_its_place(seed):
    elements = random_elements(Random(seed))
    assert list(map(said, through_flight(elements))) == list(map(said, elements))


def test_batches_of_one_schema_may_have_dictionaries_of_their_own():
    def texts(*values: str) -> pa.RecordBatch:
        return pa.record_batch({"x": pa.array(values).dictionary_encode()})

    elements = [Batch(texts(*values), Tag(0, 0, at)) for at, values in enumerate([("a", "b"), ("c",), ("b", "c")])]
    assert [each.records.to_pylist() for each in through_flight(elements)] == [
        each.records.to_pylist() for each in elements
    ]


def test_rows_without_columns_are_counted():
    records = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    (found,) = through_flight([Batch(records, Tag(0, 1, 2))])
    assert (found.records.num_rows, found.records.num_columns, found.tag) == (2, 0, Tag(0, 1, 2))


def test_compact_columns_are_stored_as_declared():
    declared = pa.schema([("x", pa.string())])
    texts = pa.array(["a", None, "a"]).dictionary_encode()
    assert texts.type == compact_type(pa.string())
    (found,) = through_flight([Batch(pa.record_batch({"x": texts}), Tag(0, 0, 0))], declared)
    assert found.records.schema == declared
    assert found.records.to_pylist() == [{"x": "a"}, {"x": None}, {"x": "a"}]


def test_no_barrier_is_in_flight():
    with pytest.raises(InternalError, match="cannot be in flight"):
        FlightWriter().put([Barrier(CheckpointId(1, 1), BarrierKind.CHECKPOINT, 0.0)])
