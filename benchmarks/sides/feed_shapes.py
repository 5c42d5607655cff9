"""One feed to ranks of a training, over rows of one width: ours, or one of its peers. See ``feed_peers.py``.

``ranks`` processes read it, each its share of every batch: a few batches three times, and then all. Counted is what all
of them take more than the few did, the first time left aside and the less of the other two: seconds, and the processor
time of this process and of all that descend from it. So starts are not counted, and what is read ahead of the first
batch is. Where all have taken hardly longer than the few did, as happens on a machine that does something else, there
are no seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock

from side import Answer, serve, settings

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLES_A_SHARD = 1 << 26
"""Bytes of a file of those peers that have files of their own."""
FEW_TIMES = 3
LEAST = 0.1
"""Of the seconds that all batches took: a difference below that tells nothing."""
NUMBERS = count()
"""Of flows: one may end while the next one begins."""
Asked = dict[str, Any]
Batches = Iterator[Any]


def processor_seconds(root: int) -> float:
    """Of a process and its descendants, those that have ended and were waited for among them."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents[pid], spent[pid] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS
    mine = {root}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(spent.get(pid, 0.0) for pid in mine)


# ---------------------------------------------------------------------- the sides


def table_in(folder: str) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(folder)


def arrays_in(folder: str, width: int) -> Any:
    """All rows in memory."""
    column = table_in(folder).column("x").combine_chunks()
    return column.to_numpy() if width == 8 else column.flatten().to_numpy().reshape(-1, width)


def own_files(asked: Asked, kind: str, write: Callable[[Any, Path], None]) -> Path:
    """The same rows in a peer's own format, written when it is first asked for."""
    folder = Path(asked["folder"]).parent / kind
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write(arrays_in(asked["folder"], asked["width"]), folder)
        (folder / "done").touch()
    return folder


def flow_of(asked: Asked) -> Any:
    import penstock as ps

    flow = ps.Flow(f"shapes-{next(NUMBERS)}")
    flow.read_parquet(asked["folder"]).feed(asked["batch"])
    return flow


def prepare_ours(asked: Asked) -> Any:
    if asked["ranks"] == 1:
        return None
    import penstock as ps

    return ps.run(flow_of(asked), parallelism=1).feed()


def ours(asked: Asked, rank: int, shared: Any) -> Batches:
    """One rank has the job in its process; several are processes beside a job on Ray."""
    if shared is None:
        import penstock as ps

        with ps.run_local(flow_of(asked)) as job, job.feed().reader(timeout=300) as reader:
            yield from reader.iter_torch_batches()
    else:
        with shared.reader(rank, asked["ranks"], timeout=300) as reader:
            yield from reader.iter_torch_batches()


def prepare_ray_data(asked: Asked) -> Any:
    if asked["ranks"] == 1:
        return None
    import ray
    from ray import cloudpickle

    rows = ray_rows(asked)
    split = rows.streaming_split(asked["ranks"], equal=True)
    return ray.get_runtime_context().gcs_address, [cloudpickle.dumps(each) for each in split]


def ray_rows(asked: Asked) -> Any:
    """In a cluster of its own."""
    import ray

    if not ray.is_initialized():
        quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init("local", num_cpus=4, **quiet)
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray.data.read_parquet(asked["folder"])


