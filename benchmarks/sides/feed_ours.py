"""Our feed to a training loop: a new job on a warm cluster from ``ps.run`` to the last batch."""

from __future__ import annotations

from feed_loop import COLUMNS, SCHEMA, Batches, in_euros, train, warm_torch
from ray_cluster import join_ray
from side import Answer, serve, settings

import penstock as ps


def main() -> None:
    asked = settings()
    join_ray()
    warm_torch()

    def batches() -> Batches:
        flow = ps.Flow("feed")
        bids = flow.read_parquet(asked["folder"], columns=list(COLUMNS)).filter(ps.field("price") > 1000)
        bids.map_batches(in_euros, SCHEMA).feed(asked["batch"])
        with ps.run(flow, parallelism=2) as job, job.feed().reader(timeout=300) as reader:
            yield from reader.iter_torch_batches()

    def run() -> Answer:
        return train(batches, asked["checked"])

    serve(run, "penstock", "pyarrow", "ray", "torch")


if __name__ == "__main__":
    main()
