"""A training loop whose loader is checkpointed with the model, as Lightning and Accelerate do it: by the loader's
``state_dict`` and ``load_state_dict``. No Ray: the feed runs in this process, and so do the ranks, as threads.

    python examples/state_dict_loop.py --folder out --ranks 2

Kill it at any time and run it again, with another number of ranks if you like: it goes on from its last model, and the
ranks read the batches that the first run would have read. ``out/batches.jsonl`` holds what each step has read.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

import penstock as ps

BATCH, SAVE_EVERY = 32, 4


def training_flow() -> ps.Flow:
    flow = ps.Flow("state-dict-loop", lanes=4)
    parts = []
    for start in range(0, 2000, 200):
        rows = list(range(start, start + 200))
        parts.append(pa.table({"row": rows, "x": [row / 1000 for row in rows], "y": [row / 500 + 1 for row in rows]}))
    # keep: rows for a model that is older than the job's last checkpoint
    flow.from_tables(parts).filter("row % 10 <> 0").shuffle(300, seed=7).feed(BATCH, keep=20 * BATCH)
    return flow


class Rank:
    """One rank's loader: what a framework calls ``state_dict`` on."""

    def __init__(self, feed: Any, number: int, ranks: int) -> None:
        self.reader = feed.reader(number, ranks, timeout=60)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.reader.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reader.load_state_dict(state)

    def __iter__(self) -> Any:
        return self.reader.iter_torch_batches(dtypes={"x": torch.float32, "y": torch.float32})


def train(folder: Path, ranks: int, pause: float) -> None:
    job = ps.run_local(training_flow(), checkpoints=ps.Checkpoints(folder / "state", every="100ms"))
    loaders = [Rank(job.feed(), number, ranks) for number in range(ranks)]
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = 0
    if (folder / "model.pt").exists():
        saved = torch.load(folder / "model.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        step = saved["loader"]["step"]
        for loader in loaders:
            loader.load_state_dict(saved["loader"])
    with (folder / "batches.jsonl").open("a") as log:
        for slices in zip(*loaders, strict=True):
            optimizer.zero_grad()
            rows = sum(len(part["row"]) for part in slices)
            for part in slices:  # by the rows of the global batch: slices may differ by one
                loss = ((model(part["x"][:, None])[:, 0] - part["y"]) ** 2).sum() / rows
                loss.backward()
            optimizer.step()
            batch = [row for part in slices for row in part["row"].tolist()]
            log.write(json.dumps({"step": step, "ranks": ranks, "rows": batch}) + "\n")
            log.flush()
            step += 1
            if step % SAVE_EVERY == 0:
                save(folder / "model.pt", {"model": model.state_dict(), "loader": loaders[0].state_dict()})
            time.sleep(pause)
    closing = [threading.Thread(target=loader.reader.close) for loader in loaders]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()
    job.wait(60)
    print(f"trained to step {step}")


def save(path: Path, state: dict[str, Any]) -> None:
    """A model is there as a whole, or not at all."""
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a step takes besides")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    train(options.folder, options.ranks, options.pause)
