"""Unions without rows that were written and read again can be measured: pyarrow alone ends the process."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.actors.transport.wire import BatchReader, BatchWriter
from penstock.engine.core.union_buffers import WholeUnions, whole_union_table

SPARSE = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
DENSE = pa.UnionArray.from_dense(
    pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["b"])]
)
NO_ITEMS = pa.array([0, 0, 0], pa.int32())
COLUMNS = {
    "sparse": SPARSE.slice(0, 0),
    "dense": DENSE.slice(0, 0),
    "list": pa.ListArray.from_arrays(NO_ITEMS, SPARSE.slice(0, 0)),
    "large list": pa.LargeListArray.from_arrays(NO_ITEMS.cast(pa.int64()), DENSE.slice(0, 0)),
    "fixed list": pa.FixedSizeListArray.from_arrays(SPARSE.slice(0, 0), 2),
    "struct": pa.StructArray.from_arrays([DENSE.slice(0, 0)], names=["u"]),
    "map": pa.MapArray.from_arrays(NO_ITEMS, pa.array([], pa.string()), SPARSE.slice(0, 0)),
    "with rows": SPARSE,
}


def read_again(records: pa.RecordBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema) as writer:
        writer.write_batch(records)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


@pytest.mark.parametrize("name", COLUMNS)
def test_unions_that_were_read_can_be_measured(name: str) -> None:
    records = pa.RecordBatch.from_arrays([pa.array(range(len(COLUMNS[name]))), COLUMNS[name]], names=["n", "v"])
    whole = WholeUnions()(read_again(records))
    whole.validate(full=True)
    assert whole.equals(records)
    assert whole.nbytes >= 0
    table = whole_union_table(pa.Table.from_batches([read_again(records)] * 2))
    assert table.nbytes == 2 * whole.nbytes


def test_columns_without_unions_are_not_copied() -> None:
    records = pa.RecordBatch.from_arrays([pa.array([[1], []]), SPARSE], names=["n", "v"])
    whole_unions = WholeUnions()
    whole = whole_unions(records)
    assert whole.column(0).buffers()[1].address == records.column(0).buffers()[1].address
    plain = records.select(["n"])
    assert whole_unions(plain) is plain


@pytest.mark.parametrize("name", COLUMNS)
def test_unions_of_another_process_can_be_measured(name: str) -> None:
    records = pa.RecordBatch.from_arrays([COLUMNS[name]], names=["v"])
    parts, fresh = BatchWriter().write(records)
    piece = pa.py_buffer(b"".join(bytes(part) for part in parts))
    assert BatchReader().read(piece, fresh).nbytes >= 0
