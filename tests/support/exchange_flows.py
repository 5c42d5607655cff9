"""Flows with exchanges for simulated jobs: each sink stands behind a gather, so that its whole sequence is compared."""

from __future__ import annotations

import pyarrow as pa

from penstock.engine.flow.flow import Flow, Stream
from support.engine_simulation_flows import SIZES, Disk, DiskSink, numbers


def _rows(flow: Flow) -> Stream:
    """Numbers, with a group that is spread over all lanes."""
    return flow.from_tables(numbers(), name="numbers").with_columns(g="x % 3")


def _groups(flow: Flow) -> Stream:
    """A few rows of each group, and of one that has no numbers."""
    tables = [
        pa.table({"g": pa.array([split % 4] * (size % 3), pa.int64()), "y": pa.array(range(size % 3), pa.int64())})
        for split, size in enumerate(SIZES)
    ]
    return flow.from_tables(tables, name="groups")


def _end(disk: Disk, stream: Stream) -> None:
    stream.flow.attach(DiskSink("all", disk), stream.gather(), name="all")


def partitioned(disk: Disk, flow: Flow) -> None:
    """Two exchanges in a row, a sink between them, and state in each stage."""
    parts = _rows(flow).partition_by("g").distinct("g", "split")
    flow.attach(DiskSink("parts", disk), parts.stream_aggregate(by=["g"], n="count").gather(), name="parts")
    _end(disk, parts.partition_by("key").aggregate(["key"], n="count", total=("x", "sum")))


def rebalanced(disk: Disk, flow: Flow) -> None:
    """Turns, ranges, and a union of both."""
    rows = _rows(flow)
    turns, ranges = rows.filter("x < 60").rebalance(), rows.partition_by("split")
    _end(disk, turns.union(ranges).stream_aggregate(by=["g"], n="count", last=("x", "last")))


def joined_by_key(disk: Disk, flow: Flow) -> None:
    """Both sides divided by the key; right rows without match come last."""
    _end(disk, _rows(flow).hash_join(_groups(flow), ["g"], how="full", exchange="key"))


def joined_everywhere(disk: Disk, flow: Flow) -> None:
    """The right side in every subtask."""
    _end(disk, _rows(flow).rebalance().hash_join(_groups(flow).filter("y >= 0").broadcast(), ["g"], how="left"))


def forwarded(disk: Disk, flow: Flow) -> None:
    """Forward edges alone: the tasks of one number are a region of their own."""
    rows = flow.from_tables(numbers(), name="numbers").filter("x > 4").forward()
    flow.attach(DiskSink("rows", disk), rows.forward(), name="rows")
    groups = rows.filter("x > 8").forward().stream_aggregate(by=["key"], n="count")
    flow.attach(DiskSink("groups", disk), groups, name="groups")


def forwarded_and_gathered(disk: Disk, flow: Flow) -> None:
    """Forward edges between exchanges of other kinds."""
    parts = _rows(flow).forward().partition_by("g").forward().distinct("g", "split").forward()
    _end(disk, parts.aggregate(["g"], n="count", total=("x", "sum")).forward())


FORWARDS = (forwarded, forwarded_and_gathered)
EXCHANGES = (partitioned, rebalanced, joined_by_key, joined_everywhere)
