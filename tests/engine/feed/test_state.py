"""The state of a feed as a table, and back."""

from __future__ import annotations

import pyarrow as pa

from penstock.engine.feed.digests import OrderHash
from penstock.engine.feed.state import SequencerState, read_state, write_state


def state_of(pieces: tuple[pa.RecordBatch, ...]) -> SequencerState[pa.RecordBatch]:
    rows = sum(piece.num_rows for piece in pieces)
    return SequencerState(0, rows, False, OrderHash(1, rows, 2), pieces, ())


def test_rows_that_one_array_cannot_hold_are_restored() -> None:
    """2.25 GiB of text, 36 times the same 64 MiB."""
    piece = pa.record_batch({"n": pa.array(range(64)), "b": pa.array([b"x" * (1 << 20)] * 64)})
    state = state_of((piece,) * 36)
    found = read_state(write_state(state, 0, piece.schema), piece.schema)
    assert sum(each.num_rows for each in found.rows) == state.position == 2304
    assert (found.order, found.ends) == (state.order, state.ends)


def test_state_without_rows_comes_back() -> None:
    schema = pa.schema([("n", pa.int64())])
    assert read_state(write_state(state_of(()), 0, schema), schema) == state_of(())
