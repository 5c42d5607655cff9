"""Booleans for numpy: whatever their offset, their length, and where they are null."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.arrow.masks import set_bits, truths


@pytest.mark.parametrize("seed", range(30))
def test_bits_of_slices(seed: int) -> None:
    chooser = random.Random(seed)
    values = [chooser.choice([True, False, None] if seed % 2 else [True, False]) for _ in range(70)]
    mask = pa.array(values, pa.bool_())
    for start in (0, 1, 7, 8, 9, 33, 70):
        for length in (0, 1, 7, 8, 20):
            part, wanted = mask.slice(start, length), values[start : start + length]
            assert set_bits(part).tolist() == [place for place, value in enumerate(wanted) if value]
            if None not in wanted:
                assert truths(part).tolist() == wanted


def test_no_mask_is_no_row() -> None:
    assert set_bits(None).dtype == np.int64
    assert not len(set_bits(None))
