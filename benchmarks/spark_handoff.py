"""Spark's partitions into the hands of a reader: lease and stage against ``ray.data.from_spark`` and against Parquet.

Run it as ``python benchmarks/spark_handoff.py``; the result goes to ``benchmarks/results/spark_handoff.json``. One
Spark session on Ray, one frame (two integers, a string, a double), and one actor that adds up a column, partition by
partition. All four ways run in turn, so that each row of the table compares runs of the same minutes.

- *MB/s*: Arrow bytes of the frame over the seconds from the call until the actor has read the last partition.
- *memory*: the most bytes of data that were held at a time, in Ray's object store and in the block managers of Spark's
  executors, beyond what was there before. The lease drops what was read, as a job does whose checkpoints have passed
  it; a Ray Dataset made by ``from_spark`` keeps its blocks, and Spark keeps its copy until it is told to let go.
- *from_spark* is given its best setting: fetch tasks that wait for a processor, a few at a time.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness import Row, make_row, report, results_folder, sized

ROWS = sized(4_000_000, 40_000)
PARTITIONS = sized(32, 4)
GROUP = 4
ROUNDS = sized(5, 1)
AIM_SPEED, AIM_MEMORY = 2.0, 2.0
_SAMPLE_SECONDS = 0.05


class Reader:
    """The actor that takes the rows."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, table: pa.Table) -> int:
        """A partition that came as an argument."""
        self.total += pc.sum(table["id"]).as_py() or 0
        return self.total

    def add_split(self, split: Any) -> int:
        """A partition that the actor reads itself."""
        for batch in split.open(0):
            self.total += pc.sum(batch.column("id")).as_py() or 0
        return self.total

    def add_file(self, path: str) -> int:
        """A Parquet file."""
        return self.add(pq.read_table(path, columns=None))


@dataclass
class Runs:
    """The results of one way."""

    speed: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


class Meter:
    """Bytes of data in the object store and in Spark's block managers."""

    def __init__(self, spark: Any) -> None:
        import ray

        self._context = spark.sparkContext._jsc.sc()
        self._node = next(node for node in ray.nodes() if node["Alive"])

    def now(self) -> int:
        """The bytes at this moment."""
        from ray._private.internal_api import node_stats

        stats = node_stats(self._node["NodeManagerAddress"], self._node["NodeManagerPort"], include_memory_info=False)
        status = self._context.getExecutorMemoryStatus().valuesIterator()
        used = 0
        while status.hasNext():
            pair = status.next()
            used += int(pair._1()) - int(pair._2())
        return int(stats.store_stats.object_store_bytes_used) + used

    @contextmanager
    def peak(self, into: list[float]) -> Iterator[None]:
        """Appends the most bytes above the level before, in MB."""
        before, most, over = self.now(), [0], threading.Event()

        def sample() -> None:
            while not over.wait(_SAMPLE_SECONDS):
                most[0] = max(most[0], self.now() - before)

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            into.append(max(most[0], 1) / 1e6)


def frame_of(spark: Any) -> Any:
    return spark.range(0, ROWS, 1, PARTITIONS).selectExpr(
        "id", "id % 1000 AS key", "cast(id AS string) AS text", "id / 7 AS value"
    )


def by_lease(spark: Any, reader: Any, _folder: Path) -> int:
    import ray

    from penstock.actors.spark.lease import Lease, LeasedSource
    from penstock.actors.spark.types import arrow_schema

    frame = frame_of(spark)
    lease = Lease(frame, arrow_schema(frame), "bench", GROUP)
    total = 0
    try:
        for split in LeasedSource(arrow_schema(frame), lease).splits():
            total = ray.get(reader.add_split.remote(split))
            lease.holder.drop.remote([split.partition])
        lease.wait_released(60)
    finally:
        lease.close()
    return total


