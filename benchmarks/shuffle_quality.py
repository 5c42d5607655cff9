"""How well shuffles mix: ours and those of others, on the same million rows in a hundred files.

``python benchmarks/shuffle_quality.py`` prints the table of docs/design/sequences.md. MosaicML Streaming and Grain are
looked for in ``build/peers/shuffles`` and ``build/peers/grain`` (``pip install --target``, the former ``--no-deps``:
of it only the function that orders samples is called); Ray Data is installed with the package. All orders are those of
one rank, of two epochs, in batches of 256; a side whose wheel is missing is left out.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from penstock.engine.lineage.origins import origins_of
from penstock.jobs.shuffle_quality import quality_of

ROWS, SPLITS, BATCH = 1_000_000, 100, 256
SIZE = ROWS // SPLITS
PEERS = Path(__file__).parent.parent / "build" / "peers"
Orders = Sequence[np.ndarray]


def write_files(folder: Path) -> None:
    """The rows, numbered."""
    for split in range(SPLITS):
        pq.write_table(pa.table({"n": np.arange(split * SIZE, (split + 1) * SIZE)}), folder / f"{split:03}.parquet")


def ours(folder: Path, shuffle: object) -> Orders:
    """A feed of ours."""
    flow = ps.Flow("ours")
    flow.read_parquet(folder).feed(BATCH, shuffle=shuffle, seed=1, epochs=2)
    with ps.run_local(flow, parallelism=2) as job, job.feed().reader(0, 1) as reader:
        return [np.concatenate([records.column(0).to_numpy() for records in reader]) for _ in range(2)]


def py1e(block: int) -> Orders:
    """MosaicML Streaming's function, of one node."""
    package = PEERS / "shuffles" / "streaming"
    for name in ("streaming", "streaming.base", "streaming.base.shuffle"):
        # without the package's own imports, which want torch and clients of every cloud
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = [str(package.joinpath(*name.split(".")[1:]))]
    order = importlib.import_module("streaming.base.shuffle.py1e").get_shuffle_py1e
    return [order(np.full(SPLITS, SIZE), 1, 1, epoch, block) for epoch in range(2)]


def grain() -> Orders:
    """Grain's shuffle by index."""
    sys.path.insert(0, str(PEERS / "grain"))
    found = importlib.import_module("grain").MapDataset.range(ROWS).seed(1).shuffle().repeat(2)
    whole = np.fromiter((found[at] for at in range(2 * ROWS)), dtype=np.int64, count=2 * ROWS)
    return [whole[:ROWS], whole[ROWS:]]


def ray_data(folder: Path, buffer: int) -> Orders:
    """Ray Data's shuffled files and local buffer."""
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    found = []
    for epoch in range(2):
        rows = ray.data.read_parquet(str(folder), shuffle=ray.data.FileShuffleConfig(seed=epoch))
        batches = rows.iter_batches(
            batch_size=BATCH, local_shuffle_buffer_size=buffer, local_shuffle_seed=epoch, batch_format="numpy"
        )
        found.append(np.concatenate([batch["n"] for batch in batches]))
    return found


def sides(folder: Path) -> Iterator[tuple[str, Callable[[], Orders]]]:
    """Whom, and how."""
    yield "Penstock, none", lambda: ours(folder, None)
    yield "Penstock, `shuffle=10_000`", lambda: ours(folder, 10_000)
    yield "Penstock, `shuffle=True`", lambda: ours(folder, True)
    yield 'Penstock, `shuffle="full"`', lambda: ours(folder, "full")
    yield "MosaicML `py1e`, block of 2^18", lambda: py1e(2**18)
    yield "MosaicML `py1e`, default block (4 M)", lambda: py1e(4_000_000)
    yield "Grain `MapDataset.shuffle`", grain
    yield "Ray Data, `shuffle` of files and buffer of 10,000", lambda: ray_data(folder, 10_000)
    yield "Ray Data, `shuffle` of files and buffer of 65,536", lambda: ray_data(folder, 65_536)


def line(name: str, orders: Orders) -> str:
    """A line of the table."""
    for each in orders:
        assert np.array_equal(np.sort(each), np.arange(ROWS))
    epochs = [
        [origins_of(part // SIZE, part % SIZE) for part in batches]
        for batches in (np.array_split(each, range(BATCH, ROWS, BATCH)) for each in orders)
    ]
    found = quality_of(epochs)
    return (
        f"| {name} | {found.correlation:.4f} | {found.splits_a_batch:.1f} | {found.fewest_splits} "
        f"| {found.common or 0:.2%} |"
    )


def main() -> None:
    """Print the table."""
    print("| who | rank correlation | splits in a batch | fewest | first 1 % in common |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        for name, side in sides(Path(folder)):
            try:
                orders = side()
            except ImportError as missing:
                print(f"{name}: left out, {missing}", file=sys.stderr)
                continue
            print(line(name, orders), flush=True)


if __name__ == "__main__":
    main()
