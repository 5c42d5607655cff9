"""The script's side of a lease: when Spark begins, and how many partitions it is asked for at a time. No Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import ray
from pyarrow import parquet

from penstock.actors.spark import lease as module
from penstock.actors.spark.lease import GROUP_BYTES, LeasedSource, Pull, next_size
from penstock.actors.spark.leased_blocks import BlockHolder, Parcel

PARTITIONS = 15
SCHEMA = pa.schema({"n": pa.int64()})
DEADLINE = 120.0


def test_groups_grow_while_they_are_small() -> None:
    assert next_size(4, 4, 1000) == 8
    assert next_size(4, 4, GROUP_BYTES // 2) == 8
    assert next_size(4, 4, GROUP_BYTES // 2 + 1) == 4, "the next one would be larger than a group shall be"
    assert next_size(4, 2, 1000) == 4, "it was the last one"


class LateHolder(BlockHolder):
    """A holder whose process is up when Spark has written the first group, and not before."""

    def __init__(self, schema: pa.Schema, credit: int, written: str) -> None:
        deadline = time.monotonic() + DEADLINE
        while not Path(written).exists():
            assert time.monotonic() < deadline, "Spark was not asked before the holder answered"
            time.sleep(0.02)
        super().__init__(schema, credit)


class Written:
    """An evaluation that loses nothing, and whose partitions are files."""

    keeps_rows, partitions = False, PARTITIONS

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.asked: list[list[int]] = []

    def begin(self) -> None:
        """Nothing is shuffled."""

    def is_whole(self) -> bool:
        return True

    def compute(self, partitions: Sequence[int]) -> list[Parcel]:
        self.asked.append(list(partitions))
        found = []
        for each in partitions:
            path = self._folder / f"{each}.parquet"
            parquet.write_table(pa.table({"n": [each]}), path)
            found.append(Parcel(each, str(path), rows=1))
        (self._folder / "written").touch()
        return found


@pytest.mark.ray
def test_spark_computes_the_first_group_while_the_holder_starts_and_larger_ones_then(
    tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(tmp_path)

    def late(schema: pa.Schema, credit: int) -> Any:
        groups = {"pulls": 1, "credit": 1, "readers": 8}
        kind = ray.remote(num_cpus=0, concurrency_groups=groups)(LateHolder)
        return kind.remote(schema, credit, str(tmp_path / "written"))

    monkeypatch.setattr(module, "start_holder", late)
    monkeypatch.setattr(module, "watched", lambda _frame, call, _work: call())
    monkeypatch.setattr(module, "_planned", lambda *_: Pull(written, written.compute))  # type: ignore[arg-type]
    context = SimpleNamespace(defaultParallelism=1)
    frame = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))
    lease = module.Lease(frame, SCHEMA, "rows", group=2)
    try:
        source = LeasedSource(SCHEMA, lease)
        rows = [row for split in source.splits() for batch in split.open(0) for row in batch.column("n").to_pylist()]
        lease.wait_released(DEADLINE)
    finally:
        lease.close()
    assert rows == list(range(PARTITIONS))
    assert written.asked == [[0, 1], [2, 3, 4, 5], [*range(6, 14)], [14]]
