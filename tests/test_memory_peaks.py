"""The memory bound is true: every operator runs with rows that are many, alike or wide, and its peak is compared.

``HELD`` are the bytes behind what the bound says in words alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.memory_peaks import CELL, ELEMENTS, FILES, MANY, MIB, OPERATORS, SHAPES, SINKS, Peak

WIDTHS = {"cells": CELL, "alike cells": CELL, "lists": 4 * ELEMENTS, "alike": 4, "keys": 4}
PROCESS = 64 * MIB
"""What threads, imports and allocators have beside it."""
COPIES = 2
"""Rows that are held are copied when they are put together."""

HELD = {"shuffle": 256, "top n": 50, "distinct": MANY, "mark distinct": MANY, "window": MANY, "merge join": MANY // 2}
"""Rows of the windows, rounds, sides and counts that operators name."""
ALWAYS = [
    ("unnest", "lists"),
    ("filter", "lists"),
    ("project", "cells"),
    ("stream aggregate", "cells"),
    ("sort", "cells"),
    ("aggregate", "cells"),
    ("mix", "cells"),
    ("pack", "lists"),
    ("write parquet", "lists"),
    ("window", "lists"),
    ("lookup join", "cells"),
    ("union", "lists"),
    ("merge join", "alike"),
    ("hash join", "alike"),
]
OF_LISTS = {"unnest", "pack"}
CASES = [
    (operator, shape)
    for operator in [*OPERATORS, *SINKS]
    for shape in SHAPES
    if shape == "lists" or operator not in OF_LISTS
]


def marked(operator: str, shape: str) -> Any:
    """A case: of the few that are always run, or of the sweep."""
    return pytest.param(operator, shape, marks=[] if (operator, shape) in ALWAYS else [pytest.mark.sweep])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("file", FILES)
def test_no_more_memory_is_taken_by_reading_than_was_promised(runner: Runner, file: str) -> None:
    found = runner.peak("read", file)
    assert found.pool <= found.promised, f"{found.pool / MIB:.0f} of {found.promised / MIB:.0f} MiB"
    assert found.process <= found.promised + PROCESS, f"{found.process / MIB:.0f} of {found.promised / MIB:.0f} MiB"


class Runner:
    """Has flows run in children of a process without threads, one at a time."""

    def __init__(self) -> None:
        script = Path(__file__).parent / "support" / "memory_peaks.py"
        # what Arrow's allocator has back is given to the system at once: it keeps it for 10 ms, which is not the plan's
        path = {"PYTHONPATH": str(Path(__file__).parent), "MIMALLOC_PURGE_DELAY": "0"}
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | path,
        )

    def peak(self, operator: str, shape: str) -> Peak:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(f"{operator}, {shape}", file=self._process.stdin, flush=True)
        return Peak(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    found = Runner()
    yield found
    found.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("operator", "shape"), [marked(*case) for case in CASES])
def test_no_more_memory_is_taken_than_was_promised(runner: Runner, operator: str, shape: str) -> None:
    found = runner.peak(operator, shape)
    held = min(HELD.get(operator, 0), SHAPES[shape]("rows").rows)
    assert not held or any(words.startswith(f"{operator.replace(' ', '-')}-1: ") for words in found.unbounded)
    allowed = found.promised + COPIES * held * WIDTHS[shape]
    assert found.pool <= allowed, f"{found.pool / MIB:.0f} of {allowed / MIB:.0f} MiB"
    assert found.process <= allowed + PROCESS, f"{found.process / MIB:.0f} of {allowed / MIB:.0f} MiB"
