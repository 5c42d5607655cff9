"""The executors that spark_disasters.py does not kill; leaves ``facts.json`` in FOLDER as well.

    python spark_disasters_more.py FOLDER

They die amid a lease that Python workers write, and amid leases and stages of rows that were kept, or shuffled in
another order each time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from support.spark_disasters import PARTITIONS, ROWS, ids_of, kill_amid, lease_and_kill, slowed, what_is_read


def lease_by_workers_with_a_kill(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    from penstock.actors.spark import lease as ways

    decided = ways.why_not
    ways.why_not = lambda *_: "a test says so"
    lease_and_kill(spark, folder / "lease by workers", facts)
    ways.why_not = decided


def kept_rows_of(spark: Any, folder: Path) -> Any:
    """A frame of rows that are kept, since their function gives others each time: divided in two, and put together."""

    def at_random(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import random

        for batch in batches:
            keys = pa.array([random.randrange(2) for _ in range(batch.num_rows)], pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column(0), keys], ["id", "key"])

    rows = spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id", "id % 5 AS key")
    kept = rows.mapInArrow(at_random, "id long, key long").cache()
    return slowed(kept.filter("key = 0").union(kept.filter("key = 1")), folder)


def lease_of_kept_rows_with_a_kill(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    """The executor dies, and what it kept, when the first half was read."""
    killed: list[int] = []
    frame = kept_rows_of(spark, folder / "kept_rows")
    killer = kill_amid(folder / "kept_rows", PARTITIONS, killed)
    facts["kept_rows"] = what_is_read(frame, 2)
    killer.join()
    spark.catalog.clearCache()


def stages_of_other_rows_with_a_kill(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    """The executor dies amid a stage, once with rows that come in another order each time and are shuffled, once with
    rows that are kept."""
    import penstock as ps
    from penstock.actors.spark_bridge import open_frame
    from penstock.engine.flow.handoff import Destination

    def in_any_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from random import SystemRandom

        for batch in batches:
            yield batch.take(pa.array(SystemRandom().sample(range(batch.num_rows), batch.num_rows)))

    rows = spark.range(0, ROWS, 1, 4).selectExpr("id", "id % 5 AS key").mapInArrow(in_any_order, "id long, key long")
    shuffled = rows.rdd.repartition(PARTITIONS).toDF("id long, key long")
    made = {"staged_shuffle": slowed(shuffled, folder / "staged_shuffle")}
    made["staged_kept"] = kept_rows_of(spark, folder / "staged_kept")
    for name, frame in made.items():
        killed: list[int] = []
        killer = kill_amid(folder / name, PARTITIONS // 2, killed)
        try:
            facts[name] = sorted(
                ids_of(open_frame(frame).handed_over("rows", Destination(name, str(folder / "stages"))))
            )
        except ps.errors.ConfigurationError as error:
            facts[name] = str(error)
        killer.join()
    spark.catalog.clearCache()


def main() -> None:
    import penstock as ps

    folder = Path(sys.argv[1])
    facts: dict[str, Any] = {}
    with ps.spark.session("disasters", cores=1, brief=True) as spark:
        lease_by_workers_with_a_kill(spark, folder, facts)
        lease_of_kept_rows_with_a_kill(spark, folder, facts)
        stages_of_other_rows_with_a_kill(spark, folder, facts)
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
