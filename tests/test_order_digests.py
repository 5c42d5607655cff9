"""Two runs of a feed are compared by the digests of their batches, which outlive restarts."""

from __future__ import annotations

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.actors.storage.digest_files import DigestFiles
from penstock.coordinator.model.events import TaskLost
from penstock.engine.core.errors import ConfigurationError, DamagedFileError
from penstock.engine.core.identity import TaskId
from penstock.jobs.cli import app
from penstock.jobs.verify_order import verify_order
from support.damage import flipped
from support.feeds import plain, read_group, take

BATCHES = 16


def flow_of(seed: int = 1, batch_size: int = 50) -> ps.Flow:
    flow = ps.Flow("feeding", lanes=4)
    plain(flow).shuffle(128, seed=seed).feed(batch_size, room=100)
    return flow


def whole_run(folder, parallelism=2, ranks=2, **options) -> None:
    job = ps.run_local(flow_of(**options), checkpoints=folder, parallelism=parallelism)
    assert len(read_group(job.feed(), ranks)) > 1
    job.wait(60)


def test_equal_runs_are_told_equal_and_others_from_their_first_batch_on(tmp_path):
    for name, options in (("one", {}), ("two", {"parallelism": 4, "ranks": 3}), ("other", {"seed": 2})):
        whole_run(tmp_path / name, **options)
    verdict = verify_order(tmp_path / "one", tmp_path / "two")
    assert verdict.same
    assert verdict.lines == (f"{BATCHES} batches of 50 rows are equal, in order",)
    told = CliRunner().invoke(app, ["verify-order", str(tmp_path / "one"), str(tmp_path / "other")])
    assert (told.exit_code, told.output) == (1, "batch 0 is the first one that differs: rows 0 to 49\n")
    verdict = verify_order(tmp_path / "one", tmp_path / "other")
    assert (verdict.same, verdict.first) == (False, 0)
    assert verdict.lines == ("batch 0 is the first one that differs: rows 0 to 49",)


def test_files_that_a_killed_process_left_without_their_end_are_nobodys(tmp_path):
    whole_run(tmp_path / "run")
    folder = tmp_path / "run" / "feeding" / "feeds" / "feed"
    (whole, *_) = folder.glob("*.digests.arrow")
    for size in (0, 5, whole.stat().st_size // 2):
        (folder / f".{whole.name}.{size:032x}").write_bytes(whole.read_bytes()[:size])
    assert verify_order(tmp_path / "run", tmp_path / "run").lines == (
        f"{BATCHES} batches of 50 rows are equal, in order",
    )


def test_damaged_file_is_an_error_and_no_gap(tmp_path):
    whole_run(tmp_path / "run")
    (whole, *_) = (tmp_path / "run" / "feeding" / "feeds" / "feed").glob("*.digests.arrow")
    data = whole.read_bytes()
    for damaged in (data[: len(data) // 2], b"", flipped(data, 8 * len(data) // 2)):
        whole.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=f"{whole} cannot be read"):
            verify_order(tmp_path / "run", tmp_path / "run")


def test_run_with_restarts_from_the_middle_of_batches_has_no_gap(tmp_path):
    whole_run(tmp_path / "one")
    for parallelism in (2, 3, 1):
        job = ps.run_local(flow_of(), checkpoints=tmp_path / "two", parallelism=parallelism)
        reader = job.feed().reader(timeout=60)
        reader.load_state_dict({**reader.state_dict(), "step": (2, 3, 1).index(parallelism) * 3})
        take(reader, 3)
        job.checkpoint(60)
        job._request(TaskLost(TaskId("gather-1", 0), job.statistics()[TaskId("gather-1", 0)].attempt, "test", 0.0))
        take(reader, 1)
        job.checkpoint(60)
        reader.close(0.0)
        job.shutdown()
    job = ps.run_local(flow_of(), checkpoints=tmp_path / "two")
    read_group(job.feed(), 2, start=9)
    job.wait(60)
    assert verify_order(tmp_path / "one", tmp_path / "two").lines == (
        f"{BATCHES} batches of 50 rows are equal, in order",
    )


def test_rows_that_change_between_two_runs_are_found(tmp_path):
    numbers = list(range(1000))
    for name in ("one", "two"):
        flow = ps.Flow("changing", lanes=1)
        flow.from_tables([pa.table({"n": numbers})]).feed(10)
        job = ps.run_local(flow, checkpoints=tmp_path / name)
        read_group(job.feed(), 1)
        job.wait(60)
        numbers[432], numbers[437] = numbers[437], numbers[432]
    assert verify_order(tmp_path / "one", tmp_path / "two").first == 43


def test_what_cannot_be_compared_is_refused(tmp_path):
    whole_run(tmp_path / "one")
    whole_run(tmp_path / "larger", batch_size=60)
    with pytest.raises(ConfigurationError, match="batches of 50 rows cannot be compared with batches of 60"):
        verify_order(tmp_path / "one", tmp_path / "larger")
    with pytest.raises(ConfigurationError, match=r"is not there in .*it has none"):
        verify_order(tmp_path / "one", tmp_path / "nothing")
    with pytest.raises(ConfigurationError, match="it has feeding/feed"):
        verify_order(tmp_path / "one", tmp_path / "one", feed="other")


def test_files_do_not_grow_in_number_with_checkpoints(tmp_path):
    job = ps.run_local(flow_of(), checkpoints=tmp_path)
    reader = job.feed().reader(timeout=60)
    for _ in range(5):
        take(reader, 2)
        job.checkpoint(60)
    reader.close(0.0)
    job.shutdown()
    files = list((tmp_path / "feeding" / "feeds" / "feed").iterdir())
    assert len(files) == 1
    recorded, size = DigestFiles(str(tmp_path), "feeding", "feed").read()
    assert (recorded.batches[0], size, recorded.contradiction) == (0, 50, None)
