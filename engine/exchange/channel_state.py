"""Batches in flight as part of a checkpoint: what barriers have overtaken, as tables and back. Pure.

Rules:

1. A row says where it was: ``__channel`` (the other side's subtask; 0 for outputs) and ``__position`` in that channel,
   the tag of its batch (``__round``, ``__from``, ``__sequence``), and in ``LANE`` the lane by which its owner's state
   is divided: of an input behind a partitioned exchange the row's part, and else the lane of the batch.
2. A record batch of the table is a batch that was in flight. Control elements are not kept: ends of rounds are covered
   by the next one that follows, the rest is said again by whoever is restored.
3. Rows of ``FINAL_ROUND`` come back in the round before it. At another parallelism rows of lanes that have not ended
   may come behind them in the same channel, and nobody may wait for the end of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from ..buffers.state_rows import fitted
from ..core.elements import FINAL_ROUND, Batch, Tag
from ..core.identity import EndedLanes, Holds, Reweight
from ..core.operator import LANE
from ..plan.partitioning import PART
from ..state.change_log import StatePart
from .flight import Flight

_PLACE = pa.schema(
    [
        (LANE, pa.int32()),
        ("__channel", pa.int32()),
        ("__position", pa.int64()),
        ("__round", pa.int64()),
        ("__from", pa.int32()),
        ("__sequence", pa.int64()),
    ]
)
_WIDTH = len(_PLACE)


class ChannelPart(msgspec.Struct, frozen=True):
    """The batches in flight at one side of one exchange of a task."""

    exchange: str
    holds: Holds
    table: pa.Table


class Restored(msgspec.Struct, frozen=True):
    """What an attempt is restored from. ``tables``: state by operator, of the whole vertex; ``channels``: batches in
    flight by exchange and side; ``ended``: for which lanes operators had finished; ``finished``: all of them had, in
    all tasks of the vertex, and their state is carried on by others. ``flight``: of a task that was cut as a whole,
    what this very subtask had in flight (None: it was not; then nothing else says where its drivers stood).
    ``reweights``: what the log says of mixtures. ``parts``: those of the tables, where the job still has them."""

    tables: Mapping[str, pa.Table] = msgspec.field(default_factory=dict)
    channels: Mapping[tuple[str, Holds], pa.Table] = msgspec.field(default_factory=dict)
    ended: tuple[EndedLanes, ...] = ()
    finished: bool = False
    flight: Flight | None = None
    reweights: tuple[Reweight, ...] = ()
    parts: Mapping[str, tuple[StatePart, ...]] = msgspec.field(default_factory=dict)


NOTHING_RESTORED = Restored()


def channel_table(channels: Iterable[tuple[int, Sequence[Batch]]]) -> pa.Table | None:
    """The batches of each channel, in order, as one table; None if there are none."""
    found = [_placed(channel, at, batch) for channel, batches in channels for at, batch in enumerate(batches)]
    # one dictionary per column: a file of Arrow's IPC format takes no more
    return pa.Table.from_batches(found).unify_dictionaries() if found else None


def _placed(channel: int, position: int, batch: Batch) -> pa.RecordBatch:
    records, tag = batch.records, batch.tag
    divided = records.schema.names[-1:] == [PART]
    lane = records.column(records.num_columns - 1).to_numpy() if divided else tag.lane
    place = [lane, channel, position, tag.round, tag.lane, tag.sequence]
    columns = [
        pa.array(np.broadcast_to(value, records.num_rows).astype(kind.to_pandas_dtype()))
        for value, kind in zip(place, _PLACE.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*columns, *records.columns], schema=pa.schema([*_PLACE, *records.schema]))


def channel_batches(table: pa.Table, schema: pa.Schema, lanes: range | None) -> Iterator[Batch]:
    """The batches of tables that were stored one after the other, with the rows of ``lanes`` (None: all rows)."""
    for stored in table.to_batches():
        mine = stored if lanes is None else _rows_of(stored, lanes)
        if mine.num_rows:
            round, lane, sequence = (mine.column(place)[0].as_py() for place in range(3, _WIDTH))
            records = fitted(list(mine.schema)[_WIDTH:], mine.columns[_WIDTH:], schema)
            yield Batch(records, Tag(min(round, FINAL_ROUND - 1), lane, sequence))


def _rows_of(stored: pa.RecordBatch, lanes: range) -> pa.RecordBatch:
    lane = stored.column(0).to_numpy()
    mine = (lane >= lanes.start) & (lane < lanes.stop)
    return stored if mine.all() else stored.filter(pa.array(mine))
