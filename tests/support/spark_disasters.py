"""Runs Spark on Ray in a process of its own, kills executors amid both hand-offs, and leaves ``facts.json`` in FOLDER.

    python spark_disasters.py FOLDER

1. A job leases a frame; Spark is stopped when it is released, in the middle of the job, and then a task is killed.
2. An executor is killed amid a lease, another one amid a lease of rows that were shuffled, and one amid a stage. Each
   costs Spark half a minute; ``spark_disasters_more.py`` has the others.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

ROWS, PARTITIONS = 6_000, 12
DEADLINE = 200.0


def slowed(frame: Any, folder: Path) -> Any:
    """The frame, slower: a third of a second a partition, and a file that says that it was computed."""

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        (folder / f"{context.partitionId()}-{context.taskAttemptId()}-{os.getppid()}").touch()
        time.sleep(0.3)
        yield from batches

    folder.mkdir()
    return frame.mapInArrow(slowly, "id long, key long")


def frame_of(spark: Any, folder: Path, *, shuffled: bool = False) -> Any:
    """A slow frame."""
    frame = spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id", "id % 5 AS key")
    if shuffled:  # in no order that Spark knows
        frame = frame.rdd.repartition(PARTITIONS).toDF("id long, key long")
    return slowed(frame, folder)


def executor_of(folder: Path) -> int:
    """The JVM whose Python worker has written the newest file: its parent is PySpark's daemon, whose parent is it."""
    newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    daemon = newest.name.rsplit("-", 1)[1]
    return int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def kill_amid(folder: Path, computed: int, killed: list[int]) -> threading.Thread:
    """A thread that kills the executor once so many partitions were computed."""

    def wait_and_kill() -> None:
        until(lambda: len(list(folder.iterdir())) >= computed, "too few partitions were computed")
        killed.append(executor_of(folder))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=wait_and_kill)
    thread.start()
    return thread


def ids_of(source: Any) -> list[int]:
    return [row for split in source.splits() for batch in split.open(0) for row in batch.column("id").to_pylist()]


def lease_and_kill(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    from penstock.actors.spark.lease import lease
    from penstock.actors.spark_bridge import open_frame

    killed: list[int] = []
    frame = frame_of(spark, folder)
    killer = kill_amid(folder, 5, killed)
    leased = lease(frame, open_frame(frame).schema, "rows", group=3)
    facts["leased"] = ids_of(leased) == list(range(ROWS))
    facts["partitions"] = sorted({int(path.name.split("-")[0]) for path in folder.iterdir()})
    assert leased.lease is not None
    leased.lease.wait_released(DEADLINE)
    killer.join()
    leased.lease.close()


def what_is_read(frame: Any, group: int) -> str:
    """How many rows come of a lease of the frame, or why it has ended."""
    import penstock as ps
    from penstock.actors.spark.lease import lease
    from penstock.actors.spark_bridge import open_frame

    leased = lease(frame, open_frame(frame).schema, "rows", group=group)
    try:
        found = ids_of(leased)
        said = f"read to its end: {len(set(found))} ids in {len(found)} rows"
    except ps.errors.ConfigurationError as error:
        said = str(error)
    assert leased.lease is not None
    leased.lease.close()
    return said


def lease_of_a_shuffle_with_a_kill(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    """The executor dies when the first group was read and the second one is computed, and what was shuffled with it."""
    killed: list[int] = []
    frame = frame_of(spark, folder / "shuffled", shuffled=True)
    killer = kill_amid(folder / "shuffled", 5, killed)
    facts["shuffled"] = what_is_read(frame, 4)
    killer.join()


def stage_with_a_kill(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    from penstock.actors.spark_bridge import open_frame
    from penstock.engine.flow.handoff import Destination

    killed: list[int] = []
    frame = frame_of(spark, folder / "stage")
    killer = kill_amid(folder / "stage", 4, killed)
    staged = open_frame(frame).handed_over("rows", Destination("staged", str(folder / "checkpoints")))
    killer.join()
    facts["staged"] = ids_of(staged) == list(range(ROWS))
    facts["staged_files"] = len(os.listdir(staged.place))
    facts["computed"] = len(list((folder / "stage").iterdir()))


def run_leasing_job(folder: Path, facts: dict[str, Any]) -> None:
    """Its rows come at a pace, so that Spark stops and a task dies while it runs."""
    import penstock as ps

    refused = ps.Flow("refused")
    settings = ps.Checkpoints(folder / "state", every="0.5s", retention="never")
    with ps.spark.session("disasters", cores=1, brief=True) as spark:
        lease_and_kill(spark, folder / "lease", facts)
        lease_of_a_shuffle_with_a_kill(spark, folder, facts)
        stage_with_a_kill(spark, folder, facts)
        frame = spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id", "id % 5 AS key")
        refused.from_spark(frame, handoff="lease").write_parquet(folder / "refused")
        try:
            ps.run(refused, checkpoints=folder / "kept")
        except ps.errors.ConfigurationError as error:
            facts["refused"] = str(error)
        flow = ps.Flow("leasing")
        flow.from_spark(frame, handoff="lease", name="rows", rate=150.0).write_parquet(folder / "out")
        job = ps.run(flow, checkpoints=settings)
        job.wait_spark_released(DEADLINE)
    status = job.wait_until(lambda status: status.state == "running", DEADLINE)  # Spark may have stopped before it ran
    facts["running_without_spark"] = status.state == "running" and job.spark_released
    job.checkpoint(DEADLINE)
    job.kill_task(job.tasks()[0])
    job.wait(DEADLINE)
    facts["restarts"] = job.status().restarts
    facts["exact"] = sorted(job.output().to_table()["id"].to_pylist()) == list(range(ROWS))
    dataset = job.to_ray_dataset()
    facts["dataset"] = dataset.count()
    back = ps.Flow("back")
    back.from_ray_dataset(dataset, name="rows").write_parquet(folder / "back")
    ps.run(back).wait(DEADLINE)
    staged = ps.Flow("staged-back")
    staged.from_ray_dataset(dataset, name="rows").write_parquet(folder / "staged-back")
    with ps.run(staged, checkpoints=folder / "state") as again:
        again.wait(DEADLINE)
        facts["staged_dataset"] = "staged:" in again.plan.description
    facts["back"] = [sorted(one.output().to_table()["id"].to_pylist()) == list(range(ROWS)) for one in (again,)]


def main() -> None:
    folder = Path(sys.argv[1])
    facts: dict[str, Any] = {}
    run_leasing_job(folder, facts)
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
