"""The decoder of Parquet pages gives what pyarrow reads, whoever wrote it, and leaves to pyarrow what it doubts."""

from __future__ import annotations

import random

import pytest

from support.parquet_pages import differences, random_file
from support.sweeps import seeds


@pytest.mark.parametrize("seed", seeds(30, of=300))
def test_columns_are_those_that_pyarrow_reads_whatever_its_writer_was_told(seed: int) -> None:
    assert differences(random_file(seed), random.Random(seed)) == ([], [])
