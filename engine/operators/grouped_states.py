"""The groups of a hash aggregation: keys and states side by side, and the merging of rows into them.

Rules:

1. A row is a group of one, lifted to a state; merging rows and merging groups is the same (``aggregate_protocol``).
2. Groups stand in the order of their first rows. ``positions`` number the rows that a subtask has taken, so that groups
   that were parted can be put into that order again.
3. What comes later is merged behind what came earlier, always: so results do not depend on when rows were merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .aggregate_protocol import State
from .aggregates import AggregateColumns
from .groups import first_rows, group_ids
from .held_rows import Lanes
from .pieces import Positions


@dataclass(frozen=True)
class Groups:
    """Groups, or rows: keys, states, and the lane and the position of the first row of each."""

    keys: list[pa.Array]
    states: list[State]
    lanes: Lanes
    positions: Positions

    def __len__(self) -> int:
        return len(self.lanes)

    @property
    def bytes(self) -> int:
        """Their size."""
        return int(sum(column.nbytes for column in self.columns)) + self.lanes.nbytes + self.positions.nbytes

    @property
    def columns(self) -> list[pa.Array]:
        """Keys, then the parts of all states."""
        return [*self.keys, *(part for state in self.states for part in state)]

    def take(self, rows: Positions) -> Groups:
        """Some of them."""
        picked = pa.array(rows)
        states = [tuple(part.take(picked) for part in state) for state in self.states]
        return Groups([key.take(picked) for key in self.keys], states, self.lanes[rows], self.positions[rows])


def followed(parts: Sequence[Groups]) -> Groups:
    """The first ones, then the others."""
    if len(parts) == 1:
        return parts[0]
    keys = [pa.concat_arrays(column) for column in zip(*(part.keys for part in parts), strict=True)]
    states = [
        tuple(pa.concat_arrays(column) for column in zip(*state, strict=True))
        for state in zip(*(part.states for part in parts), strict=True)
    ]
    lanes = np.concatenate([part.lanes for part in parts])
    return Groups(keys, states, lanes, np.concatenate([part.positions for part in parts]))


@dataclass(frozen=True)
class Grouping:
    """How rows become groups. ``per_lane``: rows of different lanes are of different groups."""

    aggregates: AggregateColumns
    keys: tuple[pa.DataType, ...]
    per_lane: bool

    @property
    def row_bytes(self) -> int:
        """What a row takes as a group, besides what it takes as a row."""
        types = [field.type for field in self.aggregates.state_fields()]
        return sum(type.bit_width // 8 if pa.types.is_primitive(type) else 8 for type in types) + 12

    def merged(self, parts: Sequence[Groups]) -> Groups:
        """The groups of all parts, of which the earlier ones come first, so that their groups keep their number."""
        whole = followed(parts)
        keys = [*whole.keys, pa.array(whole.lanes)] if self.per_lane else whole.keys
        ids, count = group_ids(keys, len(whole))
        states = self.aggregates.merge_groups(whole.states, ids, count)
        firsts = np.flatnonzero(first_rows(ids))
        picked = pa.array(firsts)
        return Groups([key.take(picked) for key in whole.keys], states, whole.lanes[firsts], whole.positions[firsts])

    @property
    def schema(self) -> pa.Schema:
        """Of groups as a record batch: keys, states, lane, position. Columns go by position."""
        keys = [pa.field("key", type) for type in self.keys]
        places = [pa.field("lane", pa.int32()), pa.field("position", pa.int64())]
        return pa.schema([*keys, *self.aggregates.state_fields(), *places])

    def stored(self, groups: Groups) -> pa.RecordBatch:
        """Groups as a record batch."""
        columns = [*groups.columns, pa.array(groups.lanes), pa.array(groups.positions)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def read(self, stored: pa.RecordBatch) -> Groups:
        """Groups from a record batch."""
        *columns, lanes, positions = stored.columns
        width = len(self.keys)
        states = self.aggregates.split(columns[width:])
        return Groups(columns[:width], states, lanes.to_numpy(), positions.to_numpy())
