"""Accelerate over gloo, fed by a job on Ray. ``prepare`` gives the reader's loader back as it is: its batches are this
rank's slices already, and nothing divides or reorders them a second time. The place in the feed is in Accelerate's own
checkpoints, as the reader is registered for them.

    python examples/accelerate_ddp.py --folder out --ranks 2

Kill it at any time and run it again, with another number of ranks if you like: it goes on from its last checkpoint, and
the ranks read the batches that the first run would have read. ``out/rank-N.jsonl`` holds what each step has read.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from accelerate import Accelerator

import penstock as ps

BATCH, SAVE_EVERY = 32, 4


def training_flow() -> ps.Flow:
    flow = ps.Flow("accelerate", lanes=4)
    parts = []
    for start in range(0, 2000, 200):
        rows = list(range(start, start + 200))
        parts.append(pa.table({"row": rows, "x": [row / 1000 for row in rows], "y": [row / 500 + 1 for row in rows]}))
    flow.from_tables(parts).filter("row % 10 <> 0").shuffle(300, seed=7).feed(BATCH, room=4 * BATCH)
    return flow


def save(accelerator: Accelerator, reader: Any, folder: Path) -> None:
    """Bound before it is named, so that the feed can go on from every checkpoint that is."""
    path = folder / "models" / f"step-{reader.step}"
    accelerator.save_state(str(path))
    accelerator.wait_for_everyone()  # each rank has written its part
    if accelerator.is_main_process:
        reader.commit(str(path))
        reader.flush(60)
        (folder / "last.new").write_text(str(path))
        os.replace(folder / "last.new", folder / "last")


def train(rank: int, ranks: int, feed: Any, folder: Path, start: str, pause: float) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # what `accelerate launch` sets, but that ranks meet at a file, not at a port
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ.update(place, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    meeting = f"file://{folder}/meeting-{os.environ['PENSTOCK_EXAMPLE_RUN']}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(1)
    plain = torch.nn.Linear(1, 1)
    with feed.reader(timeout=120) as reader, (folder / f"rank-{rank}.jsonl").open("a") as log:
        # Accelerate wraps only loaders of torch, so nobody fetches ahead of the model
        slices = reader.loader(fetches_ahead=False, dtypes={"x": torch.float32, "y": torch.float32})
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
        model, optimizer, loader = accelerator.prepare(plain, optimizer, slices)
        accelerator.register_for_checkpointing(reader)
        if start:
            accelerator.load_state(start)
        for part in loader:
            rows = accelerator.reduce(torch.tensor(float(len(part["row"]))))
            optimizer.zero_grad()
            errors = model(part["x"][:, None])[:, 0] - part["y"]
            # DDP takes the mean over ranks: undo that, and divide by the rows of the global batch
            accelerator.backward((errors**2).sum() * ranks / rows)
            optimizer.step()
            log.write(json.dumps({"step": reader.step - 1, "ranks": ranks, "rows": part["row"].tolist()}) + "\n")
            log.flush()
            if reader.step % SAVE_EVERY == 0:
                save(accelerator, reader, folder)
            time.sleep(pause)
    accelerator.end_training()  # the group of processes, too


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a step takes besides")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    start = (folder / "last").read_text() if (folder / "last").exists() else ""
    checkpoints = ps.Checkpoints(folder / "state", every="200ms")
    job = ps.run(training_flow(), parallelism=2, checkpoints=checkpoints, **({"resume_model": start} if start else {}))
    feed = job.feed().resume(start) if start else job.feed()
    os.environ["PENSTOCK_EXAMPLE_RUN"] = uuid.uuid4().hex
    arguments = (options.ranks, feed, folder, start, options.pause)
    processes.spawn(train, arguments, nprocs=options.ranks)
    job.wait(120)
    print(f"trained by {options.ranks} ranks")


if __name__ == "__main__":
    main()
