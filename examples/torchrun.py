"""Workers of torchrun, which come and go while a job on Ray feeds them.

    python examples/torchrun.py job --folder out
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:29400 examples/torchrun.py train --folder out

Start the last line again for another node, kill one, start it again: torchrun lets all workers begin anew, as many as
there are then, and each goes on from the last model. Nobody tells a reader its rank: torchrun has, by the environment.
(Without that variable a second node finds no store in torch 2.8 and later: the first one does not tell it where it is.)
``out/steps-<process>.jsonl`` holds what each worker has read.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist

import penstock as ps

BATCH, SAVE_EVERY = 32, 4


def training_flow() -> ps.Flow:
    flow = ps.Flow("torchrun", lanes=4)
    parts = []
    for start in range(0, 2000, 200):
        rows = list(range(start, start + 200))
        parts.append(pa.table({"row": rows, "x": [row / 1000 for row in rows], "y": [row / 500 + 1 for row in rows]}))
    # workers begin anew at a model: the feed keeps what came behind it
    flow.from_tables(parts).filter("row % 10 <> 0").shuffle(300, seed=7).feed(BATCH, keep=8 * SAVE_EVERY * BATCH)
    return flow


def job(folder: Path) -> None:
    running = ps.run(training_flow(), parallelism=2, checkpoints=ps.Checkpoints(folder / "state", every="200ms"))
    (folder / "feed.new").write_bytes(pickle.dumps(running.feed()))
    os.replace(folder / "feed.new", folder / "feed")
    running.wait()
    print("all was read")


def train(folder: Path, pause: float) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    plain, feed = torch.nn.Linear(1, 1), pickle.loads((folder / "feed").read_bytes())
    start = [(folder / "last").read_text() if (folder / "last").exists() else ""]
    dist.broadcast_object_list(start)  # all must go on from the same
    if start[0]:
        plain.load_state_dict(torch.load(start[0], weights_only=True))
        feed = feed.resume(start[0])
    model = torch.nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with feed.reader(timeout=120) as reader, (folder / f"steps-{os.getpid()}.jsonl").open("a") as log:
        for part in reader.iter_torch_batches(dtypes={"x": torch.float32, "y": torch.float32}):
            rows = torch.tensor(float(len(part["row"])))
            dist.all_reduce(rows)
            optimizer.zero_grad()
            errors = model(part["x"][:, None])[:, 0] - part["y"]
            ((errors**2).sum() * reader.world_size / rows).backward()
            optimizer.step()
            line = {"step": reader.step - 1, "rank": reader.rank, "ranks": reader.world_size}
            log.write(json.dumps({**line, "rows": part["row"].tolist()}) + "\n")
            log.flush()
            if reader.rank == 0 and reader.step % SAVE_EVERY == 0:
                save(plain, reader, folder)
            time.sleep(pause)
    dist.destroy_process_group()


def save(model: torch.nn.Module, reader: Any, folder: Path) -> None:
    """A model that is bound before anybody may go on from it."""
    path = folder / f"model-{reader.step}-of-{reader.world_size}.pt"
    torch.save(model.state_dict(), path)
    reader.commit(str(path))
    reader.flush(60)
    (folder / "last.new").write_text(str(path))
    os.replace(folder / "last.new", folder / "last")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["job", "train"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a step takes besides")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if options.what == "job":
        job(folder)
    else:
        train(folder, options.pause)


if __name__ == "__main__":
    main()