def by_stage(spark: Any, reader: Any, folder: Path) -> int:
    import ray

    from penstock.actors.spark.stage import stage
    from penstock.actors.spark.types import arrow_schema

    frame = frame_of(spark)
    staged = stage(frame, arrow_schema(frame), str(folder / "stage"), "bench", "rows")
    totals = [ray.get(reader.add_split.remote(split)) for split in staged.splits()]
    shutil.rmtree(folder / "stage")
    return int(totals[-1])


def by_from_spark(spark: Any, reader: Any, _folder: Path) -> int:
    import ray
    import ray.data
    from raydp.spark import release_spark_recoverable

    frame = frame_of(spark)
    dataset = ray.data.from_spark(frame)
    totals = [ray.get(reader.add.remote(block)) for block in dataset.to_arrow_refs()]
    release_spark_recoverable(frame)
    return int(totals[-1])


def by_parquet(spark: Any, reader: Any, folder: Path) -> int:
    import ray

    frame_of(spark).write.mode("overwrite").option("compression", "uncompressed").parquet(
        f"file://{folder / 'parquet'}"
    )
    totals = [ray.get(reader.add_file.remote(str(path))) for path in sorted((folder / "parquet").glob("*.parquet"))]
    return int(totals[-1])


WAYS: dict[str, Callable[[Any, Any, Path], int]] = {
    "lease": by_lease,
    "ray.data.from_spark": by_from_spark,
    "stage": by_stage,
    "Parquet": by_parquet,
}


def measure(spark: Any, folder: Path, rounds: int = ROUNDS) -> dict[str, Runs]:
    """All ways in turn, after one warm-up each."""
    import ray

    be_quiet()
    meter, kind, runs = Meter(spark), ray.remote(num_cpus=0)(Reader), {name: Runs() for name in WAYS}
    size = sum(batch.nbytes for batch in _sample())
    for turn in range(rounds + 1):
        for name, way in WAYS.items():
            reader, kept = kind.remote(), Runs()
            ray.get(reader.add.remote(pa.table({"id": [0]})))  # it has started
            with meter.peak(kept.memory):
                started = time.perf_counter()
                total = way(spark, reader, folder)
                kept.speed.append(size / 1e6 / (time.perf_counter() - started))
            assert total == ROWS * (ROWS - 1) // 2, f"{name} has lost rows, or read them twice"
            ray.kill(reader)
            if turn:
                runs[name].speed += kept.speed
                runs[name].memory += kept.memory
    return runs


def be_quiet() -> None:
    """No progress bars, and no words about what RayDP still calls."""
    import ray.data

    warnings.filterwarnings("ignore", category=UserWarning)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def _sample() -> Iterator[pa.RecordBatch]:
    """The frame's rows as Arrow, for their size."""
    import numpy as np

    ids = pa.array(np.arange(ROWS))
    yield pa.RecordBatch.from_pydict(
        {"id": ids, "key": ids, "text": ids.cast(pa.string()), "value": ids.cast("double")}
    )


def rows_of(runs: dict[str, Runs]) -> list[Row]:
    """The table's rows."""
    rows = []
    for ours in ("lease", "stage"):
        for theirs in ("ray.data.from_spark", "Parquet"):
            first, second = runs[ours], runs[theirs]
            speed = AIM_SPEED if theirs == "ray.data.from_spark" else 1.0
            memory = AIM_MEMORY if theirs == "ray.data.from_spark" else 0.0
            rows.append(make_row(f"{ours}: speed", theirs, (first.speed, second.speed), "MB/s", speed, True))
            rows.append(make_row(f"{ours}: memory", theirs, (first.memory, second.memory), "MB", memory, False))
    return rows


def main() -> None:
    import penstock as ps

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    warnings.filterwarnings("ignore", category=UserWarning)
    settings = {"spark.ray.raydp_recoverable_fetch.task.resource.CPU": "1"}
    with tempfile.TemporaryDirectory() as folder, ps.spark.session("bench", cores=2, extra=settings) as spark:
        runs = measure(spark, Path(folder), rounds)
    report(rows_of(runs), results_folder() / "spark_handoff.json")


if __name__ == "__main__":
    main()
