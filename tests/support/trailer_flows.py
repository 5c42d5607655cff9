"""Flows with an operator that emits at its end whatever it is told about its past, for simulated jobs.

The engine's own operators know from their state that they have finished; a user's need not. So a ``finish`` that runs
again after a restore shows here, as a row that comes twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.engine.core.elements import FINAL_ROUND, Batch
from penstock.engine.core.operator import LANE, Emitter, OperatorContext, Output, Stateless, Steps
from penstock.engine.flow.flow import Flow, Stream
from support.engine_simulation_flows import SIZES, Disk, DiskSink, numbers


@dataclass(frozen=True)
class Trailer:
    """Passes everything on; at the end of the data a row for each lane says how many rows that has had, if it
    ``counts``: behind a join it depends on what comes first under which lane rows leave."""

    counts: bool = True
    kind: str = "trailer"

    def describe(self) -> str:
        return "adds a row for each lane"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningTrailer:
        return RunningTrailer(self.counts, inputs[0], context, restored)


class RunningTrailer(Stateless):
    """Its state says nothing of its end."""

    def __init__(self, counts: bool, schema: pa.Schema, context: OperatorContext, restored: pa.Table | None) -> None:
        self._shown = counts
        self._schema, self._lanes, self._emitter = schema, context.lanes, Emitter()
        self._counts: Counter[int] = Counter()
        for row in () if restored is None else restored.to_pylist():
            self._counts[row[LANE]] += row["rows"]

    def process(self, port: int, batch: Batch, out: Output) -> None:
        self._counts[batch.tag.lane] += batch.records.num_rows
        self._emitter.emit(batch.records, batch.tag.round, batch.tag.lane, out)

    def finish(self, out: Output) -> Steps:
        for lane in self._lanes:
            row = {"split": [-1], "x": [self._counts[lane] if self._shown else 0], "key": [lane]}
            self._emitter.emit(pa.record_batch(row, schema=self._schema), FINAL_ROUND, lane, out)
            yield

    def snapshot(self) -> pa.Table | None:
        if not self._counts:
            return None
        lanes = pa.array(list(self._counts), pa.int32())
        return pa.table({LANE: lanes, "rows": pa.array(list(self._counts.values()), pa.int64())})


def _ended_by(flow: Flow, stream: Stream, *, counts: bool = True) -> Stream:
    return flow.apply(Trailer(counts), [stream])


def _sink(disk: Disk, flow: Flow, stream: Stream, name: str) -> None:
    flow.attach(DiskSink(name, disk), stream, name=name)


def trailed(disk: Disk, flow: Flow) -> None:
    """No exchange: a subtask ends long before the others, and its lanes move to others in a restart."""
    paced = flow.from_tables(numbers((3, 1, 0, 9, 5, 0, 0, 0, 9, 5)), name="numbers", rate=400)
    _sink(disk, flow, _ended_by(flow, paced), "all")


def trailed_and_gathered(disk: Disk, flow: Flow) -> None:
    """A trailer on either side of an exchange."""
    paced = flow.from_tables(numbers((3, 1, 0, 9, 5, 0, 0, 0, 9, 5)), name="numbers", rate=400)
    _sink(disk, flow, _ended_by(flow, _ended_by(flow, paced).filter("x != 2").gather()), "all")


def teed(disk: Disk, flow: Flow) -> None:
    """A short branch with a sink of its own also feeds the join that a long one probes: all in one region, and the end
    of the short one in the middle of a task."""
    short = _ended_by(flow, flow.from_tables(numbers((2, 1)), name="few")).gather()
    short = _ended_by(flow, short)
    _sink(disk, flow, short, "short")
    long = flow.from_tables(numbers(), name="numbers", rate=400).gather()
    other = short.project(split="split", other="x")
    joined = long.hash_join(other, on=["split"], how="left").project("split", "x", "key")
    _sink(disk, flow, _ended_by(flow, joined, counts=False), "all")


def trailed_parts(disk: Disk, flow: Flow) -> None:
    """A short and a long stream, each divided, with a trailer for each part."""
    short = flow.from_tables(numbers((2, 0, 3)), name="few").partition_by("key")
    _sink(disk, flow, _ended_by(flow, short).gather(), "short")
    long = flow.from_tables(numbers(SIZES), name="numbers", rate=400).partition_by("key")
    both = _ended_by(flow, long).gather().union(short.gather())
    _sink(disk, flow, _ended_by(flow, both), "all")


TRAILERS = (trailed, trailed_and_gathered, teed, trailed_parts)
