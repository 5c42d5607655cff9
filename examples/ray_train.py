"""DistributedDataParallel under Ray Train, fed by a job on the same Ray cluster.

    python examples/ray_train.py --folder out --ranks 2

Kill a worker: Ray Train starts all of them anew, from the last checkpoint that was reported, while the job goes on.
Kill the script and run it again, with another number of ranks if you like: it goes on from that checkpoint too. Either
way the ranks read the batches that an undisturbed run would have read. ``out/rank-N.jsonl`` holds what each step has
read.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist

import penstock as ps

BATCH, SAVE_EVERY = 32, 4


def training_flow() -> ps.Flow:
    flow = ps.Flow("ray-train", lanes=4)
    parts = []
    for start in range(0, 2000, 200):
        rows = list(range(start, start + 200))
        parts.append(pa.table({"row": rows, "x": [row / 1000 for row in rows], "y": [row / 500 + 1 for row in rows]}))
    stream = flow.from_tables(parts).filter("row % 10 <> 0").shuffle(300, seed=7)
    # keep: rows for ranks that Ray Train starts anew while the job runs, from a model that it took note of a while ago
    stream.feed(BATCH, room=4 * BATCH, keep=5 * SAVE_EVERY * BATCH)
    return flow


def train(settings: dict[str, Any]) -> None:
    """One rank, in a worker of Ray Train."""
    world = ray.train.get_context()
    rank, ranks, feed = world.get_world_rank(), world.get_world_size(), settings["feed"]
    plain = torch.nn.Linear(1, 1)
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as saved:
            plain.load_state_dict(torch.load(Path(saved) / "model.pt", weights_only=True))
        feed = feed.resume(Path(checkpoint.path).name)
    model = ray.train.torch.prepare_model(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    log = (settings["folder"] / f"rank-{rank}.jsonl").open("a")
    with log, feed.reader(rank, ranks, timeout=120) as reader:
        for part in reader.iter_torch_batches(dtypes={"x": torch.float32, "y": torch.float32}):
            rows = torch.tensor(float(len(part["row"])))
            dist.all_reduce(rows)
            optimizer.zero_grad()
            errors = model(part["x"][:, None])[:, 0] - part["y"]
            # DDP takes the mean over ranks: undo that, and divide by the rows of the global batch
            loss = (errors**2).sum() * ranks / rows
            loss.backward()
            optimizer.step()
            line = {"step": reader.step - 1, "ranks": ranks, "process": os.getpid(), "rows": part["row"].tolist()}
            log.write(json.dumps(line) + "\n")
            log.flush()
            if reader.step % SAVE_EVERY == 0:
                report(rank, reader, plain, {"loss": loss.item()})
            time.sleep(settings["pause"])


def report(rank: int, reader: Any, model: torch.nn.Module, metrics: dict[str, float]) -> None:
    """All ranks report, the first one with the model. It is bound before Ray Train knows it, so that the feed can go on
    from every model that Ray Train may begin with."""
    name = f"step-{reader.step}"
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if rank == 0:
            reader.commit(name)
            torch.save(model.state_dict(), Path(folder) / "model.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
            reader.flush(60)
        ray.train.report(metrics, checkpoint=checkpoint, checkpoint_dir_name=name)


def last_model(run: Path) -> str:
    """The newest checkpoint that an earlier run has reported, by its name; "" if there is none."""
    if not (run / "checkpoint_manager_snapshot.json").exists():
        return ""
    checkpoint = ray.train.Result.from_path(run).checkpoint
    return Path(checkpoint.path).name if checkpoint else ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a step takes besides")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    start = last_model(folder / "train")
    checkpoints = ps.Checkpoints(folder / "state", every="200ms")
    job = ps.run(training_flow(), parallelism=2, checkpoints=checkpoints, **({"resume_model": start} if start else {}))
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"feed": job.feed(), "folder": folder, "pause": options.pause},
        scaling_config=ray.train.ScalingConfig(num_workers=options.ranks, resources_per_worker={"CPU": 0.5}),
        run_config=ray.train.RunConfig(
            name="train", storage_path=str(folder), failure_config=ray.train.FailureConfig(max_failures=3)
        ),
    )
    result = trainer.fit()
    job.wait(120)
    print(f"trained by {options.ranks} ranks, the last model is {Path(result.checkpoint.path).name}")


if __name__ == "__main__":
    main()
