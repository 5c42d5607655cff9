"""A whole job in a bucket, inputs, outputs and checkpoints: killed where it hurts, and exact in the end."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from textwrap import dedent

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

import penstock as ps
from penstock.engine.core.errors import ConfigurationError, DataError
from penstock.engine.files.paths import resolve
from penstock.jobs.verify_order import verify_order
from support.bucket_twin import BucketTwin
from support.feeds import batches_of, read_group

PATIENCE = 60.0
FILES, ROWS = 40, 25

SCRIPT = """
    import sys
    import penstock as ps
    bucket, rate = sys.argv[1], float(sys.argv[2])
    flow = ps.Flow("daily", lanes=4)
    flow.read_parquet(f"s3://{bucket}/in", name="rows", rate=rate).write_parquet(f"s3://{bucket}/out", name="out")
    job = ps.run_local(flow, checkpoints=ps.Checkpoints(f"s3://{bucket}/state", every="30ms"), audit="content")
    print(job.wait(60).audit())
"""


def fill(buckets: BucketTwin, bucket: str, files: int = FILES) -> None:
    for number in range(files):
        buckets.put(f"{bucket}/in/{number:03d}.parquet", numbers(number * ROWS))


def numbers(first: int) -> bytes:
    file = io.BytesIO()
    table = pa.table({"n": pa.array(range(100_000 + first, 100_000 + first + ROWS), pa.int64())})
    parquet.write_table(table, file, use_dictionary=False, compression="none", write_statistics=False)
    return file.getvalue()


def read(bucket: str) -> list[int]:
    filesystem, folder = resolve(f"s3://{bucket}/out")
    found = dataset.dataset(folder, format="parquet", filesystem=filesystem).to_table()
    return sorted(number - 100_000 for number in found["n"].to_pylist())


def start(bucket: str, rate: float) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", dedent(SCRIPT), bucket, str(rate)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


Moment = tuple[str, str, bool]
"""A method, a part of the key, and whether it is carried out; the process dies at the second such request."""
MOMENTS: tuple[Moment, ...] = (
    ("PUT", "/_staging/", True),  # what it has prepared is there, and in no log
    ("PUT", "/state/daily/log/", False),  # the entry never came
    ("PUT", "/state/daily/log/", True),  # it came, and nobody was told: what it lists is not visible
    ("PUT", "/out/part-", False),  # one file is visible, the next is not
    ("PUT", "/out/part-", True),
)


def killing(process: Callable[[], subprocess.Popen[str]], moment: Moment) -> Callable[[str, str, bool], bool]:
    method, part, after = moment
    seen: list[str] = []

    def fault(asked: str, key: str, done: bool) -> bool:
        if (asked, done) != (method, after) or part not in f"/{key}":
            return False
        seen.append(key)
        if len(seen) < 2:
            return False
        os.kill(process().pid, signal.SIGKILL)
        return True

    return fault


def test_job_that_is_killed_at_the_worst_moments_is_exact(buckets: BucketTwin, bucket: str) -> None:
    fill(buckets, bucket)
    for moment in MOMENTS:
        running: list[subprocess.Popen[str]] = []
        buckets.faults = killing(lambda running=running: running[0], moment)
        running.append(start(bucket, rate=400.0))
        told, _ = running[0].communicate(timeout=PATIENCE)
        assert running[0].returncode == -signal.SIGKILL, told
        buckets.calm()
        if buckets.below(f"{bucket}/out/part-"):
            rows = read(bucket)
            assert len(rows) == len(set(rows)), "no row is ever visible twice"
    assert len(read(bucket)) < FILES * ROWS
    last = start(bucket, rate=0.0)
    told, _ = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, told
    assert read(bucket) == list(range(FILES * ROWS))
    assert f"proven ({FILES * ROWS:,} rows read back)" in told
    assert buckets.below(f"{bucket}/out/_staging") == []
    assert not buckets.uploads


def stopped_half_way(bucket: str) -> None:
    with ps.run_local(flow(bucket, 400.0), checkpoints=ps.Checkpoints(f"s3://{bucket}/state", every="30ms")) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)


def flow(bucket: str, rate: float = 0.0) -> ps.Flow:
    made = ps.Flow("daily", lanes=4)
    made.read_parquet(f"s3://{bucket}/in", name="rows", rate=rate).write_parquet(f"s3://{bucket}/out", name="out")
    return made


def go_on(bucket: str) -> ps.Job:
    return ps.run_local(flow(bucket), checkpoints=f"s3://{bucket}/state").wait(PATIENCE)


def test_object_that_was_exchanged_while_the_job_was_away_is_refused_by_name(buckets: BucketTwin, bucket: str) -> None:
    fill(buckets, bucket)
    stopped_half_way(bucket)
    before = buckets.objects[f"{bucket}/in/039.parquet"]
    buckets.put(f"{bucket}/in/039.parquet", numbers(5_000))
    buckets.put(f"{bucket}/in/040.parquet", numbers(6_000))
    with pytest.raises(ConfigurationError, match=r"in/039\.parquet is another object, of .*: its ETag was "):
        go_on(bucket)
    buckets.now += 60  # written again, with the same bytes: the same object
    buckets.put(f"{bucket}/in/039.parquet", before.data)
    job = go_on(bucket)
    buckets.now -= 60
    assert "040.parquet" in str(job.audit())
    assert read(bucket) == list(range(FILES * ROWS))


def test_object_that_is_exchanged_while_the_job_runs_ends_it_by_name(buckets: BucketTwin, bucket: str) -> None:
    fill(buckets, bucket)
    with ps.run_local(flow(bucket, 400.0), checkpoints=f"s3://{bucket}/state") as job:
        buckets.put(f"{bucket}/in/039.parquet", numbers(5_000))
        with pytest.raises(DataError, match=r"in/039\.parquet is another object than when the job was planned"):
            job.wait(PATIENCE)


def test_job_survives_answers_that_get_lost(buckets: BucketTwin, bucket: str) -> None:
    """After the store has done what was asked: log entries and owners are known for one's own all the same."""
    fill(buckets, bucket, files=12)
    count = iter(range(1, 1_000_000))
    buckets.faults = lambda method, key, done: done and method == "PUT" and next(count) % 3 == 1
    ps.run_local(flow(bucket, 1000.0), checkpoints=ps.Checkpoints(f"s3://{bucket}/state", every="30ms")).wait(PATIENCE)
    again = [key.split("/")[1] for method, key, status in buckets.requests if (method, status) == ("PUT", 412)]
    buckets.calm()
    assert "state" in again
    assert read(bucket) == list(range(12 * ROWS))


