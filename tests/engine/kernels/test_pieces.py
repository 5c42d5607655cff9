"""Pieces: the output of rows that become several rows, cut at a limit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.kernels.pieces import pieces


@given(counts=st.lists(st.integers(0, 7), max_size=20), limit=st.integers(1, 9))
def test_pieces_name_row_and_position_of_every_output_row_in_order(counts: list[int], limit: int) -> None:
    found = list(pieces(np.array(counts, dtype=np.int64), limit))
    expected = [(row, position) for row, count in enumerate(counts) for position in range(count)]
    assert [pair for piece in found for pair in zip(piece.rows, piece.positions, strict=True)] == expected
    assert all(len(piece.rows) == limit for piece in found[:-1])
    assert all(0 < len(piece.rows) <= limit for piece in found)
    rows = pa.record_batch({"n": list(range(len(counts)))})
    for piece in found:
        assert piece.repeat(rows).column(0).to_pylist() == piece.rows.tolist()


def test_a_contiguous_piece_is_repeated_without_copying() -> None:
    rows = pa.record_batch({"n": range(10)})
    first, second = pieces(np.ones(10, dtype=np.int64), 6)
    assert first.contiguous
    assert second.repeat(rows).column(0).buffers()[1].address == rows.column(0).buffers()[1].address
    (gap,) = pieces(np.array([1, 0, 1], dtype=np.int64), 6)
    assert not gap.contiguous