def ray_data(asked: Asked, rank: int, shared: Any) -> Batches:
    if shared is None:
        rows = ray_rows(asked)
    else:
        import ray
        from ray import cloudpickle

        if not ray.is_initialized():
            ray.init(shared[0], log_to_driver=False, logging_level="ERROR")
        rows = cloudpickle.loads(shared[1][rank])
    for batch in rows.iter_torch_batches(batch_size=asked["batch"] // asked["ranks"]):
        yield batch["x"]


def data_loader(asked: Asked, rank: int, shared: Any) -> Batches:
    """Rows in memory, and no workers."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    rows = TensorDataset(torch.from_numpy(arrays_in(asked["folder"], asked["width"]).copy()))
    sampler = DistributedSampler(rows, asked["ranks"], rank, shuffle=False) if asked["ranks"] > 1 else None
    yield from DataLoader(rows, batch_size=asked["batch"] // asked["ranks"], sampler=sampler)


def without_images() -> None:
    """MosaicML Streaming asks for torchvision when it is imported. None of it is used here, and one that was built for
    another torch cannot be loaded."""
    names = ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional")
    for name in names:
        made = MagicMock(name=name)
        made.__spec__, made.VisionDataset = ModuleSpec(name, None), object
        sys.modules.setdefault(name, made)


def write_mds(rows: Any, folder: Path) -> None:
    without_images()
    from streaming import MDSWriter

    kind = "float64" if rows.ndim == 1 else f"ndarray:uint8:{rows.shape[1]}"
    with MDSWriter(out=str(folder / "mds"), columns={"x": kind}, size_limit=SAMPLES_A_SHARD) as writer:
        for row in rows:
            writer.write({"x": row})


def mosaic_files(asked: Asked) -> str:
    return str(own_files(asked, "mosaic", write_mds) / "mds")


def mosaic(asked: Asked, rank: int, shared: Any) -> Batches:
    without_images()
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    as_rank(asked, rank)
    size = asked["batch"] // asked["ranks"]
    rows = StreamingDataset(local=shared, shuffle=False, batch_size=size)
    yield from DataLoader(rows, batch_size=size)


def write_litdata(rows: Any, folder: Path) -> None:
    from litdata.streaming.cache import Cache

    cache = Cache(str(folder), chunk_bytes=SAMPLES_A_SHARD)
    for number, row in enumerate(rows):
        cache[number] = {"x": row}
    cache.done()
    cache.merge()


def litdata_files(asked: Asked) -> str:
    return str(own_files(asked, "litdata", write_litdata))


def litdata(asked: Asked, rank: int, shared: Any) -> Batches:
    from litdata import StreamingDataLoader, StreamingDataset

    as_rank(asked, rank)
    yield from StreamingDataLoader(StreamingDataset(shared), batch_size=asked["batch"] // asked["ranks"])


def write_records(rows: Any, folder: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / "rows.arrayrecord"), "group_size:1,uncompressed")
    for row in rows:
        writer.write(row.tobytes())
    writer.close()


def grain_files(asked: Asked) -> str:
    return str(own_files(asked, "grain", write_records) / "rows.arrayrecord")


def grain(asked: Asked, rank: int, shared: Any) -> Batches:
    import numpy as np
    import torch
    from grain import MapDataset
    from grain.sources import ArrayRecordDataSource

    kind = np.float64 if asked["width"] == 8 else np.uint8
    rows = MapDataset.source(ArrayRecordDataSource([shared]))[rank :: asked["ranks"]]
    rows = rows.map(lambda record: np.frombuffer(record, kind))
    for batch in rows.batch(asked["batch"] // asked["ranks"]).to_iter_dataset():
        yield torch.from_numpy(batch)


def as_rank(asked: Asked, rank: int) -> None:
    """For libraries that ask torch, or the environment, who they are."""
    if asked["ranks"] > 1:
        import torch.distributed as dist

        if dist.is_initialized():
            return
        told = {"RANK": rank, "WORLD_SIZE": asked["ranks"], "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": asked["ranks"]}
        os.environ.update({name: str(value) for name, value in told.items()})
        dist.init_process_group("gloo", f"file://{asked['meeting']}", rank=rank, world_size=asked["ranks"])


class Kind(NamedTuple):
    """``prepare``: what the parent of the ranks begins for all of them. ``write``: files of its own, which are not
    counted; the ranks are given where they are."""

    read: Callable[[Asked, int, Any], Batches]
    prepare: Callable[[Asked], Any] = lambda asked: None
    write: Callable[[Asked], Any] | None = None


SIDES = {
    "ours": Kind(ours, prepare_ours),
    "Ray Data": Kind(ray_data, prepare_ray_data),
    "DataLoader": Kind(data_loader),
    "MosaicML Streaming": Kind(mosaic, mosaic_files, mosaic_files),
    "litData": Kind(litdata, litdata_files, litdata_files),
    "Grain": Kind(grain, grain_files, grain_files),
}


# ---------------------------------------------------------------------- the loop


def rank_of(asked: Asked, rank: int, inbox: Any, gate: Any, counts: Any) -> None:
    """A training loop that does nothing."""
    try:
        for folder in folders_of(asked):
            told, shared, batches, rows = {**asked, "folder": folder}, inbox.recv(), 0, 0
            for batch in SIDES[asked["kind"]].read(told, rank, shared):
                first = next(iter(batch.values())) if isinstance(batch, dict) else batch
                batches, rows = batches + 1, rows + len(first[0] if isinstance(first, list) else first)
            counts[rank], counts[asked["ranks"] + rank] = batches, rows
            gate.wait()
            gate.wait()  # it has been counted
    except BaseException:
        gate.abort()
        raise


def folders_of(asked: Asked) -> tuple[str, ...]:
    return *(asked["few"],) * FEW_TIMES, asked["folder"]


def read_all(asked: Asked) -> Answer:
    """``batches``: global ones that were counted; ``rows``: all that were read at last."""
    context, ranks, side = multiprocessing.get_context("spawn"), asked["ranks"], SIDES[asked["kind"]]
    gate, counts = context.Barrier(ranks + 1, timeout=300), context.Array("q", 2 * ranks)
    pipes = [context.Pipe() for _ in range(ranks)]
    processes = [
        context.Process(target=rank_of, args=(asked, rank, inbox, gate, counts), daemon=False)
        for rank, (_, inbox) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    figures = []
    for folder in folders_of(asked):
        told = {**asked, "folder": folder}
        if side.write is not None:
            side.write(told)
        begun, spent = time.perf_counter(), processor_seconds(os.getpid())
        shared = side.prepare(told)
        for outbox, _ in pipes:
            outbox.send(shared)
        gate.wait()
        seconds, spent = time.perf_counter() - begun, processor_seconds(os.getpid()) - spent
        figures.append((seconds, spent, max(counts[:ranks])))
        rows = sum(counts[ranks:])
        gate.wait()
    for process in processes:
        process.join(60)
    few = [min(each) for each in zip(*figures[1:-1], strict=True)]
    seconds, spent, batches = (every - least for least, every in zip(few, figures[-1], strict=True))
    is_told = seconds > LEAST * figures[-1][0]
    cost = 1e3 * spent / batches
    return {"seconds": seconds if is_told else None, "milliseconds": cost, "batches": batches, "rows": rows}


def main() -> None:
    asked = settings()

    def run() -> Answer:
        Path(asked["meeting"]).unlink(missing_ok=True)
        return read_all(asked)

    serve(run, "penstock", "ray", "torch", "mosaicml-streaming", "litdata", "grain")


if __name__ == "__main__":
    main()
