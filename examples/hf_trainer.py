"""Trainer, of Hugging Face's transformers, over gloo, fed by a job on Ray. ``get_train_dataloader`` gives the loader of
the reader itself: what Trainer would make of a data set divides and batches it a second time.

    python examples/hf_trainer.py --folder out --ranks 2

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
from transformers import Trainer, TrainerCallback, TrainingArguments

import penstock as ps

BATCH, SAVE_EVERY = 32, 4
STEPS = 57
"""Of all epochs: Trainer's schedule wants to know. It ends earlier when there are no more batches."""


def training_flow() -> ps.Flow:
    flow = ps.Flow("trainer", lanes=4)
    parts = []
    for start in range(0, 2000, 200):
        rows = list(range(start, start + 200))
        parts.append(pa.table({"row": rows, "x": [row / 1000 for row in rows], "y": [row / 500 + 1 for row in rows]}))
    flow.from_tables(parts).filter("row % 10 <> 0").shuffle(300, seed=7).feed(BATCH, room=4 * BATCH)
    return flow


class Line(torch.nn.Module):
    """A line through the points of the feed."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def forward(self, row: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = torch.tensor(float(len(row)))
        dist.all_reduce(rows)
        errors = self.line(x[:, None])[:, 0] - y
        # DDP takes the mean over ranks: undo that, and divide by the rows of the global batch
        return {"loss": (errors**2).sum() * dist.get_world_size() / rows}


class Bound(TrainerCallback):
    """Checkpoints are bound to the feed before they are written, and named once they are whole."""

    def __init__(self, reader: Any, folder: Path) -> None:
        self.reader, self.folder = reader, folder

    def path(self, step: int) -> str:
        return str(self.folder / "models" / f"checkpoint-{step}")

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if control.should_save and state.is_world_process_zero:
            self.reader.commit(self.path(state.global_step))
            self.reader.flush(60)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.is_world_process_zero:
            (self.folder / "last.new").write_text(self.path(state.global_step))
            os.replace(self.folder / "last.new", self.folder / "last")


class Fed(Trainer):
    """A Trainer whose batches are slices of the feed's."""

    def __init__(self, reader: Any, folder: Path, pause: float, **others: Any) -> None:
        super().__init__(callbacks=[Bound(reader, folder)], **others)
        self.reader, self.pause = reader, pause
        self.rows = (folder / f"rank-{reader.rank}.jsonl").open("a")

    def get_train_dataloader(self) -> Any:
        """Trainer asks for a batch when it needs it: nothing is fetched ahead of the model."""
        return self.reader.loader(fetches_ahead=False, dtypes={"x": torch.float32, "y": torch.float32})

    def training_step(self, model: Any, inputs: dict[str, torch.Tensor], *others: Any) -> torch.Tensor:
        line = {"step": self.reader.step - 1, "ranks": self.reader.world_size, "rows": inputs["row"].tolist()}
        self.rows.write(json.dumps(line) + "\n")
        self.rows.flush()
        time.sleep(self.pause)
        return super().training_step(model, inputs, *others)


def train(rank: int, ranks: int, feed: Any, folder: Path, start: str, pause: float) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # what `torchrun` sets, but that ranks meet at a file, not at a port
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ.update(place, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    meeting = f"file://{folder}/meeting-{os.environ['PENSTOCK_EXAMPLE_RUN']}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    arguments = TrainingArguments(
        output_dir=str(folder / "models"),
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=STEPS,
        save_steps=SAVE_EVERY,
        ignore_data_skip=True,  # the feed goes on where the model was
        learning_rate=0.05,
        disable_tqdm=True,
        report_to=[],
    )
    with feed.reader(timeout=120) as reader:
        Fed(reader, folder, pause, model=Line(), args=arguments).train(resume_from_checkpoint=start or None)
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
