"""Index lookup joins in windows: batches of output, lookups under way at once, barriers while some are.

Each docstring begins with the scenario's id.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from penstock.engine.flow import index
from penstock.engine.flow.flow import Flow
from penstock.engine.operators import LookupJoin
from support.scenario_tasks import (
    MODES,
    WAIT,
    batches_out,
    cut_at,
    finish,
    joined,
    read,
    rows,
    rows_read,
    run,
    scan,
    split,
    window,
)

KEYS = 3000
PROBE = pa.schema([(name, pa.int64()) for name in ("t0", "t1", "t2", "v")])


def indexed(null_keys: bool) -> index.Index:
    """Unique keys 1 to 3000, and perhaps rows whose key is null, which match nothing."""
    first: list[int | None] = [*range(1, KEYS + 1), *([None] * 100 if null_keys else [])]
    table = pa.table({"u0": first, "u1": [1] * len(first), "u2": [1] * len(first), "w": range(len(first))})
    return index.memory(table, ["u0", "u1", "u2"])


@dataclass(frozen=True)
class Elsewhere:
    """An index that is asked from other threads. ``gate`` is called there before each answer."""

    inner: index.Index
    gate: InputGate | None = None
    blocks: bool = True

    @property
    def schema(self) -> pa.Schema:
        return self.inner.schema

    @property
    def key(self) -> tuple[str, ...]:
        return self.inner.key

    def open(self) -> OpenElsewhere:
        return OpenElsewhere(self.inner.open(), self.gate)

    def fingerprint(self) -> str:
        return ""

    def describe(self) -> str:
        return "an index elsewhere"


@dataclass
class OpenElsewhere:
    inner: index.OpenIndex
    gate: InputGate | None

    def lookup(self, keys: pa.RecordBatch) -> index.Found:
        if self.gate is not None:
            self.gate.pass_through()
        return self.inner.lookup(keys)

    def close(self) -> None:
        self.inner.close()


@dataclass(eq=False)
class InputGate:
    """Holds lookups up, and counts those that wait."""

    is_open: threading.Event = field(default_factory=threading.Event)
    condition: threading.Condition = field(default_factory=threading.Condition)
    inside: int = 0
    most: int = 0

    def pass_through(self) -> None:
        with self.condition:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.condition.notify_all()
        assert self.is_open.wait(WAIT)
        with self.condition:
            self.inside -= 1

    def wait_for(self, count: int) -> None:
        with self.condition:
            assert self.condition.wait_for(lambda: self.inside == count, WAIT), f"{self.inside} lookups, not {count}"


def probes(batches: int, size: int) -> Iterator[pa.Table]:
    for number in range(batches):
        keys = [1 + (number * size + row) % KEYS for row in range(size)]
        yield pa.table([keys, [1] * size, [1] * size, range(size)], schema=PROBE)


SIZES = [
    (10, 100, 10, 10, 100),
    (10, 500, 10, 10, 500),
    (10, 1, 200, 10, 10),
    (1, 500, 10, 1, 50),
    (1, 300, 10, 1, 30),
    (1, 500, 200, 1, 3),
    (10, 200, 200, 10, 10),
    (10, 500, 300, 10, 20),
    (10, 50, 1, 10, 500),
]
VARIANTS = [(False, 0, False), (False, 0, True), (True, 0, False), (True, 3, True)]
"""Asynchronous or not, batches ahead, null keys in the index."""


def check_batches(how, size, split_output, variant, degree, make_task):
    batches, rows_each, output_rows, whole, cut = size
    elsewhere, prefetch, null_keys = variant
    found = Elsewhere(indexed(null_keys)) if elsewhere else indexed(null_keys)
    join = LookupJoin(found, ("t0", "t1", "t2"), how=how, prefetch=prefetch, split_output=split_output)
    stream = cut_at(scan(Flow("plan"), like=PROBE.empty_table()), join, output_rows, "join")
    task = make_task(stream, degree)
    tables = list(probes(batches, rows_each))
    given = [{"rows": split(each)} for each in tables]
    out = joined(run(task, given, barriers=degree == 0))
    expected = [(*row.values(), row["t0"] - 1) for each in tables for row in each.to_pylist()]
    assert rows(out) == expected
    assert batches_out(task, "join") == len(out) == (cut if split_output else whole)


@MODES
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("split_output", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_inner_lookups_give_the_wanted_batches(size, split_output, variant, degree, make_task):
    """il.outputBatches.inner: one batch of output per batch of input, or pieces of the wanted size; in serial mode with
    a barrier behind each split, which changes nothing. An index needs no splits here: it is opened with the task."""
    check_batches("inner", size, split_output, variant, degree, make_task)


@MODES
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("split_output", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_left_lookups_give_the_wanted_batches(size, split_output, variant, degree, make_task):
    """il.outputBatches.left: the same, as every probe row has its match."""
    check_batches("left", size, split_output, variant, degree, make_task)


@MODES
@pytest.mark.parametrize("prefetch", [0, 3])
def test_as_many_lookups_are_under_way_as_were_asked_for(prefetch, degree, make_task, one_row_batches):
    """il.prefetch: exactly 1 + P lookups wait before the first one is answered, and never more."""
    gate = InputGate()
    join = LookupJoin(Elsewhere(indexed(False), gate), ("t0", "t1", "t2"), prefetch=prefetch)
    flow = Flow("plan")
    task = make_task(flow.apply(join, [scan(flow, like=PROBE.empty_table())]), degree)
    [given] = probes(1, 10)
    task.add_split("rows", split(given))
    task.request_barrier()
    nothing, future = task.next()
    assert nothing is None
    assert not future.done()
    gate.wait_for(1 + prefetch)
    gate.is_open.set()
    assert [row[0] for row in rows(read(task))] == list(range(1, 11))
    assert gate.most == 1 + prefetch


@MODES
@pytest.mark.parametrize("barriers", [True, False])
@pytest.mark.parametrize("prefetch", [0, 1, 4, 256])
def test_barrier_comes_behind_the_lookups_of_its_window(prefetch, barriers, degree, make_task):
    """il.barrier: five splits of 256 probe rows, all of which match; batches of at most 32 rows."""
    found = Elsewhere(index.memory(pa.table({"u0": range(100), "w": range(100)}), ["u0"]))
    like = pa.table({"t0": pa.array([], pa.int64())})
    stream = cut_at(scan(Flow("plan"), like=like), LookupJoin(found, ("t0",), prefetch=prefetch), 32, "join")
    task = make_task(stream, degree)
    keys = [n % 100 for n in range(256)]
    windows = run(task, [{"rows": split(t0=keys)}] * 5, barriers=barriers)
    expected = [(key, key) for key in keys]
    assert [rows(each) for each in windows] == ([expected] * 5 + [[]] if barriers else [expected * 5])
    assert len(joined(windows)) == 40
    assert rows_read(task) == {"rows": 1280}


@MODES
def test_cancel_waits_for_the_lookups_under_way(degree, make_task):
    """il.prefetch: a lookup that has begun comes back before its task is closed; the fixture finds no thread left."""
    gate = InputGate()
    flow = Flow("plan")
    join = LookupJoin(Elsewhere(indexed(False), gate), ("t0", "t1", "t2"))
    task = make_task(flow.apply(join, [scan(flow, like=PROBE.empty_table())]), degree)
    [given] = probes(1, 10)
    task.add_split("rows", split(given))
    reached = task.request_barrier()
    assert task.next()[0] is None
    gate.wait_for(1)
    threading.Timer(0.0, gate.is_open.set).start()
    task.cancel()
    assert gate.inside == 0
    assert reached.done()


@MODES
def test_windows_go_on_after_an_empty_one(degree, make_task):
    """il.barrier: a window in which nothing is looked up is reached like any other."""
    flow = Flow("plan")
    join = LookupJoin(Elsewhere(indexed(False)), ("t0", "t1", "t2"))
    task = make_task(flow.apply(join, [scan(flow, like=PROBE.empty_table())]), degree)
    assert window(task) == []
    [given] = probes(1, 3)
    assert len(rows(window(task, rows=split(given)))) == 3
    assert finish(task) == []
