"""Whose an output in a bucket is: created by conditional puts, so of many that want it one has it."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

import penstock as ps
from penstock.actors.claims.ownership import Claimant, _take
from penstock.actors.claims.savepoints import _create
from penstock.engine.core.errors import ConfigurationError, PenstockError
from penstock.engine.core.identity import JobIdentity
from penstock.engine.files.paths import resolve
from penstock.engine.sinks.output_folder import OWNERS, Mode, OutputFolder, append_prefix
from support.bucket_twin import BucketTwin

PATIENCE = 60.0
ROWS, FILES = 800, 80
RACES, JOBS = 40, "abcd"


def take_at_once(output: OutputFolder, mode: Mode, log: str) -> list[str]:
    """Those of several jobs, whose logs are open, that have taken the output."""
    ready, won = threading.Barrier(len(JOBS)), list[str]()

    def take(name: str) -> None:
        claimant = Claimant(JobIdentity(name, 1, name), (name,), name, f"{log}/{name}")
        ready.wait()
        try:
            _take(output, mode, claimant, "write")
        except ConfigurationError:
            return
        won.append(name)

    threads = [threading.Thread(target=take, args=(name,)) for name in JOBS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_every_entry_of_owners_is_created_by_one_of_those_that_race_for_it(
    buckets: BucketTwin, bucket: str, scheme: str
) -> None:
    for number in range(RACES):
        output = OutputFolder(*resolve(f"{scheme}://{bucket}/out{number}"))
        won = take_at_once(output, "exclusive", f"{scheme}://{bucket}/logs")
        _, owner = output.owner()
        assert owner is not None
        assert owner.uuid in won
        # the logs are empty here, so an owner may be followed; but each entry was created once, by one of them
        assert len(buckets.below(f"{bucket}/out{number}/{OWNERS}")) == len(won)
    puts = [key for method, key, status in buckets.requests if (method, status) == ("PUT", 200)]
    assert len(puts) == len(set(puts)), "an entry was written over"


def test_several_that_append_each_have_their_part(buckets: BucketTwin, bucket: str) -> None:
    for number in range(RACES // 4):
        output = OutputFolder(*resolve(f"s3://{bucket}/out{number}"))
        assert sorted(take_at_once(output, "append", f"s3://{bucket}/logs")) == list(JOBS)
        assert len(buckets.below(f"{bucket}/out{number}/{OWNERS}")) == 1
        assert [output.newest(append_prefix(name))[0] for name in JOBS] == [1] * len(JOBS)


def test_of_two_savepoints_that_want_a_folder_one_gets_it(buckets: BucketTwin, bucket: str) -> None:
    place, won = f"s3://{bucket}/saved", list[bool]()
    threads = [threading.Thread(target=lambda: won.append(_create(place, b"mine"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won.count(True) == 1


def flow(bucket: str, rate: float = 0.0, mode: str = "new") -> ps.Flow:
    made = ps.Flow("daily")
    made.read_parquet(f"s3://{bucket}/in", rate=rate).write_parquet(f"s3://{bucket}/out", mode=mode)
    return made


def often(bucket: str, state: str = "state") -> ps.Checkpoints:
    return ps.Checkpoints(f"s3://{bucket}/{state}", every="50ms")


def fill(buckets: BucketTwin, bucket: str) -> None:
    for number in range(FILES):
        file = io.BytesIO()
        begin = number * ROWS // FILES
        parquet.write_table(pa.table({"id": range(begin, begin + ROWS // FILES)}), file)
        buckets.put(f"{bucket}/in/{number:03d}.parquet", file.getvalue())


def read(bucket: str) -> list[int]:
    filesystem, folder = resolve(f"s3://{bucket}/out")
    found = dataset.dataset(folder, format="parquet", filesystem=filesystem).to_table()
    return sorted(found["id"].to_pylist())


def interrupted(bucket: str) -> None:
    """A run that has committed something and not ended."""
    with ps.run_local(flow(bucket, rate=400), checkpoints=often(bucket)) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)


def test_jobs_that_append_at_once_are_exact(buckets: BucketTwin, bucket: str) -> None:
    fill(buckets, bucket)
    jobs = [
        ps.run_local(flow(bucket, rate=1600, mode="append"), checkpoints=often(bucket, f"state{number}"))
        for number in range(3)
    ]
    for job in jobs:
        job.wait(PATIENCE)
        assert job.audit().clean
        assert job.audit().sinks[0].visible == ROWS
    assert read(bucket) == sorted(3 * list(range(ROWS)))
    assert buckets.below(f"{bucket}/out/_staging") == []


def test_copied_log_is_refused_and_one_that_is_told_to_takes_over(buckets: BucketTwin, bucket: str) -> None:
    fill(buckets, bucket)
    interrupted(bucket)
    for key in buckets.below(f"{bucket}/state/"):
        buckets.put(key.replace("/state/", "/copy/", 1), buckets.objects[key].data)
    rarely = ps.Checkpoints(f"s3://{bucket}/state", every=None)
    with ps.run_local(flow(bucket, rate=20), checkpoints=rarely) as original:
        original.wait_until(lambda status: status.state == "running", PATIENCE)
        with pytest.raises(ConfigurationError, match=r"the log in s3://bucket-[0-9a-f]+/copy/daily does not hold"):
            ps.run_local(flow(bucket), checkpoints=often(bucket, "copy"))
        ps.run_local(flow(bucket), checkpoints=often(bucket, "copy"), take_over=True).wait(PATIENCE)
        original.checkpoint(PATIENCE)
        with pytest.raises(PenstockError, match="it was taken over while this job wrote"):
            original.wait(PATIENCE)
    assert read(bucket) == list(range(ROWS))


def test_job_goes_on_from_a_savepoint_in_another_bucket(buckets: BucketTwin, bucket: str) -> None:
    fill(buckets, bucket)
    job = ps.run_local(flow(bucket, rate=400), checkpoints=often(bucket))
    job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
    saved = job.stop(savepoint=f"gs://{bucket}-saved/here")
    heir = ps.run_local(flow(bucket), checkpoints=often(bucket, "heir"), from_snapshot=saved.path).wait(PATIENCE)
    assert heir.audit().clean
    assert read(bucket) == list(range(ROWS))
    left = ps.retire_output(f"s3://{bucket}/heir/daily", f"s3://{bucket}/out")
    assert sorted(left) == buckets.below(f"{bucket}/out/part-")


@pytest.mark.parametrize("ignoring", ["checkpoints", "output"])
def test_store_that_ignores_conditions_is_refused_before_anything_is_claimed(
    buckets: BucketTwin, bucket: str, tmp_path: Path, ignoring: str
) -> None:
    fill(buckets, bucket)
    buckets.conditions = False
    state, out = {
        "checkpoints": (f"s3://{bucket}/state", str(tmp_path / "out")),
        "output": (str(tmp_path / "state"), f"s3://{bucket}/out"),
    }[ignoring]
    made = ps.Flow("daily")
    made.read_parquet(f"s3://{bucket}/in").write_parquet(out)
    with pytest.raises(ConfigurationError, match="ignores If-None-Match") as caught:
        ps.run_local(made, checkpoints=state)
    assert "conditional puts" in caught.value.remedy
    assert not [key for key in buckets.below(bucket) if any(part in key for part in ("/log/", "owners", "_probe"))]
