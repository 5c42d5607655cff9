"""A whole job on a real S3 server, inputs, outputs and checkpoints, whose store goes away for a while."""

from __future__ import annotations

import io
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

import penstock as ps
from penstock.engine.files import object_store
from penstock.engine.files.object_store import Bucket
from penstock.engine.files.paths import resolve
from support.store_proxy import Asked, Fault, StoreProxy

PATIENCE = 60.0
FILES, ROWS = 24, 25


def fill(bucket: str) -> None:
    for number in range(FILES):
        file = io.BytesIO()
        parquet.write_table(pa.table({"n": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())}), file)
        Bucket("s3", bucket).put(f"in/{number:03d}.parquet", file.getvalue())


def flow(bucket: str, rate: float = 0.0) -> ps.Flow:
    made = ps.Flow("daily", lanes=4)
    made.read_parquet(f"s3://{bucket}/in", name="rows", rate=rate).write_parquet(f"s3://{bucket}/out", name="out")
    return made


def read(bucket: str) -> list[int]:
    filesystem, folder = resolve(f"s3://{bucket}/out")
    return sorted(dataset.dataset(folder, format="parquet", filesystem=filesystem).to_table()["n"].to_pylist())


@pytest.mark.parametrize("fault", ["lost request", 503])
def test_job_waits_for_a_store_that_is_gone_says_so_and_goes_on(
    real_bucket: str, wire: StoreProxy, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr(object_store, "SLOW_SECONDS", 0.1)
    fill(real_bucket)
    place = ps.Checkpoints(f"s3://{real_bucket}/state", every="30ms")
    with ps.run_local(flow(real_bucket, 400.0), checkpoints=place, audit="content") as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
        wire.fault = lambda asked: fault
        while not any(f"waits for s3://{real_bucket}, which has not answered" in line for line in job.why()):
            assert not job.status().is_over
        wire.calm()
        job.wait(PATIENCE)
        assert job.status().restarts == 0
        assert job.audit().clean
    assert read(real_bucket) == list(range(FILES * ROWS))


def test_job_whose_every_third_request_fails_is_exact(real_bucket: str, wire: StoreProxy) -> None:
    fill(real_bucket)
    kinds: tuple[Fault, ...] = ("lost request", "lost answer", 500, 503)
    count = iter(range(1_000_000))

    def fault(asked: Asked) -> Fault:
        at = next(count)
        return kinds[at // 3 % len(kinds)] if at % 3 == 2 else ""

    wire.fault = fault
    job = ps.run_local(flow(real_bucket), checkpoints=ps.Checkpoints(f"s3://{real_bucket}/state", every="30ms"))
    assert job.wait(PATIENCE).status().restarts == 0
    wire.calm()
    assert read(real_bucket) == list(range(FILES * ROWS))


def test_savepoint_in_a_bucket_is_gone_on_from(real_bucket: str) -> None:
    fill(real_bucket)
    state = f"s3://{real_bucket}/state"
    with ps.run_local(flow(real_bucket, 400.0), checkpoints=ps.Checkpoints(state, every="30ms")) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
        saved = job.stop(savepoint=f"s3://{real_bucket}/saved", timeout=PATIENCE)
    assert len(read(real_bucket)) < FILES * ROWS
    ps.run_local(flow(real_bucket), checkpoints=f"{state}2", from_snapshot=saved.path).wait(PATIENCE)
    assert read(real_bucket) == list(range(FILES * ROWS))


def test_demo_keeps_everything_in_a_bucket(real_bucket: str) -> None:
    place = f"s3://{real_bucket}"
    words = ["run", "flights", "--local", "--rate", "0", "--output", f"{place}/out", "--checkpoints", f"{place}/state"]
    done = subprocess.run(
        [sys.executable, "-m", "penstock.jobs", *words],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"outputs and audit.json are in {place}/out" in done.stdout
    keys = [each.key for each in Bucket("s3", real_bucket).below("")]
    for part in ("out/features/part-", "out/daily/part-", "out/audit.json", "state/flights/log/"):
        assert any(key.startswith(part) for key in keys), part
    assert not any("_staging" in key or "_probe" in key for key in keys)
