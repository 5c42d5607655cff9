"""A feed's batches on a GPU: how fast they come there, and what part of a loop waits for them.

Run it as ``python benchmarks/feed_device.py`` where torch sees a GPU; the result goes to
``benchmarks/results/feed_device.json``. The job runs in the process of the loop, so its work counts.

- *GB/s to the device*, beside torch's ``DataLoader`` over the same rows in memory with pinned memory and copies that do
  not block, and beside bare copies of such batches from pinned memory.
- *Waiting*: the part of a loop's time that is not the steps', where each step keeps the GPU busy for 5 ms.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as ps
from harness import Row, make_row, report, results_folder, sized

SHAPES = sized(
    ((8, 8_192, 200), (1_024, 256, 100), (102_400, 16, 40)),
    ((8, 64, 4),),
)
"""Bytes a row, rows a batch, batches."""
ROUNDS = sized(5, 1)
STEP_SECONDS = 0.005
Batches = Callable[[], Iterator[Any]]


def rows_of(width: int, rows: int) -> pa.Table:
    draw = np.random.default_rng(3)
    if width == 8:
        return pa.table({"x": draw.random(rows)})
    flat = pa.array(draw.integers(0, 255, rows * width, np.uint8))
    return pa.table({"x": pa.FixedSizeListArray.from_arrays(flat, width)})


def ours(table: pa.Table, batch: int, device: str) -> Batches:
    """A job, from its first batch on: the first one is taken before the time begins."""

    def batches() -> Iterator[Any]:
        flow = ps.Flow("to-the-device")
        flow.from_tables([table], name="rows").feed(batch)
        with tempfile.TemporaryDirectory() as folder:
            job = ps.run_local(flow, checkpoints=ps.Checkpoints(Path(folder)))
            with job.feed().reader(timeout=60) as reader:
                yield from reader.iter_torch_batches(device=device)
            job.wait()

    return batches


def loader(table: pa.Table, batch: int, device: str) -> Batches:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    column = table["x"].combine_chunks()
    flat = column.to_numpy() if column.type == pa.float64() else column.flatten().to_numpy().reshape(len(column), -1)
    data = TensorDataset(torch.from_numpy(flat.copy()))

    def batches() -> Iterator[Any]:
        for (x,) in DataLoader(data, batch_size=batch, pin_memory=True):
            yield {"x": x.to(device, non_blocking=True)}

    return batches


def copies(table: pa.Table, batch: int, device: str) -> Batches:
    import torch

    pinned = torch.empty(table.nbytes // len(table) * batch, dtype=torch.uint8, pin_memory=True)

    def batches() -> Iterator[Any]:
        for _ in range(len(table) // batch):
            yield {"x": pinned.to(device, non_blocking=True)}

    return batches


@cache
def cycles_a_second() -> float:
    """Of a GPU that is kept busy."""
    import torch

    torch.cuda._sleep(10**8)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    torch.cuda._sleep(10**9)
    torch.cuda.synchronize()
    return 1e9 / (time.perf_counter() - begin)


def timed(batches: Batches, step: float) -> tuple[float, int]:
    """Seconds from the first batch on, and how many came in them. ``step``: for which each keeps the GPU busy."""
    import torch

    cycles = int(step * cycles_a_second()) if step else 0
    found, count = iter(batches()), 0
    next(found)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in found:
        if cycles:
            torch.cuda._sleep(cycles)
            torch.cuda.synchronize()
        count += 1
    torch.cuda.synchronize()
    return time.perf_counter() - begin, count


def measure(width: int, batch: int, batches: int, rounds: int, device: str) -> list[Row]:
    table = rows_of(width, batch * batches)
    gigabytes = table.nbytes / 1e9 * (batches - 1) / batches
    sides = {"ours": ours, "torch DataLoader": loader, "bare copies": copies}
    made = {name: side(table, batch, device) for name, side in sides.items()}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, each in made.items():
            seconds, _ = timed(each, 0)
            if turn:
                rates[name].append(gigabytes / seconds)
    work = f"feed to a GPU, batches of {batch:,} rows of {width:,} B"
    rows = [
        make_row(work, peer, (rates["ours"], rates[peer]), "GB/s", 0.0, True)
        for peer in ("torch DataLoader", "bare copies")
    ]
    waits: dict[str, list[float]] = {"ours": [], "torch DataLoader": []}
    for _ in range(rounds):
        alone = timed(made["bare copies"], STEP_SECONDS)
        for name, part in waits.items():
            seconds, count = timed(made[name], STEP_SECONDS)
            part.append(max(1e-4, 1 - alone[0] / alone[1] * count / seconds))
    waiting = f"{work}: part of a loop with steps of 5 ms that waits"
    rows.append(make_row(waiting, "torch DataLoader", (waits["ours"], waits["torch DataLoader"]), "", 0.0, False))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("torch sees no GPU here: nothing is measured")
        return
    rows = [row for shape in SHAPES for row in measure(*shape, options.rounds, options.device)]
    report(rows, results_folder() / "feed_device.json")


if __name__ == "__main__":
    main()
