"""What a plan takes at most, beside what it promised: each flow runs in a process of its own, forked from this one.

Rules:

1. Sources make their rows when they are read, so that all memory is that of the plan. What comes out goes through an
   exchange and is thrown away there by a filter.
2. ``pool`` is the peak of Arrow's pool: exact, with what its kernels take for a moment. ``process``: the most anonymous
   memory that was seen, numpy's and the allocators' own included, beside what there was before; mapped files, which the
   system takes back, are not in it. That is looked at every few milliseconds.
3. As a script it answers lines ``operator, shape``, or ``read, file``, with a :class:`Peak` each, as JSON. It has no
   thread but its first.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import penstock as ps
from penstock.engine.planner.memory_bound import memory_bound
from support.own_operators import AboveUntold

MIB = 1024 * 1024
BUDGET = 32 * MIB
CELL = 48 * 1024
ELEMENTS = 100_000
MANY = 6000


@dataclass(frozen=True)
class MadeRows:
    """``rows`` rows: ``k``, the same in ``alike`` neighbours; ``v``, a number of its own; ``x`` as ``shape`` says."""

    name: str
    shape: str
    rows: int
    alike: int = 1
    kind: str = "made"

    @property
    def schema(self) -> pa.Schema:
        kinds = {"cells": pa.binary(), "lists": pa.list_(pa.int32()), "keys": pa.int32()}
        return pa.schema({"k": pa.int64(), "v": pa.int64(), "x": kinds[self.shape]})

    def splits(self) -> Sequence[MadeSplit]:
        return [MadeSplit(self)]

    def describe(self) -> str:
        return repr(self)


@dataclass(frozen=True)
class MadeSplit:
    """All rows of a source, a few at a time."""

    source: MadeRows

    @property
    def id(self) -> str:
        return self.source.name

    @property
    def rows(self) -> int | None:
        return self.source.rows

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        per_batch = {"cells": 64, "lists": 8, "keys": 4096}[self.source.shape]
        for low in range(start, self.source.rows, per_batch):
            numbers = np.arange(low, min(low + per_batch, self.source.rows))
            columns = [numbers // self.source.alike, numbers, self._values(len(numbers))]
            yield pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=self.source.schema)

    def _values(self, rows: int) -> pa.Array:
        kind = self.source.schema.field("x").type
        width = {"cells": CELL, "lists": ELEMENTS, "keys": 1}[self.source.shape]
        if self.source.shape == "keys":
            return pa.Array.from_buffers(kind, rows, [None, _zeros(4 * rows)])
        offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * width)
        if self.source.shape == "cells":
            return pa.Array.from_buffers(kind, rows, [None, offsets.buffers()[1], _zeros(rows * width)])
        elements = pa.Array.from_buffers(pa.int32(), rows * width, [None, _zeros(4 * rows * width)])
        return pa.ListArray.from_arrays(offsets, elements)


def _zeros(bytes: int) -> pa.Buffer:
    """From Arrow's pool, and touched."""
    found = pa.allocate_buffer(bytes, resizable=False)
    np.frombuffer(found, np.uint8)[:] = 0
    return found


Apply = Callable[[ps.Stream, ps.Stream], ps.Stream]
LAST = {"x": ("x", "last")}
INDEX = pa.table({"k": pa.array(range(MANY)), "c": pa.array(range(MANY))})
OPERATORS: Mapping[str, Apply] = {
    "filter": lambda a, b: a.filter("v % 2 = 0"),
    "project": lambda a, b: a.with_columns(w=ps.field("v") + 1),
    "map batches": lambda a, b: a.map_batches(lambda records: records, a.schema),
    "unnest": lambda a, b: a.unnest("x"),
    "limit": lambda a, b: a.limit(MANY),
    "shuffle": lambda a, b: a.shuffle(256, seed=1),
    "sort": lambda a, b: a.sort("v"),
    "top n": lambda a, b: a.top_n(50, "v"),
    "distinct": lambda a, b: a.distinct("v"),
    "mark distinct": lambda a, b: a.mark_distinct("v", marker="first"),
    "aggregate": lambda a, b: a.aggregate(["v"], **LAST),
    "stream aggregate": lambda a, b: a.stream_aggregate(["v"], **LAST),
    "window": lambda a, b: a.window(["v"], place="row_number"),
    "union": lambda a, b: a.union(b),
    "partition by": lambda a, b: a.partition_by("v"),
    "rebalance": lambda a, b: a.rebalance(),
    "lookup join": lambda a, b: a.lookup_join(ps.index.memory(INDEX, key="k"), on="k"),
    "merge join": lambda a, b: a.merge_join(b, on=["k"]),
    "hash join": lambda a, b: a.hash_join(b, on=["k"]),
    "fork and merge": lambda a, b: a.filter("v >= 0").merge_join(a.filter("v % 2 = 0"), on=["k", "v"]),
    "mix": lambda a, b: a.flow.mix({a: 1, b: 2}),
    "pack": lambda a, b: a.pack(4096, tokens="x"),
    "own operator": lambda a, b: a.apply(AboveUntold("v", 7)),
}
SINKS: Mapping[str, Callable[[ps.Stream, Path], None]] = {
    "write parquet": lambda made, folder: made.write_parquet(folder / "parquet"),
}
SHAPES: Mapping[str, Callable[[str], MadeRows]] = {
    "alike": lambda name: MadeRows(name, "keys", MANY, MANY),
    "keys": lambda name: MadeRows(name, "keys", 1_000_000),
    "cells": lambda name: MadeRows(name, "cells", MANY),
    "alike cells": lambda name: MadeRows(name, "cells", 200, 100),
    "lists": lambda name: MadeRows(name, "lists", 300),
}


