"""Bytes as users write them: a number, or a text with a unit, "512MiB"."""

from __future__ import annotations

import re

from .arguments import LARGEST
from .errors import FlowError, PenstockError

_UNITS = {
    "": 1,
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")


def bytes_of(name: str, text: str, raises: type[PenstockError] = FlowError) -> int:
    """How many bytes an argument names."""
    found = _SIZE.fullmatch(text.strip())
    size = float(found[1]) * _UNITS.get(found[2], 0) if found else 0.0
    if not 1 <= size <= LARGEST:
        raise raises(f"{name}={text!r} is no number of bytes", 'give a number and a unit, such as "512MiB" or "2GiB"')
    return int(size)
