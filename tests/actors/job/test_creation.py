"""Flows with functions that workers cannot import: whoever waits is told so, with what to do about it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import SetupError

pytestmark = pytest.mark.ray
PATIENCE = 60.0
SCHEMA = pa.schema({"n": pa.int64()})


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module that only this process finds."""
    name = "module_of_this_machine"
    (tmp_path / f"{name}.py").write_text("def unchanged(batch):\n    return batch\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(name)
    del sys.modules[name]


def rows(flow: ps.Flow, function: Any) -> Any:
    return flow.from_tables([pa.table({"n": [1, 2, 3]})]).map_batches(function, SCHEMA)


def test_callers_that_wait_for_the_job_hear_which_module_is_missing(
    cluster: str, elsewhere: Any, tmp_path: Path
) -> None:
    flow = ps.Flow("missing-module")
    rows(flow, elsewhere.unchanged).write_parquet(tmp_path / "out")
    with ps.run(flow) as job, pytest.raises(SetupError, match="No module named 'module_of_this_machine'") as raised:
        job.wait(PATIENCE)
    assert "--working-dir" in raised.value.remedy


def test_rank_without_a_timeout_is_told_too(cluster: str, elsewhere: Any, tmp_path: Path) -> None:
    flow = ps.Flow("missing-module-of-a-feed")
    rows(flow, elsewhere.unchanged).feed(2)
    with ps.run(flow, checkpoints=ps.Checkpoints(tmp_path / "state")) as job:
        reader = job.feed().reader()
        with pytest.raises(SetupError, match="No module named 'module_of_this_machine'"):
            next(iter(reader))
        reader.close(0.0)
