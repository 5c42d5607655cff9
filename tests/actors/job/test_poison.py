"""A split that kills whoever reads it, and one that cannot be read, in jobs on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import penstock as ps
from support.poisoned_source import BAD, Poison, PoisonedSource, rows_without_poison

pytestmark = [pytest.mark.ray, pytest.mark.chaos]
PATIENCE = 120.0


def start(tmp_path: Path, poison: Poison, **options: Any) -> Any:
    flow = ps.Flow(f"poison-{poison}", lanes=4)
    flow.from_source(PoisonedSource(poison), name="parts").write_parquet(tmp_path / "out")
    checkpoints = ps.Checkpoints(tmp_path / "state", every="100ms", restart_delay="50ms")
    return ps.run(flow, parallelism=1, checkpoints=checkpoints, runtime=ps.Runtime(poison_limit=2, **options))


def written(tmp_path: Path) -> list[int]:
    return sorted(ds.dataset(tmp_path / "out", format="parquet").to_table()["n"].to_pylist())


def test_job_whose_split_kills_every_reader_stops_with_the_splits_name(cluster: str, tmp_path: Path) -> None:
    with start(tmp_path, "kill") as job, pytest.raises(ps.errors.TaskLostError) as caught:
        job.wait(PATIENCE)
    assert f"split part-{BAD} of parts has ended parts[0] 2 times" in caught.value.message
    assert "skip_poison=True" in caught.value.remedy


def test_job_whose_split_cannot_be_read_stops_at_once_with_its_name(cluster: str, tmp_path: Path) -> None:
    with start(tmp_path, "raise") as job, pytest.raises(ps.errors.DataError) as caught:
        job.wait(PATIENCE)
    assert f"split part-{BAD} of parts has ended parts[0]: these bytes are no rows" in caught.value.message
    assert "write the part again" in caught.value.remedy
    assert job.status().restarts == 0


@pytest.mark.parametrize("poison", ["kill", "raise"])
def test_poison_is_skipped_on_request_and_everything_else_is_written(
    cluster: str, tmp_path: Path, poison: Poison
) -> None:
    with start(tmp_path, poison, skip_poison=True) as job:
        job.wait_until(lambda status: status.is_over, PATIENCE)
        job.kill_coordinator()  # the next one knows what the log tells
        status = job.wait(PATIENCE).status()
    assert status.state == "finished"
    (skipped,) = status.skipped
    assert skipped.startswith(f"split part-{BAD} of parts was skipped: it has ended parts[0]")
    assert written(tmp_path) == rows_without_poison()
