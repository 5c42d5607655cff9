"""What makes much out of little gives it in steps: a piece of bounded rows and bytes each, made when its step is taken.

Each case is given input of which the output is many times as large; the batches are dropped as they come. An account is
kept of the largest batch and of what Arrow's memory pool holds from step to step, beyond the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.operator import OperatorConfig, RunningOperator, Steps
from penstock.engine.kernels.row_bits import row_bits
from penstock.engine.operators import MapBatches, Unnest
from support.operator_harness import context

ROWS, BYTES = 4096, 256 * 1024


@dataclass
class Account:
    """An output that remembers how much came, not what."""

    rows: int = 0
    batches: int = 0
    of_step: int = 0
    largest: tuple[int, int] = (0, 0)
    peak: int = 0

    def emit(self, batch: Batch) -> None:
        records = batch.records
        bits = np.broadcast_to(row_bits(records.columns, np.arange(records.num_rows)), records.num_rows)
        assert records.num_rows == 1 or int(bits.sum()) <= BYTES * 8, "a piece of several rows has too many bytes"
        assert records.num_rows <= ROWS
        self.of_step += 1
        self.rows, self.batches = self.rows + records.num_rows, self.batches + 1
        self.largest = max(self.largest[0], records.num_rows), max(self.largest[1], records.nbytes)

    def take(self, steps: Steps) -> None:
        """Take the steps of a call, which may have emitted one piece itself."""
        for _ in self._noted(steps):
            assert self.of_step <= 1, "a step has emitted several pieces"
            self.of_step = 0
            self.peak = max(self.peak, pa.total_allocated_bytes())

    def _noted(self, steps: Steps) -> Iterator[None]:
        yield
        yield from steps or ()
        yield


def built(config: OperatorConfig, *inputs: pa.Schema) -> RunningOperator:
    return config.build(replace(context(), output_rows=ROWS, output_bytes=BYTES), inputs, None)


def batch_of(records: pa.RecordBatch) -> Batch:
    return Batch(records, Tag(0, 0, 0))


def run(config: OperatorConfig, *ports: pa.RecordBatch) -> Account:
    """The account of one batch for each port, the last port first, and of the end."""
    running = built(config, *(port.schema for port in ports))
    account, before = Account(), pa.total_allocated_bytes()
    for port in reversed(range(len(ports))):
        account.take(running.process(port, batch_of(ports[port]), account))
        account.take(running.end_round(port, FINAL_ROUND, account))
        account.take(running.end_port(port, account))
    account.take(running.finish(account))
    running.close()
    account.peak -= before
    return account


UNNEST = {
    "long lists": pa.record_batch({"k": [1, 2], "l": [np.zeros(100_000, dtype=np.int8)] * 2}),
    "wide cells beside them": pa.record_batch({"k": ["x" * 48_000, "y"], "l": [list(range(3000))] * 2}),
    "wide elements": pa.record_batch({"k": [1, 2], "l": [["x" * 48_000] * 90, ["y"] * 9000]}),
    "lists in lists": pa.record_batch({"k": [1], "l": [[["x" * n] * (n % 7) for n in range(3000)]]}),
}


@pytest.mark.parametrize("name", UNNEST)
@pytest.mark.parametrize("outer", [False, True])
def test_unnest_gives_pieces_made_with_each_step(name: str, outer: bool) -> None:
    records = UNNEST[name]
    account = run(Unnest(("l",), ordinality="at", outer=outer), records)
    assert account.rows == sum(len(each) for each in records.column("l").to_pylist())
    assert account.largest[0] == ROWS or account.largest[1] > BYTES / 2
    assert account.peak < 3 * BYTES


def test_unnest_of_a_dictionary_of_long_lists_does_not_decode_it() -> None:
    lists = pa.array([np.zeros(100_000, dtype=np.int8), np.ones(10, dtype=np.int8)])
    column = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 0] * 50, pa.int32()), lists)
    account = run(Unnest(("l",)), pa.record_batch({"l": column}))
    assert account.rows == 50 * 200_010
    assert account.peak < 3 * BYTES


@pytest.mark.parametrize("wide", [False, True])
def test_map_batches_gives_what_a_function_makes_in_pieces(wide: bool) -> None:
    text = "x" * 48_000 if wide else "x"
    made = pa.table({"t": [text] * 20_000}) if not wide else pa.table({"t": [text, *["y"] * 100] * 20})
    account = run(MapBatches(lambda records: made, made.schema), pa.record_batch({"a": [1]}))
    assert account.rows == made.num_rows
    assert account.batches >= 3
    assert account.peak <= 2 * made.nbytes
