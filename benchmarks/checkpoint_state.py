"""Checkpoints by the size of the state, and what a restart costs with it (``checkpoints.py``).

A job holds the groups of ``keys`` keys (three figures each) and goes on with rows of few keys. *Full*: the checkpoint
behind all of them; *changed*: the next one, when one key of a hundred has changed. Of both: bytes written, seconds from
the trigger until it is complete, and the longest time in which a task did nothing else. *Resume*: from ``run`` until
the tasks run again from the second one. On Ray a process with the state is killed instead.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as ps

CHUNK = 64 * 1024
SPLITS = 8
CHANGED = 100
PATIENCE = 300.0


@dataclass(frozen=True)
class Growing:
    """A split: its keys, then, when ``go`` is there, each hundredth again, and the first one time and again until
    ``stop`` is. All in whole chunks, since a source gives nothing less before its end."""

    id: str
    keys: int
    folder: str
    rows: None = None

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        assert start % CHUNK == 0
        first, folder = int(self.id) * self.keys, Path(self.folder)
        every, changed = np.arange(first, first + self.keys), np.arange(first, first + self.keys, CHANGED)
        yield from _chunks(every, start)
        while not (folder / "go").exists():
            yield from _pause(first)
        yield from _chunks(changed, 0)
        while not (folder / "stop").exists():
            yield from _pause(first)


def _chunks(keys: Any, start: int) -> Iterator[pa.RecordBatch]:
    """All of them, the last chunk filled with the first ones again."""
    keys = np.resize(keys, -(-len(keys) // CHUNK) * CHUNK)
    for at in range(start, len(keys), CHUNK):
        yield _batch(keys[at : at + CHUNK])


def _pause(key: int) -> Iterator[pa.RecordBatch]:
    time.sleep(0.1)
    yield _batch(np.full(CHUNK, key))


def _batch(keys: Any) -> pa.RecordBatch:
    return pa.record_batch({"key": keys, "a": keys * 3, "b": keys * 0.5})


@dataclass(frozen=True)
class GrowingSource:
    """``keys`` in all."""

    keys: int
    folder: str
    kind = "growing"
    schema = pa.schema({"key": pa.int64(), "a": pa.int64(), "b": pa.float64()})

    def splits(self) -> list[Growing]:
        return [Growing(str(number), self.keys // SPLITS, self.folder) for number in range(SPLITS)]

    def describe(self) -> str:
        return f"{self.keys} keys"


@dataclass(frozen=True)
class Sized:
    """Of one job, see the module; times in seconds."""

    state_bytes: int
    full_bytes: int
    full_seconds: float
    changed_bytes: int
    changed_seconds: float
    pause: float
    recovered: float


def sized_job(
    keys: int, on_ray: bool = False, place: str | None = None, spares: int = 0, copies: bool | None = None
) -> Sized:
    """Run it. ``place``: where checkpoints go; None: a folder that goes with it. ``copies``: ``local_copies=``."""
    run: Callable[..., Any] = partial(ps.run, runtime=ps.Runtime(spares=spares)) if on_ray else ps.run_local
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        where = place or folder / "state"
        checkpoints = ps.Checkpoints(where, every=None, alignment="unaligned", local_copies=copies)
        with run(_flow(keys, folder), parallelism=2, checkpoints=checkpoints) as job:
            _wait_read(job, keys)
            full = _taken(job)
            (folder / "go").touch()
            _wait_read(job, _rows_read(job) + 3 * SPLITS * CHUNK)
            changed = _taken(job)
            recovered = _kill(job) if on_ray else 0.0
            (folder / "stop").touch() if on_ray else job.cancel()
            job.wait_until(lambda status: status.is_over, PATIENCE)
        if not on_ray:
            began = time.monotonic()
            with run(_flow(keys, folder), parallelism=2, checkpoints=checkpoints) as job:
                job.wait_until(lambda status: status.state == "running", PATIENCE)
                recovered = time.monotonic() - began
                job.cancel()
                job.wait_until(lambda status: status.is_over, PATIENCE)
        return Sized(full.bytes, full.new_bytes, _seconds(full), changed.new_bytes, _seconds(changed),
                     max(_stood(full), _stood(changed)), recovered)  # fmt: skip


def _flow(keys: int, folder: Path) -> ps.Flow:
    flow = ps.Flow("state", order="arrival")
    rows = flow.from_source(GrowingSource(keys, str(folder)))
    rows.aggregate(["key"], n=("a", "count"), a=("a", "sum"), b=("b", "sum")).write_parquet(folder / "out")
    return flow


def _wait_read(job: Any, rows: int) -> None:
    """Until the sources have read them, and the groups have taken them in."""
    until = time.monotonic() + PATIENCE
    while True:
        found, read = job.statistics(), _rows_read(job)
        queued = sum(edge.queued for task in found.values() for edge in task.edges)
        if read >= rows and queued < 32 * CHUNK:
            return
        assert time.monotonic() < until, f"only {read} of {rows} rows were read"
        time.sleep(0.1)


def _rows_read(job: Any) -> int:
    return sum(source.rows for task in job.statistics().values() for source in task.sources)


def _taken(job: Any) -> Any:
    checkpoint = job.checkpoint(PATIENCE)
    return next(one for one in job.checkpoints().history if one.checkpoint == checkpoint)


def _seconds(one: Any) -> float:
    return float(one.ended_at - one.triggered_at)


def _stood(one: Any) -> float:
    return float(max(vertex.synchronous.most for vertex in one.vertices))


def _kill(job: Any) -> float:
    """Seconds from the death of the last task's process until all run again."""
    restarts = job.status().restarts
    job.kill_task(job.tasks()[-1])
    killed = time.monotonic()
    job.wait_until(lambda status: status.restarts > restarts and status.state == "running", PATIENCE)
    return time.monotonic() - killed
