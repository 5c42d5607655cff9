"""Ray Data on a cluster with two CPUs: Parquet → filter → project → Parquet, with or without a group by.

Filter and projection are expressions and pushed into the read; the aggregation is its own hash shuffle, with as many
partitions as there are CPUs, which is the quickest of its settings here.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import ray
from ray.data.aggregate import Count, Max, Min, Sum
from ray.data.expressions import col, lit
from ray_cluster import join_ray
from side import Answer, digest, read_folder, serve, settings


def main() -> None:
    asked = settings()
    out = Path(asked["out"])
    join_ray()
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.default_hash_shuffle_parallelism = 2

    def run() -> Answer:
        shutil.rmtree(out, ignore_errors=True)
        started = time.perf_counter()
        bids = ray.data.read_parquet(asked["folder"], columns=["auction", "price"])
        bids = bids.filter(expr=col("price") > lit(1000)).with_column("euros", col("price") * lit(0.01))
        bids = bids.select_columns(["auction", "euros"])
        if asked["kind"] == "group":
            wanted = (Count(alias_name="n"), Min("euros", alias_name="least"), Max("euros", alias_name="most"))
            bids = bids.groupby("auction").aggregate(*wanted, Sum("euros", alias_name="total"))
        bids.write_parquet(str(out))
        seconds = time.perf_counter() - started
        rows = digest(read_folder(out))
        return {"seconds": seconds, "digest": rows, "rows": int(rows.split("-")[0])}

    serve(run, "ray", "pyarrow")


if __name__ == "__main__":
    main()
