"""What resuming an epoch costs at 1, 25, 50 and 99 % of it: seconds to the next batch, and bytes that are kept.

Part of ``feed.py``. Three ways, over the same Parquet files with the same filter, function and batches of 1,024 rows,
all in one process (no cluster: the start of processes would be the same for all, and hide the rest):

- *Penstock*: the model was committed at that step; ``run_local(…, resume_model=…)``, and the first batch of the feed.
  Bytes: the whole checkpoint folder. Its first batch must be the one that followed in the first run.
- *Skipping batches*: a loop over the files from the start that throws away the batches that the model has seen. It
  keeps a number.
- *Row-id log*: the log holds the id of every row that was handed out (8 bytes each); the loop drops the rows that are
  in it, by a search in the sorted log, and takes the first batch of what is left. Bytes: the log.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from house_data import bid_files
from pyarrow import parquet
from svg_plot import Series, write_plot

import penstock as ps
from harness import Row, make_row, results_folder, sized

BATCH = 1024
ROWS, FILES = sized((4_000_000, 4), (40_000, 2))
PERCENT = (1, 25, 50, 99)
AIM_FLAT = 1 / 1.2
COLUMNS = ["auction", "bidder", "price"]
SCHEMA = pa.schema([("auction", pa.int64()), ("bidder", pa.int64()), ("euros", pa.float64())])
PATIENCE = 120.0
OURS, SKIPPING, LOG = "Penstock", "skipping batches", "row-id log"


def in_euros(bids: Any) -> pa.RecordBatch:
    """The user's function."""
    euros = pc.multiply(bids.column("price"), 0.01)
    return pa.RecordBatch.from_arrays([bids.column("auction"), bids.column("bidder"), euros], schema=SCHEMA)


def training_flow(folder: Path) -> ps.Flow:
    flow = ps.Flow("resumed")
    bids = flow.read_parquet(str(folder), columns=COLUMNS).filter(ps.field("price") > 1000)
    bids.map_batches(in_euros, SCHEMA).feed(BATCH)
    return flow


def begun(folder: Path, state: Path, step: int) -> pa.RecordBatch:
    """Train up to ``step``, commit a model there, and end without a word; the batch that follows."""
    checkpoints = ps.Checkpoints(state, every="500ms", retained=1)
    job = ps.run_local(training_flow(folder), parallelism=2, checkpoints=checkpoints)
    try:
        reader = job.feed().reader(timeout=PATIENCE)
        batches = reader.iter_batches()
        for _ in range(step):
            next(batches)
        reader.commit("model")
        reader.flush(PATIENCE)
        following = next(batches)
        reader.close(0.0)
        return following
    finally:
        job.shutdown()


def resumed(folder: Path, state: Path, following: pa.RecordBatch) -> float:
    """Seconds to the first batch from the committed model on, on a copy of the checkpoint folder."""
    with tempfile.TemporaryDirectory(dir=state.parent) as name:
        copy = Path(name) / "state"
        shutil.copytree(state, copy)
        started = time.perf_counter()
        job = ps.run_local(training_flow(folder), parallelism=2, checkpoints=ps.Checkpoints(copy), resume_model="model")
        try:
            reader = job.feed().resume("model").reader(timeout=PATIENCE)
            batch = next(reader.iter_batches())
            seconds = time.perf_counter() - started
            reader.close(0.0)
        finally:
            job.shutdown()
    assert batch.equals(following), "another batch than the one that followed in the first run"
    return seconds


def bids_of(folder: Path) -> Iterator[tuple[int, pa.RecordBatch]]:
    """All rows as they are read, and the id of each first one."""
    rows = 0
    for path in sorted(folder.glob("*.parquet")):
        for batch in parquet.ParquetFile(path).iter_batches(64 * 1024, columns=COLUMNS):
            yield rows, batch
            rows += batch.num_rows


def skipping(folder: Path, step: int) -> float:
    """Seconds to the batch behind those that are skipped."""
    started, left = time.perf_counter(), step * BATCH
    kept: list[pa.RecordBatch] = []
    for _, bids in bids_of(folder):
        batch = in_euros(bids.filter(pc.field("price") > 1000))
        gone = min(left, batch.num_rows)
        left -= gone
        kept.append(batch.slice(gone))
        if sum(each.num_rows for each in kept) >= BATCH:
            break
    assert not left
    return time.perf_counter() - started


