"""Flows that make training sequences, for simulated jobs: rows that wait across rounds for a window, a row, a turn."""

from __future__ import annotations

from penstock.engine.flow.flow import Flow
from support.engine_simulation_flows import Disk, DiskSink, numbers


def shuffled(disk: Disk, flow: Flow) -> None:
    """Windows that rounds do not end, one shuffle behind the other."""
    rows = flow.from_tables(numbers(), name="numbers").filter("x > 0").shuffle(4, seed=3).shuffle(7, seed=3, epoch=1)
    flow.attach(DiskSink("all", disk), rows, name="all")


def packed(disk: Disk, flow: Flow) -> None:
    """Lists of unequal lengths, in a random order, to rows of one length; an exchange behind it tells in which rounds
    they left."""
    lists = flow.from_tables(numbers(), name="numbers").stream_aggregate(by=["key"], tokens=("x", "collect_list"))
    rows = lists.shuffle(3, seed=1).pack(4, separator=-1, documents="of").project("tokens", "of")
    flow.attach(DiskSink("all", disk), rows.rebalance().gather(), name="all")


def mixed(disk: Disk, flow: Flow) -> None:
    """A long stream and a short one, until the long one has ended, too, while the short one is over or comes again; and
    until the first one has."""
    short = flow.from_tables(numbers((2, 0, 4, 1)), name="short").shuffle(3)
    long = flow.from_tables(numbers(), name="numbers").gather()
    both = flow.mix({short: 1, long: 2}, seed=1, at_end="go on")
    flow.attach(DiskSink("all", disk), both.rebalance().gather(), name="all")
    again = flow.mix({short: 2, long: 1}, seed=2, at_end="begin again")
    flow.attach(DiskSink("again", disk), again.rebalance().gather(), name="again")
    flow.attach(DiskSink("some", disk), flow.mix({long: 2, short: 1}, seed=1), name="some")


SEQUENCES = (shuffled, packed, mixed)
