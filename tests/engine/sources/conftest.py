"""Whether files lie in memory: what is read by other threads goes by it."""

import random
from collections.abc import Iterator

import pytest

from penstock.engine.sources import parquet


@pytest.fixture
def on_disk() -> Iterator[None]:
    """No file is in memory: all are read by other threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "is_cached", lambda *_: False)
        yield


@pytest.fixture
def now_and_then_on_disk() -> Iterator[None]:
    """Each time that a file begins to be read, it is in memory or it is not."""
    chance = random.Random(7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "is_cached", lambda *_: chance.random() < 0.3)
        yield
