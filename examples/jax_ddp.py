"""A JAX job of several processes on CPUs, fed by a job on Ray. Each process gives its slice as its part of arrays that
are divided among all devices, so a loss is that of the global batch.

    python examples/jax_ddp.py --folder out --ranks 2

Kill it at any time and run it again, with another number of ranks if you like (2, 4 or 8: all have equal parts of a
batch): it goes on from its last model, and the ranks read the batches that the first run would have read.
``out/rank-N.jsonl`` holds what each step has read.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa

import penstock as ps

BATCH, SAVE_EVERY = 32, 4


def training_flow() -> ps.Flow:
    flow = ps.Flow("jax", lanes=4)
    parts = []
    for start in range(0, 2000, 200):
        rows = list(range(start, start + 200))
        parts.append(pa.table({"row": rows, "x": [row / 1000 for row in rows], "y": [row / 500 + 1 for row in rows]}))
    flow.from_tables(parts).filter("row % 10 <> 0").shuffle(300, seed=7).feed(BATCH, room=4 * BATCH)
    return flow


def loss(line: Any, x: Any, y: Any) -> Any:
    return jnp.mean((line["slope"] * x + line["start"] - y) ** 2)


@jax.jit
def learn(line: Any, x: Any, y: Any) -> Any:
    """One step down. The mean is over all ranks: JAX knows how the arrays are divided."""
    return jax.tree.map(lambda value, slope: value - 0.05 * slope, line, jax.grad(loss)(line, x, y))


def save(line: Any, reader: Any, folder: Path) -> None:
    """Bound before it is named, so that the feed can go on from every model that is."""
    path = folder / f"model-{reader.step}.npz"
    np.savez(path, **{name: np.asarray(value) for name, value in line.items()})
    reader.commit(str(path))
    reader.flush(60)
    (folder / "last.new").write_text(str(path))
    os.replace(folder / "last.new", folder / "last")


def train(rank: int, ranks: int, meeting: str, feed: Any, folder: Path, start: str, pause: float) -> None:
    jax.distributed.initialize(meeting, ranks, rank)
    mesh = jax.make_mesh((ranks,), ("dp",))
    divided = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("dp"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    saved = dict(np.load(start)) if start else {"slope": np.float32(0), "start": np.float32(0)}
    line = jax.device_put(saved, whole)
    with feed.reader(timeout=120) as reader, (folder / f"rank-{rank}.jsonl").open("a") as log:
        floats = {"x": "float32", "y": "float32"}
        for part in reader.iter_jax_batches(sharding=divided, dtypes=floats):
            line = learn(line, part["x"], part["y"])
            own = part["row"].addressable_shards[0].data.tolist()
            log.write(json.dumps({"step": reader.step - 1, "ranks": ranks, "rows": own}) + "\n")
            log.flush()
            if rank == 0 and reader.step % SAVE_EVERY == 0:
                save(line, reader, folder)
            time.sleep(pause)
    jax.distributed.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2, choices=(1, 2, 4, 8))
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a step takes besides")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    start = (folder / "last").read_text() if (folder / "last").exists() else ""
    checkpoints = ps.Checkpoints(folder / "state", every="200ms")
    job = ps.run(training_flow(), parallelism=2, checkpoints=checkpoints, **({"resume_model": start} if start else {}))
    feed = job.feed().resume(start) if start else job.feed()
    # JAX must not be imported by a fork, and the first rank holds the meeting
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        meeting = f"127.0.0.1:{found.getsockname()[1]}"
    start_new = multiprocessing.get_context("spawn").Process
    arguments = (options.ranks, meeting, feed, folder, start, options.pause)
    ranks = [start_new(target=train, args=(rank, *arguments)) for rank in range(options.ranks)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    if any(each.exitcode for each in ranks):
        raise SystemExit("a rank has failed")
    job.wait(120)
    print(f"trained by {options.ranks} ranks")


if __name__ == "__main__":
    main()
