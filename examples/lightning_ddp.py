"""Lightning over gloo, fed by a job on Ray. The place in the feed is part of Lightning's own checkpoints: Lightning
calls ``state_dict`` and ``load_state_dict`` of a loader that has them.

    python examples/lightning_ddp.py --folder out --ranks 2

Kill it at any time and run it again, with another number of ranks if you like: it goes on from its last checkpoint, in
the middle of the epoch, and the ranks read the batches that the first run would have read. ``out/rank-N.jsonl`` holds
what each step has read.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytorch_lightning as lightning
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import ModelCheckpoint

import penstock as ps

BATCH, SAVE_EVERY = 32, 4


def training_flow() -> ps.Flow:
    flow = ps.Flow("lightning", lanes=4)
    parts = []
    for start in range(0, 2000, 200):
        rows = list(range(start, start + 200))
        parts.append(pa.table({"row": rows, "x": [row / 1000 for row in rows], "y": [row / 500 + 1 for row in rows]}))
    flow.from_tables(parts).filter("row % 10 <> 0").shuffle(300, seed=7).feed(BATCH, room=4 * BATCH)
    return flow


class Model(lightning.LightningModule):
    """A line through the points of the feed."""

    def __init__(self, feed: Any, folder: Path, pause: float) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.feed, self.folder, self.pause = feed, folder, pause

    def train_dataloader(self) -> Any:
        """A loader whose state is that of the batches that the model has seen: Lightning fetches one ahead of it."""
        self.reader = self.feed.reader(self.trainer.global_rank, self.trainer.world_size, timeout=120)
        return self.reader.loader(dtypes={"x": torch.float32, "y": torch.float32})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def training_step(self, part: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        rows = torch.tensor(float(len(part["row"])))
        dist.all_reduce(rows)
        step, ranks = self.reader.step, self.trainer.world_size
        with (self.folder / f"rank-{self.trainer.global_rank}.jsonl").open("a") as log:
            log.write(json.dumps({"step": step - 1, "ranks": ranks, "rows": part["row"].tolist()}) + "\n")
        time.sleep(self.pause)
        errors = self.line(part["x"][:, None])[:, 0] - part["y"]
        # DDP takes the mean over ranks: undo that, and divide by the rows of the global batch
        return (errors**2).sum() * ranks / rows

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Bound before it is saved, so that the feed can go on from every checkpoint that is there."""
        if self.trainer.is_global_zero:
            self.reader.commit(f"step-{self.reader.step}")
            self.reader.flush(60)

    def on_train_end(self) -> None:
        self.reader.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a step takes besides")
    options = parser.parse_args()
    folder = options.folder.absolute()
    saved = sorted(folder.glob("models/step-*.ckpt"), key=lambda path: int(path.stem[5:]))
    last = saved[-1] if saved else None
    checkpoints = ps.Checkpoints(folder / "state", every="200ms")
    job = ps.run(
        training_flow(), parallelism=2, checkpoints=checkpoints, **({"resume_model": last.stem} if last else {})
    )
    feed = job.feed().resume(last.stem) if last else job.feed()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    every = ModelCheckpoint(
        folder / "models",
        filename="step-{step}",
        auto_insert_metric_name=False,
        every_n_train_steps=SAVE_EVERY,
        save_top_k=-1,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp_spawn",
        devices=options.ranks,
        max_epochs=1,
        callbacks=[every],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(feed, folder, options.pause), ckpt_path=last)
    job.wait(120)
    print(f"trained by {options.ranks} ranks")


if __name__ == "__main__":
    main()
