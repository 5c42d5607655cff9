"""What a checkpoint holds of a feed's sequencer, and its form as a table.

The first row of the table holds the counters, where epochs have ended, and the progress of the ranks; each further one
a row that is kept, in ``row``, a struct of the feed's columns. ``rows`` is the number of rows so far, in the first row
alone, so that its sum is what the audit compares.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Generic

import pyarrow as pa

from ..buffers.state_rows import children
from ..core.errors import StorageError
from ..core.operator import LANE
from .batch_grid import BatchGrid, CutGrid
from .digests import OrderHash
from .marks import END
from .messages import R
from .progress import RankProgress, Untaken


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Where an epoch has ended, and the ``content`` (``digests``) of all rows up to there."""

    position: int
    content: int


@dataclass(frozen=True, slots=True)
class CutState:
    """Of batches that were cut by what rows cost: the ``first`` one that is held, the ``next`` one that is to be cut,
    and how many there are up to the end of each epoch that has ended. Rows say where they end. ``is_open``: the first
    rows of the next one are held: the operators before the feed were cut in the middle of it."""

    first: int
    next: int
    epochs: tuple[int, ...] = ()
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class SequencerState(Generic[R]):
    """What a checkpoint holds. ``first``: the position of the first of ``rows``; ``position``: after the last.
    ``ends``: of the epochs that have ended. ``progress`` and ``untaken``: what the feed server knows of the ranks."""

    first: int
    position: int
    ended: bool
    order: OrderHash
    rows: tuple[R, ...]
    ends: tuple[EpochEnd, ...] = ()
    progress: tuple[RankProgress, ...] = ()
    """Of the ranks of the newest group."""
    untaken: tuple[Untaken, ...] = ()
    cut: CutState | None = None
    """Where batches have different numbers of rows."""

    def grid(self, batch_size: int, drop_last: bool) -> BatchGrid:
        """Of the rows so far; where batches were cut, without those that it holds."""
        ends = [end.position for end in self.ends]
        if self.cut is not None:
            return CutGrid.going_on(self.cut.first, self.first, ends, self.cut.epochs)
        return BatchGrid.of(batch_size, drop_last, ends)

    def first_batch(self, batch_size: int, drop_last: bool) -> int:
        """The first batch that it holds, or that comes after it."""
        return self.grid(batch_size, drop_last).batch_from(self.first)

    def next_batch(self, batch_size: int, drop_last: bool) -> int:
        """The first batch of which it holds no row."""
        if self.cut is not None:
            return self.cut.next + self.cut.is_open
        return self.grid(batch_size, drop_last).batch_from(self.position)


_COUNTERS = pa.schema(
    [
        (LANE, pa.int32()),
        ("rows", pa.int64()),
        ("first", pa.int64()),
        ("ended", pa.bool_()),
        ("order", pa.uint64()),
        ("content", pa.uint64()),
        ("ends", pa.list_(pa.struct([("position", pa.int64()), ("content", pa.uint64())]))),
        ("places", pa.list_(pa.struct([(each.name, pa.int64()) for each in fields(RankProgress)]))),
        ("untaken", pa.list_(pa.struct([(each.name, pa.int64()) for each in fields(Untaken)]))),
    ]
)


_CUT = pa.field("cut", pa.list_(pa.int64()))
"""The numbers of a ``CutState``; only where batches were cut."""


def write_state(state: SequencerState[pa.RecordBatch], lane: int, schema: pa.Schema) -> pa.Table:
    """The table of a state; ``schema``: of the feed's rows."""
    kind, cut = pa.struct(list(schema)), state.cut
    counters = _COUNTERS if cut is None else _COUNTERS.append(_CUT)
    header = pa.record_batch(
        [
            pa.array([lane], pa.int32()),
            pa.array([state.position], pa.int64()),
            pa.array([state.first], pa.int64()),
            pa.array([state.ended], pa.bool_()),
            pa.array([state.order.value], pa.uint64()),
            pa.array([state.order.content], pa.uint64()),
            *(
                pa.array([[asdict(each) for each in found]], _COUNTERS.field(name).type)
                for name, found in (("ends", state.ends), ("places", state.progress), ("untaken", state.untaken))
            ),
            *([] if cut is None else [pa.array([[cut.first, cut.next, *cut.epochs]], _CUT.type)]),
            pa.nulls(1, kind),
        ],
        schema=counters.append(pa.field("row", kind)),
    )
    batches = [header]
    for rows in state.rows:
        count = rows.num_rows
        structs = pa.StructArray.from_arrays(rows.columns, fields=list(schema))
        columns = [pa.repeat(pa.scalar(lane, pa.int32()), count), pa.repeat(pa.scalar(0, pa.int64()), count)]
        columns += [pa.nulls(count, field.type) for field in list(counters)[2:]]
        batches.append(pa.record_batch([*columns, structs], schema=header.schema))
    return pa.Table.from_batches(batches).unify_dictionaries()


def read_state(table: pa.Table, schema: pa.Schema) -> SequencerState[pa.RecordBatch]:
    """The state of a table. Its chunks stay as they are: one array cannot hold more than 2 GiB of text."""
    if table.schema.field("row").type != pa.struct(list(schema)):
        raise StorageError(
            f"the checkpoint holds rows of another schema: {table.schema.field('row').type}",
            "run the flow that the checkpoint was taken of",
        )
    rows: list[pa.RecordBatch] = []
    for piece in table.slice(1).to_batches():
        if piece.num_rows:
            rows.append(pa.record_batch(children(piece.column("row")), schema=schema))
    state = read_counters(table)
    if state.cut is not None:
        state = replace(state, cut=replace(state.cut, is_open=bool(rows) and not rows[-1][END][-1].as_py()))
    return replace(state, rows=tuple(rows))


def read_counters(table: pa.Table) -> SequencerState[pa.RecordBatch]:
    """The state of a table, without its rows, and whether the first ones of a batch are among them."""
    counters = table.slice(0, 1).drop_columns(["row"]).to_pylist()[0]
    ends = counters.get("ends") or []
    if counters["ended"] and not ends:  # of an earlier release
        ends = [{"position": counters["rows"], "content": counters["content"]}]
    cut = counters.get("cut")
    return SequencerState(
        counters["first"],
        counters["rows"],
        counters["ended"],
        OrderHash(counters["order"], counters["rows"], counters["content"]),
        (),
        tuple(EpochEnd(**end) for end in ends),
        tuple(RankProgress(**each) for each in counters.get("places") or ()),
        tuple(Untaken(**each) for each in counters.get("untaken") or ()),
        None if cut is None else CutState(cut[0], cut[1], tuple(cut[2:])),
    )
