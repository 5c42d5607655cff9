"""Random flows, parallelisms, numbers of ranks and crashes: one order.

The oracle is the flow's own list in one process, without a failure; for further epochs, the feed of one rank. Every
stretch of a run reads some batches with a group of its own, then the job dies (``shutdown`` leaves what a killed
process leaves: the last checkpoint), or a task does, and goes on at another parallelism.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.coordinator.model.events import TaskLost
from support.feeds import chunked, read_group

LISTS = pa.list_(pa.int64())


@dataclass(frozen=True)
class Step:
    """One operator of a random flow, and a number that it is made with."""

    kind: str
    number: int


def apply(stream: ps.Stream, step: Step) -> ps.Stream:
    number = step.number
    match step.kind:
        case "filter":
            return stream.filter(f"n % {number + 2} <> 0")
        case "unnest":
            doubled = stream.map_batches(_Lists(number), pa.schema([("n", pa.int64()), ("each", LISTS)]))
            return doubled.unnest("each").project(n="n + each")
        case "join":
            other = [pa.table({"n": list(range(start, start + 40))}) for start in range(0, 200, 40)]
            right = stream.flow.from_tables(other).filter(f"n % {number + 2} <> 1")
            return stream.hash_join(right, ["n"], how="left semi", exchange="key")
        case "pack":
            lists = stream.map_batches(_Lists(number), pa.schema([("n", pa.int64()), ("each", LISTS)]))
            packed = lists.pack(3 + number, tokens="each", segments=None, positions=None)
            return packed.unnest("each").project(n="each")
        case "mix":
            other = stream.flow.from_tables([pa.table({"n": list(range(60))})] * 2)
            return stream.flow.mix({stream: number + 1, other: 1}, seed=number, at_end="go on")
        case _:
            return stream.shuffle(5 * number + 1, seed=number)


class _Lists:
    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        values = records.column("n").to_pylist()
        lists = [list(range(value % (self._number + 2))) for value in values]
        return pa.record_batch({"n": records.column("n"), "each": pa.array(lists, LISTS)})


def build(steps: list[Step]) -> tuple[ps.Flow, ps.Stream]:
    flow = ps.Flow("random", lanes=4, parts=6)
    tables = [pa.table({"n": list(range(start, start + 23))}) for start in range(0, 184, 23)]
    stream = flow.from_tables(tables)
    for step in steps:
        stream = apply(stream, step)
    return flow, stream


steps = st.lists(
    st.builds(Step, st.sampled_from(("filter", "unnest", "join", "pack", "shuffle", "mix")), st.integers(0, 3)),
    max_size=4,
)
stretches = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 6), st.sampled_from(("job", "task"))), max_size=3
)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=steps,
    stretches=stretches,
    batch_size=st.sampled_from((7, 16, 50)),
    last=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    epochs=st.sampled_from((1, 2, 3)),
)
def test_any_flow_gives_one_order_whatever_reads_it_and_whatever_dies(
    steps: list[Step],
    stretches: list[tuple[int, int, int, str]],
    batch_size: int,
    last: tuple[int, int],
    epochs: int,
) -> None:
    flow, stream = build(steps)
    stream.gather().collect("rows")
    first = chunked(ps.run_local(flow, parallelism=1).result("rows").to_pylist(), batch_size)
    expected = first
    if epochs > 1:
        job = run(steps, batch_size, 1, None, epochs)
        expected = read_group(job.feed(), 1)
        job.wait(120)
        assert expected[: len(first)] == first
        assert len(expected) == epochs * len(first)
    found: list[list[Any]] = []

    def epoch_at(read: list[list[Any]]) -> int:
        return len(read) // len(first) if first and epochs > 1 else 0

    with tempfile.TemporaryDirectory() as folder:
        for parallelism, ranks, batches, kills in stretches:
            left = len(expected) - len(found) - 1  # the last batch is left, so that the job does not end
            if left < 0:
                break
            job = run(steps, batch_size, parallelism, folder, epochs)
            if min(batches, left):
                found += read_group(
                    job.feed(), ranks, len(found), min(batches, left), close=False, epoch=epoch_at(found)
                )
            job.checkpoint(60)
            if kills == "task":
                kill(job)
                if len(found) < len(expected) - 1:
                    found += read_group(job.feed(), 1, len(found), 1, close=False, epoch=epoch_at(found))
                job.checkpoint(60)
            job.shutdown()
        job = run(steps, batch_size, last[0], folder, epochs)
        found += read_group(job.feed(), last[1], len(found), epoch=epoch_at(found))
        assert job.wait(120).audit().clean
    assert found == expected


def run(steps: list[Step], batch_size: int, parallelism: int, folder: str | None, epochs: int) -> ps.Job:
    flow, stream = build(steps)
    stream.feed(batch_size, room=4 * batch_size, keep=10_000, epochs=epochs)
    return ps.run_local(flow, parallelism=parallelism, checkpoints=folder)


def kill(job: ps.Job) -> None:
    for task, counts in list(job.statistics().items())[-1:]:
        job._request(TaskLost(task, counts.attempt, "the test says so", 0.0))
