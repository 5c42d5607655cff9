"""A whole job on Ray whose inputs, outputs and checkpoints lie in a bucket: exact, whoever is killed."""

from __future__ import annotations

import io
import subprocess
import sys
from textwrap import dedent

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from penstock.engine.files.paths import resolve
from support.bucket_twin import BucketTwin

pytestmark = [pytest.mark.ray, pytest.mark.chaos]

FILES, ROWS = 40, 50

AGAIN = """
    import sys
    import penstock as ps, pyarrow as pa, ray
    bucket = sys.argv[1]
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20,
             log_to_driver=False, logging_level="ERROR")
    for rows, resume in ((90, "auto"), (40, "restart")):
        flow = ps.Flow("nightly")
        table = pa.table({"n": range(rows), "third": [n % 3 for n in range(rows)]})
        flow.from_tables(table).write_parquet(f"s3://{bucket}/out", mode="overwrite")
        with ps.run(flow, parallelism=2, checkpoints=f"s3://{bucket}/state", resume=resume, audit="content") as job:
            audit = job.wait(60).audit()
            assert set(audit.grades.values()) == {"proven"}, audit
"""


def in_a_process(script: str, bucket: str) -> str:
    """What the script prints. In a process of its own: those of a Ray cluster know of a store what stood in the
    environment at its start."""
    words = [sys.executable, "-c", dedent(script), bucket]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(bucket: str) -> list[int]:
    filesystem, folder = resolve(f"s3://{bucket}/out")
    return sorted(dataset.dataset(folder, format="parquet", filesystem=filesystem).to_table()["n"].to_pylist())


SCRIPT = """
    import sys
    import penstock as ps, ray
    bucket = sys.argv[1]
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20,
             log_to_driver=False, logging_level="ERROR")
    flow = ps.Flow("daily", lanes=4)
    rows = flow.read_parquet(f"s3://{bucket}/in", name="rows", rate=700)
    rows.gather().write_parquet(f"s3://{bucket}/out", name="out")
    checkpoints = ps.Checkpoints(f"s3://{bucket}/state", every="200ms", restart_delay=0.05)
    job = ps.run(flow, parallelism=2, checkpoints=checkpoints, audit="content")
    job.wait_until(lambda status: status.checkpoints_completed >= 2, 60)
    job.kill_task(job.tasks()[-1])
    job.kill_coordinator()
    status = job.wait(60).status()
    assert status.generation == 2, status
    print(job.audit())
    job.shutdown()
"""


def test_rows_are_exact_when_driver_and_coordinator_are_killed(buckets: BucketTwin, bucket: str) -> None:
    for number in range(FILES):
        file = io.BytesIO()
        parquet.write_table(pa.table({"n": pa.array(range(number * ROWS, (number + 1) * ROWS))}), file)
        buckets.put(f"{bucket}/in/{number:03d}.parquet", file.getvalue())
    told = in_a_process(SCRIPT, bucket)
    assert f"proven ({FILES * ROWS:,} rows read again)" in told
    assert f"proven ({FILES * ROWS:,} rows read back), from its sources on" in told
    assert numbers(bucket) == list(range(FILES * ROWS))
    assert buckets.below(f"{bucket}/out/_staging") == []


def test_a_job_that_is_over_is_run_again_and_replaces_what_it_wrote(buckets: BucketTwin, bucket: str) -> None:
    in_a_process(AGAIN, bucket)
    assert numbers(bucket) == list(range(40))
    assert buckets.below(f"{bucket}/out/_staging") == []
