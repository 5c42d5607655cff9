"""A job whose disk fills up or becomes read-only fails with the folder's name, loses nothing, and goes on afterwards.

The disk is a tiny file system, filled by another file or remounted read-only in the middle of the job. For machines
where this user may not mount one, a limit on file sizes that comes in the middle of the job refuses the sink's writes
in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import penstock as ps
from support.small_disk import limited, read_only, small_disk

SPLITS, ROWS = 64, 6_000
SIZE = 8 * 2**20
"""Bytes of the disk, or of the largest file. All outputs take two MiB."""

LIMIT = 16 * 2**10
"""Bytes of the largest file, where no output may be written. An entry of the log takes five to eleven KiB, an output of
one split twenty and more."""

RATE = 120_000.0
"""Rows per second: 384,000 of them last three seconds, long enough for the disk to fill up in the middle."""

PATIENCE = 60.0


def numbers() -> list[pa.Table]:
    """Splits of numbers that do not compress, so that files have a size."""
    return [
        pa.table({"n": pa.array(range(split * ROWS, (split + 1) * ROWS)), "split": [split] * ROWS})
        for split in range(SPLITS)
    ]


def make_flow(output: Path, rate: float = 0.0) -> ps.Flow:
    flow = ps.Flow("full", lanes=4)
    stream = flow.from_tables(numbers(), name="numbers", rate=rate)
    stream.with_columns(square=pc.multiply(ps.field("n"), ps.field("n"))).write_parquet(output, name="squares")
    return flow


@contextmanager
def unwritable(kind: str, disk: Path) -> Iterator[None]:
    """Nothing can be written to the disk while this lasts (or, kind "limit", no file of an output; the log's are
    smaller)."""
    if kind != "full":
        with limited(LIMIT) if kind == "limit" else read_only(disk):
            yield
        return
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(2**16)):
            pass
    yield
    filler.unlink()


def rows(output: Path) -> list[int]:
    """The numbers that a plain reader sees, sorted."""
    return sorted(ds.dataset(output, format="parquet").to_table(columns=["n"])["n"].to_pylist())


def check_whole_splits(output: Path) -> None:
    """What is visible is what completed checkpoints covered: whole splits, no row twice."""
    found = rows(output)
    assert len(found) == len(set(found))
    assert 0 < len(found) < SPLITS * ROWS
    assert len(found) % ROWS == 0, "a checkpoint stands between splits, so part of one was published"


def places(folder: Path, disk: Path, which: str) -> tuple[Path, Path]:
    """The folders of the checkpoints and of the output, one of which lies on the disk."""
    return (disk, folder / "out") if which == "checkpoints" else (folder / "state", disk / "out")


SAID = {"full": "No space left", "read-only": "Read-only file system", "limit": "File too large"}
"""What the operating system says."""

CASES = [
    ("full", "checkpoints"),
    ("full", "outputs"),
    ("read-only", "checkpoints"),
    ("read-only", "outputs"),
    ("limit", "outputs"),
]


@pytest.mark.parametrize(("kind", "which"), CASES)
def test_job_fails_when_a_disk_takes_nothing_and_goes_on_when_it_does(tmp_path, kind, which):
    with small_disk("limit" if kind == "limit" else "mount", tmp_path / "disk", SIZE) as disk:
        state, output = places(tmp_path, disk, which)
        checkpoints = ps.Checkpoints(state, every="100ms", max_restarts=2, restart_delay="50ms")
        with ps.run_local(make_flow(output, RATE), parallelism=2, checkpoints=checkpoints) as job:
            job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
            with unwritable(kind, disk), pytest.raises(ps.errors.StorageError) as caught:
                job.wait(PATIENCE)
        check_error(caught.value, state if which == "checkpoints" else output, which, kind)
        check_whole_splits(output)
        assert job.status().state == "failed"
        audit = job.audit()
        # files of a checkpoint that is in the log may still have to get their names, which needs no room on a disk
        assert audit.clean or ((kind, which) == ("read-only", "outputs") and not audit.repeats), str(audit)

        resumed = ps.run_local(make_flow(output), parallelism=2, checkpoints=checkpoints).wait(PATIENCE)
        assert resumed.status().restored_from is not None
        check_all_is_there(resumed, output)


@pytest.mark.parametrize("which", ["checkpoints", "outputs"])
def test_job_is_refused_while_its_disk_is_read_only_and_changes_nothing(tmp_path, which):
    with small_disk("mount", tmp_path / "disk", SIZE) as disk:
        state, output = places(tmp_path, disk, which)
        checkpoints = ps.Checkpoints(state, every="100ms")
        with ps.run_local(make_flow(output, RATE), parallelism=2, checkpoints=checkpoints) as job:
            job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
        before = rows(output)
        with read_only(disk), pytest.raises(ps.errors.PenstockError) as caught:
            ps.run_local(make_flow(output), parallelism=2, checkpoints=checkpoints).wait(PATIENCE)
        assert SAID["read-only"] in caught.value.message
        assert str(disk) in caught.value.message
        assert caught.value.remedy
        assert rows(output) == before
        check_all_is_there(ps.run_local(make_flow(output), checkpoints=checkpoints).wait(PATIENCE), output)


@pytest.mark.parametrize("which", ["checkpoints", "outputs"])
def test_job_with_patience_outlasts_a_disk_that_is_read_only_for_a_while(tmp_path, which):
    with small_disk("mount", tmp_path / "disk", SIZE) as disk:
        state, output = places(tmp_path, disk, which)
        checkpoints = ps.Checkpoints(
            state, every="100ms", max_restarts=1000, restart_delay="50ms", tolerable_failures=1000
        )
        with ps.run_local(make_flow(output, RATE), parallelism=2, checkpoints=checkpoints) as job:
            job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
            with read_only(disk):
                before = job.wait_until(lambda status: status.checkpoints_failed + status.restarts > 0, PATIENCE)
                check_whole_splits(output)
            assert job.wait(PATIENCE).status().checkpoints_completed > before.checkpoints_completed
        check_all_is_there(job, output)


def check_all_is_there(job: ps.Job, output: Path) -> None:
    """Every row once, and nothing else."""
    assert rows(output) == list(range(SPLITS * ROWS))
    assert job.audit().clean, str(job.audit())
    assert not list(output.glob("_staging")), "what the failed attempts had prepared is left"


def check_error(error: ps.errors.StorageError, place: Path, which: str, kind: str) -> None:
    """The error names the folder and what the operating system said, the sink if it is one, and a remedy."""
    assert str(place) in error.message
    assert SAID[kind] in error.message
    assert error.remedy
    if which == "outputs":
        assert error.operator == "squares"
