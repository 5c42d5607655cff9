"""Bytes as users write them."""

from __future__ import annotations

import pytest

from penstock.engine.core.byte_sizes import bytes_of
from penstock.engine.core.errors import FlowError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7", 7),
        ("7B", 7),
        ("2GiB", 2 << 30),
        ("2 GiB", 2 << 30),
        ("1.5KiB", 1536),
        ("3MB", 3_000_000),
        ("1TiB", 1 << 40),
    ],
)
def test_unit_says_how_many_bytes(text: str, count: int) -> None:
    assert bytes_of("room", text) == count


@pytest.mark.parametrize(
    "text", ["", "GiB", "0", "0MiB", "-1MiB", "2gib", "2 Gi B", "1e9", "nan", "99999999999TiB", "٣MB "]
)
def test_what_is_no_number_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(FlowError, match="no number of bytes"):
        bytes_of("room", text)
