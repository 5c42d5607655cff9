"""Flows without an exchange, whose tasks go on at another parallelism in the middle of what they were doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.core.traits import Traits
from penstock.engine.flow.flow import Flow
from support.engine_simulation_flows import Disk, DiskSink, numbers

SLOWLY = 1
"""Rows that a sink takes at once."""


@dataclass(frozen=True)
class LaneSink(DiskSink):
    """The same, which says that it takes each lane for itself."""

    traits: ClassVar[Traits] = Traits(lane_wise=True)


@dataclass(frozen=True)
class SlowLaneSink(DiskSink):
    """The same, in parts of a row."""

    traits: ClassVar[Traits] = Traits(lane_wise=True, rows_at_once=SLOWLY)


def mapped(disk: Disk, flow: Flow) -> None:
    """A function in a driver of its own, filters on both sides of it."""

    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(1, "x", pc.multiply(batch.column("x"), 2))

    rows = flow.from_tables(numbers(), name="numbers").filter(pc.field("x") > 2)
    schema = pa.schema([("split", pa.int64()), ("x", pa.int64()), ("key", pa.int64())])
    mapped = rows.map_batches(doubled, schema=schema).filter(pc.field("x") != 20).with_columns(y="x + 1")
    flow.attach(SlowLaneSink("rows", disk), mapped, name="rows")


def unnested(disk: Disk, flow: Flow) -> None:
    """An operator that gives more than it takes, in pieces, and two streams behind a fork."""
    rows = flow.from_tables(numbers(), name="numbers").with_columns(each="[x, x + 1, x + 2, key]")
    many = rows.unnest("each").filter("each % 5 <> 0")
    flow.attach(LaneSink("rows", disk), many, name="rows")
    flow.attach(SlowLaneSink("few", disk), many.filter(pc.field("x") < 60), name="few")


def apart(disk: Disk, flow: Flow) -> None:
    """Two flows, of which one ends long before the other."""
    short = flow.from_tables(numbers((2, 0, 1)), name="soon")
    flow.attach(LaneSink("short", disk), short.filter(pc.field("x") >= 0), name="short")
    rows = flow.from_tables(numbers(), name="numbers").with_columns(y="x * 3").filter(pc.field("x") > 1)
    flow.attach(LaneSink("rows", disk), rows.filter(pc.field("y") > 6), name="rows")


MOVED = (mapped, unnested, apart)
