"""Flows of hash joins of which one side is read before the other one: either side, nested, forked, in parts."""

from __future__ import annotations

import random
from collections.abc import Callable

from penstock.engine.flow.flow import Flow, Stream
from support.engine_simulation_flows import SIZES, Disk, DiskSink, numbers


def _sink(disk: Disk, flow: Flow, stream: Stream, name: str = "all") -> None:
    flow.attach(DiskSink(name, disk), stream, name=name)


def _short(flow: Flow, sizes: tuple[int, ...] = (2, 1, 0, 3), name: str = "short") -> Stream:
    return flow.from_tables(numbers(sizes), name=name).project(split="split", other="x")


def small_right(disk: Disk, flow: Flow) -> None:
    """The long side waits for the short one."""
    long = flow.from_tables(numbers(), name="numbers").gather()
    _sink(disk, flow, long.hash_join(_short(flow).gather(), on=["split"]))


def small_left(disk: Disk, flow: Flow) -> None:
    """The long side is the one that would be built."""
    long = flow.from_tables(numbers(), name="numbers").gather()
    one = _short(flow).gather().hash_join(long, on=["split"], how="left semi")
    _sink(disk, flow, one.hash_join(_short(flow, (0, 1, 1), "few").gather(), on=["split"], how="anti"))


def both_in_parts(disk: Disk, flow: Flow) -> None:
    """A short stream is built in two joins, of which one feeds the other, all by key."""
    short = _short(flow)
    long = flow.from_tables(numbers(), name="numbers")
    one = long.hash_join(short, on=["split"], exchange="key")
    more = flow.from_tables(numbers(SIZES[:8]), name="more").project(split="split", more="x")
    other = more.hash_join(short, on=["split"], how="left semi", exchange="key")
    _sink(disk, flow, one.hash_join(other, on=["split"], exchange="key").gather())


def with_itself(disk: Disk, flow: Flow) -> None:
    """A stream is joined with what is made of it, and its other end has a sink."""
    long = flow.from_tables(numbers(), name="numbers").gather()
    totals = long.aggregate(["split"], total=("x", "sum"))
    _sink(disk, flow, long.hash_join(totals, on=["split"]))
    _sink(disk, flow, totals, "totals")


def copied(disk: Disk, flow: Flow) -> None:
    """Every subtask has a copy of the short side."""
    long = flow.from_tables(numbers(), name="numbers").rebalance()
    _sink(disk, flow, long.hash_join(_short(flow).broadcast(), on=["split"]).gather())


def among_its_kin(disk: Disk, flow: Flow) -> None:
    """Rows of a few kinds, then those of which the whole stream has others, then those of which the stream itself has
    none: a side that comes of a fork is read before a stream that does not, and the fork's other end is built."""
    long = flow.from_tables(numbers(), name="numbers").gather()
    few = long.hash_join(_short(flow, (1, 1), "few").gather(), on=["split"]).project("split", "x")
    everything = flow.from_tables(numbers(), name="more").gather().project("split", y="x")
    among = few.hash_join(everything, on=["split"], how="left semi", filter="x <> y")
    _sink(disk, flow, among.hash_join(long.project("split", z="x"), on=["split"], how="anti", filter="x < z"))


def beside_another(disk: Disk, flow: Flow) -> None:
    """What a join gives meets another stream round by round."""
    long = flow.from_tables(numbers(), name="numbers").project("split", "x").gather()
    other = flow.from_tables(numbers(), name="more").project("split", "x").gather()
    few = long.hash_join(_short(flow, SIZES[:5]).gather(), on=["split"], how="left semi")
    _sink(disk, flow, few.union(other))


JOINS = (small_right, small_left, both_in_parts, with_itself, copied, among_its_kin, beside_another)


def drawn(seed: int) -> Callable[[Disk, Flow], None]:
    """Joins of streams with each other, most of which have several readers: whatever meets, in one subtask."""

    def build(disk: Disk, flow: Flow) -> None:
        draw, streams = random.Random(seed), []
        for name in ("a", "b", "c")[: draw.choice((1, 2, 3))]:
            sizes = SIZES[: draw.choice((2, 5, 12))]
            streams.append(flow.from_tables(numbers(sizes), name=name).gather())
        for _ in range(draw.choice((2, 3, 4, 5))):
            left, right = draw.choice(streams), draw.choice(streams).project("split", y="x")
            if draw.random() < 0.3:
                left = left.filter(f"x % 3 <> {draw.randrange(3)}")
            if draw.random() < 0.2:
                right = right.sort("y")
            how = draw.choice(("inner", "left semi", "anti", "left"))
            condition = draw.choice((None, "x <> y", "x > y"))
            streams.append(left.hash_join(right, on=["split"], how=how, filter=condition).project("split", "x"))
        ends = [streams[-1], *draw.sample(streams[:-1], draw.choice((0, 0, 1)))]
        for name, end in zip(("all", "totals"), ends, strict=False):
            _sink(disk, flow, end.limit(200), name)

    return build