def feeding(bucket: str) -> ps.Flow:
    made = ps.Flow("feeding", lanes=4)
    made.read_parquet(f"gs://{bucket}/in", name="rows").filter("n % 3 <> 0").shuffle(64, seed=3).feed(10, room=20)
    return made


def test_feed_goes_on_and_is_replayed_from_checkpoints_in_a_bucket(buckets: BucketTwin, bucket: str) -> None:
    fill(buckets, bucket)
    whole = batches_of(feeding(bucket))
    kept = ps.Checkpoints(f"gs://{bucket}/state", every=None, retained=9, alignment="aligned")
    found: list[list[object]] = []
    for ranks in (1, 2, 4):
        job = ps.run_local(feeding(bucket), checkpoints=kept)
        found += read_group(job.feed(), ranks, start=len(found), most=5, close=False)
        job.checkpoint(PATIENCE)
        job.shutdown()
    assert found == whole[:15]
    again = ps.replay(feeding(bucket), checkpoints=kept, step=14, trace=False)
    assert (again.rows.to_pylist(), again.verified, again.start[:11]) == (found[14], True, "checkpoint ")
    assert verify_order(f"gs://{bucket}/state", f"s3://{bucket}/state").same


def test_script_that_reads_an_output_last_ends_as_it_should(buckets: BucketTwin, bucket: str) -> None:
    """Threads of Arrow's called Python for the bytes while it ended: half of such scripts were aborted."""
    fill(buckets, bucket)
    script = dedent(SCRIPT).replace("/out", "/out/{at}").replace("/state", "/state/{at}")
    script += 'print(job.output("out").to_table().num_rows, flush=True)\n'
    for at in range(6):
        words = [sys.executable, "-c", script.replace("{at}", str(at)), bucket, "0"]
        run = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (run.returncode, run.stdout.splitlines()[-1]) == (0, str(FILES * ROWS)), run.stderr


def test_splits_that_a_caller_adds_lie_with_the_checkpoints(buckets: BucketTwin, bucket: str) -> None:
    """And so may be objects of the caller's own."""
    schema = pa.schema([("n", pa.int64())])
    tables = [pa.table({"n": range(100_000 + at * 50_000, 100_000 + (at + 1) * 50_000)}, schema) for at in range(2)]
    buckets.put(f"{bucket}/mine.parquet", numbers(100_000))

    def job() -> ps.Job:
        made = ps.Flow("fed", lanes=4)
        made.from_split_sets(schema, name="in").write_parquet(f"s3://{bucket}/out")
        return ps.run_local(made, checkpoints=ps.Checkpoints(f"s3://{bucket}/state", every="50ms"))

    with job() as first:
        first.add_splits({"in": tables[0]})
        first.request_barrier().wait(PATIENCE)
        first.add_splits({"in": tables[1]})
    with job() as second:
        second.add_splits({"in": f"s3://{bucket}/mine.parquet"})
        second.no_more_splits()
        second.wait(PATIENCE)
        assert second.audit().clean
    assert read(bucket) == list(range(100_000 + ROWS))
