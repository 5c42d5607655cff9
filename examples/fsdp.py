"""Fully sharded data parallel (``fully_shard``) over gloo, fed by a job on Ray. The feed's mesh is that of the model.

    python examples/fsdp.py --folder out --ranks 2

Kill it at any time and run it again, with another number of ranks if you like: it goes on from its last model, which is
saved whole, and the ranks read the batches that the first run would have read. ``out/rank-N.jsonl`` holds what each
step has read.
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
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import penstock as ps

BATCH, SAVE_EVERY = 32, 4


def training_flow() -> ps.Flow:
    flow = ps.Flow("fsdp", lanes=4)
    parts = []
    for start in range(0, 2000, 200):
        rows = list(range(start, start + 200))
        parts.append(pa.table({"row": rows, "x": [row / 1000 for row in rows], "y": [row / 500 + 1 for row in rows]}))
    flow.from_tables(parts).filter("row % 10 <> 0").shuffle(300, seed=7).feed(BATCH, room=4 * BATCH)
    return flow


def sharded(start: str, mesh: Any) -> torch.nn.Module:
    """The model, each rank with its part of every layer. ``start``: the one to go on from, or nothing."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    if start:
        model.load_state_dict(torch.load(start, weights_only=True))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def save(whole: dict[str, Any], reader: Any, folder: Path) -> None:
    """Bound before it is named, so that the feed can go on from every model that is."""
    path = folder / f"model-{reader.step}.pt"
    torch.save(whole, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)
    reader.commit(str(path))
    reader.flush(60)
    (folder / "last.new").write_text(str(path))
    os.replace(folder / "last.new", folder / "last")


def train(rank: int, ranks: int, feed: Any, folder: Path, start: str, pause: float) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    meeting = f"file://{folder}/meeting-{os.environ['PENSTOCK_EXAMPLE_RUN']}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    model = sharded(start, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with feed.reader(mesh=mesh, data="dp", timeout=120) as reader, (folder / f"rank-{rank}.jsonl").open("a") as log:
        for part in reader.iter_torch_batches(dtypes={"x": torch.float32, "y": torch.float32}):
            rows = torch.tensor(float(len(part["row"])))
            dist.all_reduce(rows)
            optimizer.zero_grad()
            errors = model(part["x"][:, None])[:, 0] - part["y"]
            # gradients are the mean over ranks: undo that, and divide by the rows of the global batch
            ((errors**2).sum() * ranks / rows).backward()
            optimizer.step()
            log.write(json.dumps({"step": reader.step - 1, "ranks": ranks, "rows": part["row"].tolist()}) + "\n")
            log.flush()
            if reader.step % SAVE_EVERY == 0:  # all ranks give their parts, rank 0 gets the whole
                options = StateDictOptions(full_state_dict=True, cpu_offload=True)
                whole = get_model_state_dict(model, options=options)
                if rank == 0:
                    save(whole, reader, folder)
            time.sleep(pause)
    dist.destroy_process_group()


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