def logged(folder: Path, step: int, log: Path) -> None:
    """Write the ids of the rows of the first batches."""
    ids = []
    for first, bids in bids_of(folder):
        ids.append(first + np.flatnonzero(pc.greater(bids.column("price"), 1000).to_numpy(zero_copy_only=False)))
    np.save(log, np.concatenate(ids)[: step * BATCH])


def by_log(folder: Path, log: Path) -> float:
    """Seconds to the first batch of rows that are not in the log."""
    started = time.perf_counter()
    seen, kept, rows = np.sort(np.load(log)), [], 0
    for first, bids in bids_of(folder):
        ids = np.arange(first, first + bids.num_rows)
        places = np.searchsorted(seen, ids)
        new = seen[np.minimum(places, len(seen) - 1)] != ids
        kept.append(in_euros(bids.filter(pa.array(new)).filter(pc.field("price") > 1000)))
        rows += kept[-1].num_rows
        if rows >= BATCH:
            break
    assert rows
    return time.perf_counter() - started


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(rounds: int) -> tuple[dict[tuple[str, int], list[float]], dict[tuple[str, int], float]]:
    """Seconds, and bytes, by way and percent; all ways in turn."""
    folder = bid_files(ROWS, "parquet", FILES)
    total = sum(int(pc.sum(pc.greater(bids.column("price"), 1000)).as_py()) for _, bids in bids_of(folder))
    steps = {percent: max(1, total // BATCH * percent // 100) for percent in PERCENT}
    seconds: dict[tuple[str, int], list[float]] = {(way, p): [] for way in (OURS, SKIPPING, LOG) for p in PERCENT}
    size: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        place, following = Path(name), {}
        for percent, step in steps.items():
            following[percent] = begun(folder, place / f"state-{percent}", step)
            logged(folder, step, place / f"log-{percent}.npy")
            size[OURS, percent] = folder_bytes(place / f"state-{percent}")
            size[LOG, percent] = (place / f"log-{percent}.npy").stat().st_size
        for turn in range(sized(1 + rounds, 1)):
            for percent, step in steps.items():
                figures = {
                    OURS: resumed(folder, place / f"state-{percent}", following[percent]),
                    SKIPPING: skipping(folder, step),
                    LOG: by_log(folder, place / f"log-{percent}.npy"),
                }
                for way, figure in figures.items():
                    if turn or not sized(1, 0):
                        seconds[way, percent].append(figure)
    return seconds, size


def resume_rows(rounds: int) -> list[Row]:
    """The table's rows; the curves are drawn beside the results."""
    seconds, size = measure(rounds)
    first, last = PERCENT[0], PERCENT[-1]
    slowest = max(PERCENT, key=lambda percent: np.median(seconds[OURS, percent]))
    largest = max(PERCENT, key=lambda percent: size[OURS, percent])
    rows = [
        make_row(f"resuming at {slowest} % of an epoch: first batch", f"Penstock at {first} %",
                 (seconds[OURS, slowest], seconds[OURS, first]), "s", AIM_FLAT, False),
        make_row(f"resuming at {largest} % of an epoch: bytes kept", f"Penstock at {first} %",
                 ([size[OURS, largest] / 1e6], [size[OURS, first] / 1e6]), "MB", AIM_FLAT, False),
    ]  # fmt: skip
    for way in (SKIPPING, LOG):
        rows.append(make_row(f"resuming at {last} % of an epoch: first batch", way,
                             (seconds[OURS, last], seconds[way, last]), "s", 1.0, False))  # fmt: skip
    rows.append(make_row(f"resuming at {last} % of an epoch: bytes kept", LOG,
                         ([size[OURS, last] / 1e6], [size[LOG, last] / 1e6]), "MB", 1.0, False))  # fmt: skip
    medians = {way: [float(np.median(seconds[way, p])) * 1e3 for p in PERCENT] for way in (OURS, SKIPPING, LOG)}
    kept = {way: [size[way, p] / 1e3 for p in PERCENT] for way in (OURS, LOG)}
    curves = [
        Series("first batch, ms", "% of the epoch", PERCENT, medians.pop(OURS), OURS, medians),
        Series("kept, KB", "% of the epoch", PERCENT, kept.pop(OURS), OURS, kept),
    ]
    write_plot(results_folder() / "feed_resume.svg", f"Resuming an epoch of {rows_in_words()}", curves)
    return rows


def rows_in_words() -> str:
    return f"{ROWS / 1e6:g} M rows, batches of {BATCH:,}"