COLUMNS = 20


def _write_parquet(path: Path, rows: MadeRows) -> None:
    with parquet.ParquetWriter(path, rows.schema) as writer:
        writer.write_table(pa.Table.from_batches(rows.splits()[0].open(0)), row_group_size=rows.rows)


def _write_dictionary(path: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(
        pa.array(np.arange(20_000, dtype=np.int32) % 4), [letter * CELL for letter in "abcd"]
    )
    parquet.write_table(pa.table({"v": np.arange(20_000), "x": texts}), path, store_schema=False)


def _write_digits(path: Path) -> None:
    names = [f"c{place}" for place in range(COLUMNS)]
    path.write_text(",".join(names) + "\n" + (",".join("1" * COLUMNS) + "\n") * 1_000_000)


def _write_long_lines(path: Path) -> None:
    path.write_text("v,x\n" + "".join(f"{row},{'x' * CELL}\n" for row in range(3000)))


FILES: Mapping[str, tuple[Callable[[Path], None], Callable[[ps.Flow, Path], ps.Stream]]] = {
    "cells.parquet": (lambda path: _write_parquet(path, SHAPES["cells"]("a")), ps.Flow.read_parquet),
    "lists.parquet": (lambda path: _write_parquet(path, SHAPES["lists"]("a")), ps.Flow.read_parquet),
    "dictionary.parquet": (_write_dictionary, ps.Flow.read_parquet),
    "digits.csv": (
        _write_digits,
        lambda flow, path: flow.read_csv(path, types={f"c{place}": pa.int64() for place in range(COLUMNS)}),
    ),
    "lines.csv": (_write_long_lines, ps.Flow.read_csv),
}
"""How each is written, and read."""


@dataclass(frozen=True)
class Peak:
    """In bytes: what the plan promised, and what was taken. ``unbounded``: what it said in words."""

    promised: int
    pool: int
    process: int
    unbounded: Sequence[str]


def flow_of(operator: str, shape: str, folder: Path) -> ps.Flow:
    """One operator between two sources and an exchange, or a sink behind a source."""
    flow = ps.Flow("peaks", lanes=1)
    if operator in SINKS:
        SINKS[operator](flow.from_source(SHAPES[shape]("a"), name="a"), Path(mkdtemp(dir=folder)))
        return flow
    one, other = (flow.from_source(SHAPES[shape](name), name=name) for name in ("a", "b"))
    made = OPERATORS[operator](one, other).gather()
    made.map_batches(_nothing, made.schema).collect("found")
    return flow


def flow_over(file: str, folder: Path) -> ps.Flow:
    """A file that is read; it is written by another process, whose memory does not count."""
    write, read = FILES[file]
    if not os.fork():
        try:
            write(folder / file)
        finally:
            os._exit(0)
    os.wait()
    flow = ps.Flow("peaks", lanes=1)
    made = read(flow, folder / file)
    made.map_batches(_nothing, made.schema).collect("found")
    return flow


def _nothing(records: pa.RecordBatch) -> pa.RecordBatch:
    return records.slice(0, 0)


def measured(make: Callable[[], ps.Flow]) -> Peak:
    """Run it in a child of this process, which has no other thread yet."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as stream:
                json.dump(_run(make()), stream)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return Peak(**json.loads(text))


def _run(flow: ps.Flow) -> Mapping[str, object]:
    pool = pa.proxy_memory_pool(pa.default_memory_pool())  # planning, types guessed from a file say, does not count
    pa.set_memory_pool(pool)
    with Watched() as watched, ps.run_local(flow, memory_budget=BUDGET, threads=1) as job:
        job.wait()
        bound = memory_bound(job.plan)
    return asdict(Peak(bound.bytes or 0, pool.max_memory(), watched.peak, bound.unbounded))


class Watched:
    """Looks at the anonymous memory of this process while it is open."""

    def __init__(self) -> None:
        self.peak = 0
        self._before = anonymous_memory()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.003):
            self.peak = max(self.peak, anonymous_memory() - self._before)


def anonymous_memory() -> int:
    """What this process holds that is no file's."""
    with open("/proc/self/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


def main() -> None:
    """Rule 3."""
    with TemporaryDirectory() as folder:
        for line in sys.stdin:
            operator, shape = line.strip().split(", ")
            what = (flow_over, shape) if operator == "read" else (flow_of, operator, shape)
            make = partial(*what, Path(folder))
            print(json.dumps(asdict(measured(make))), flush=True)


if __name__ == "__main__":
    main()
