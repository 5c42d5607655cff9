"""A whole job goes on from folders in which one bit has turned."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.engine.core.errors import DamagedFileError, StorageError
from penstock.engine.sinks.file_committer import FileCommitter
from penstock.engine.sinks.parquet import ParquetSink
from support.damage import flipped
from support.left_threads import left_since

SPLITS, ROWS = 48, 10
PATIENCE = 60


def flow(output: Path, rate: float = 0.0) -> ps.Flow:
    flow = ps.Flow("damaged", lanes=4)
    values = [range(number * ROWS, number * ROWS + ROWS) for number in range(SPLITS)]
    splits = [pa.table({"key": [number // 12] * ROWS, "value": each}) for number, each in enumerate(values)]
    rows = flow.from_tables(splits, name="numbers", rate=rate)
    rows.write_parquet(output / "rows", name="rows")
    totals = rows.aggregate(["key"], n=("value", "count"), total=("value", "sum"), name="totals")
    totals.gather().write_parquet(output / "sums", name="sums")
    return flow


def read(output: Path) -> list[pa.Table]:
    return [ds.dataset(output / part).to_table().sort_by(key) for part, key in (("rows", "value"), ("sums", "key"))]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a job that was broken off in the middle, and beside them a copy."""
    folder = tmp_path_factory.mktemp("stopped") / "job"
    job = ps.run_local(flow(folder / "out", 400.0), checkpoints=ps.Checkpoints(folder / "state", every="40ms"))
    job.wait_until(lambda status: status.checkpoints_completed >= 3, PATIENCE)
    job.shutdown()
    shutil.copytree(folder, folder.parent / "copy")
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[pa.Table]:
    output = tmp_path_factory.mktemp("undisturbed")
    ps.run_local(flow(output)).wait(PATIENCE)
    return read(output)


def test_job_gives_the_right_rows_or_names_the_damaged_file(stopped: Path, undisturbed: list[pa.Table]) -> None:
    refused = 0
    for seed in range(24):
        shutil.rmtree(stopped)
        shutil.copytree(stopped.parent / "copy", stopped)
        chance = Random(seed)
        path = chance.choice(sorted(each for each in stopped.rglob("*") if each.suffix in {".json", ".arrow"}))
        data = path.read_bytes()
        path.write_bytes(flipped(data, chance.randrange(8 * len(data))))
        error = refusal(stopped)
        if error is None:
            assert read(stopped / "out") == undisturbed, f"seed {seed}: {path}"
            continue
        refused += 1
        assert path.name in error.message
        assert "from a copy" in error.remedy
    assert refused > 0


@pytest.mark.parametrize("from_savepoint", [False, True])
def test_job_whose_state_file_is_gone_ends_at_once_and_names_it(from_savepoint: bool, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with ps.run_local(wide(tmp_path / "out"), checkpoints=ps.Checkpoints(state, every="40ms")) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
        place = Path(job.stop(timeout=PATIENCE).path) if from_savepoint else state
    files = [path for path in place.rglob("*.arrow") if not ({"inputs", "inputs.arrow"} & {*path.parts})]
    assert files
    for path in files:
        path.unlink()
    go_on = {"from_snapshot": place} if from_savepoint else {}
    where = tmp_path / "other" if from_savepoint else state
    with ps.run_local(wide(tmp_path / "out"), checkpoints=ps.Checkpoints(where, every="40ms"), **go_on) as job:
        with pytest.raises(DamagedFileError, match=r"the state file .*\.arrow is gone") as raised:
            job.wait(PATIENCE)
        assert job.status().restarts == 0
    assert "restore that file from a copy" in raised.value.remedy
    assert ("another savepoint" in raised.value.remedy) is from_savepoint


def wide(output: Path) -> ps.Flow:
    """A flow whose state takes files of its own."""
    flow = ps.Flow("wide", lanes=4)
    splits = [pa.table({"key": pa.array(range(first, first + 1000))}) for first in range(0, 400_000, 1000)]
    rows = flow.from_tables(splits, name="numbers", rate=100_000.0)
    rows.aggregate(["key"], n=("key", "count"), name="totals").write_parquet(output, name="out")
    return flow


def refusal(folder: Path) -> DamagedFileError | None:
    checkpoints = ps.Checkpoints(folder / "state", every="40ms", max_restarts=1)
    try:
        ps.run_local(flow(folder / "out"), checkpoints=checkpoints).wait(PATIENCE)
    except DamagedFileError as error:
        return error
    return None


def test_job_whose_output_file_is_cut_ends_and_names_the_file(tmp_path: Path) -> None:
    before = time.monotonic()
    checkpoints = ps.Checkpoints(tmp_path / "state", every="40ms", retention="always")
    job = ps.run_local(flow(tmp_path / "out", 400.0), checkpoints=checkpoints)
    job.wait_until(lambda _: any((tmp_path / "out" / "rows").glob("part-*")), PATIENCE)
    cut = next((tmp_path / "out" / "rows").glob("part-*"))
    os.truncate(cut, 50)
    for question in (lambda: job.wait(PATIENCE), job.audit, lambda: job.output("rows").to_table()):
        with pytest.raises(StorageError) as raised:
            question()
        assert str(cut) in raised.value.message or str(tmp_path / "out" / "rows") in raised.value.message
    job.shutdown()
    assert not left_since(before)


def test_job_ends_whatever_its_sinks_say_of_their_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("the sink of a user cannot tell")

    before = time.monotonic()
    job = ps.run_local(flow(tmp_path / "out", 400.0))
    job.wait_until(lambda status: status.checkpoints_completed >= 1 or status.state == "running", PATIENCE)
    monkeypatch.setattr(ParquetSink, "visible_rows", broken)
    monkeypatch.setattr(FileCommitter, "clean", broken)
    job.shutdown()
    assert not left_since(before)
    assert not os.path.exists(job.folder)
