"""A whole job on a disk that forgets what was not synced, the power cut at every moment."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.actors.storage.log import read_log
from penstock.actors.storage.stores import open_store
from penstock.coordinator.model.manifest import Ended
from support.forgetful_disk import ForgetfulDisk, Moment
from support.power_cuts import check_what_the_log_says

SPLITS, ROWS = 24, 10
JOB = "cut"
PATIENCE = 60


def flow(output: Path, rate: float = 0.0) -> ps.Flow:
    flow = ps.Flow(JOB, lanes=4)
    splits = [
        pa.table({"key": [number // 6] * ROWS, "value": range(number, number + ROWS)}) for number in range(SPLITS)
    ]
    rows = flow.from_tables(splits, name="numbers", rate=rate)
    rows.write_parquet(output / "rows", name="rows")
    rows.aggregate(["key"], n=("value", "count"), total=("value", "sum"), name="totals").gather().write_parquet(
        output / "sums", name="sums"
    )
    return flow


def read(output: Path) -> list[pa.Table]:
    orders = {"rows": [("key", "ascending"), ("value", "ascending")], "sums": "key"}
    return [ds.dataset(output / part).to_table().sort_by(order) for part, order in orders.items()]


def checkpoints(folder: Path) -> ps.Checkpoints:
    return ps.Checkpoints(folder, every="30ms", retained=2)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[pa.Table]:
    output = tmp_path_factory.mktemp("undisturbed")
    ps.run_local(flow(output)).wait(PATIENCE)
    return read(output)


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> list[Moment]:
    """Of a job with checkpoints, a savepoint, and its end."""
    disk = ForgetfulDisk(tmp_path_factory.mktemp("disk"))
    with disk.watched():
        job = ps.run_local(
            flow(disk.root / "data" / "out", 400.0), checkpoints=checkpoints(disk.root / "data" / "state")
        )
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
        job.savepoint(disk.root / "elsewhere" / "saved")
        job.wait(PATIENCE)
    return disk.moments


def survivors(moment: Moment, folder: Path, chance: Random | None) -> Path:
    folder.mkdir(exist_ok=True)
    return moment.survivors(folder / str(len(os.listdir(folder))), chance)


def is_over(state: Path) -> bool:
    return any(isinstance(entry, Ended) for entry in read_log(open_store(state), JOB))


def check(root: Path) -> bool:
    data = root / "data"
    outputs = {"rows": data / "out" / "rows", "sums": data / "out" / "sums"}
    return check_what_the_log_says(data / "state", JOB, outputs, root / "elsewhere" / "saved")


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_whatever_the_log_says_is_there_whenever_the_power_is_cut(
    moments: list[Moment], tmp_path: Path, seed: int | None
) -> None:
    begun = [
        check(survivors(moment, tmp_path / "left", None if seed is None else Random(f"{seed} {number}")))
        for number, moment in enumerate(moments)
    ]
    assert not begun[0]
    assert begun[-1]


def test_job_goes_on_after_a_power_cut_and_no_row_is_lost_or_comes_twice(
    moments: list[Moment], undisturbed: list[pa.Table], tmp_path: Path
) -> None:
    for number in Random(5).sample(range(len(moments)), 16):
        data = survivors(moments[number], tmp_path / "left", Random(number)) / "data"
        if not is_over(data / "state"):
            ps.run_local(flow(data / "out"), checkpoints=checkpoints(data / "state")).wait(PATIENCE)
        assert read(data / "out") == undisturbed, moments[number].label


def test_what_a_user_was_told_of_is_there(moments: list[Moment], undisturbed: list[pa.Table], tmp_path: Path) -> None:
    left = survivors(moments[-1], tmp_path / "left", None)
    assert read(left / "data" / "out") == undisturbed
    assert (left / "elsewhere" / "saved" / "savepoint.json").exists()
