"""Ray Data into a training loop: the same filter, function and batches, by ``iter_torch_batches``."""

from __future__ import annotations

import ray
from feed_loop import COLUMNS, Batches, in_euros, train, warm_torch
from ray.data.expressions import col, lit
from ray_cluster import join_ray
from side import Answer, serve, settings


def main() -> None:
    asked = settings()
    join_ray()
    ray.data.DataContext.get_current().enable_progress_bars = False
    warm_torch()

    def batches() -> Batches:
        bids = ray.data.read_parquet(asked["folder"], columns=list(COLUMNS)).filter(expr=col("price") > lit(1000))
        bids = bids.map_batches(in_euros, batch_format="pyarrow")
        yield from bids.iter_torch_batches(batch_size=asked["batch"])

    def run() -> Answer:
        return train(batches, asked["checked"])

    serve(run, "ray", "pyarrow", "torch")


if __name__ == "__main__":
    main()
