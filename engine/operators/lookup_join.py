"""Lookup join: each row of the stream with its matches in an index, in the order of the stream.

Rules:

1. A row with a null key is not looked up: it has no match. ``inner`` drops rows without match, ``left`` keeps them
   once, with nulls. Matches of one row come in the order of the index.
2. Batches keep round and lane. Several rows per match may make a batch grow; pieces have at most ``PIECE_ROWS`` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..elements import Batch
from ..errors import FlowError
from ..schemas import check_columns, check_distinct, check_inputs, check_movable, check_same_types
from .index_protocol import Index, OpenIndex
from .keys import check_key_types, valid_rows
from .matching import Matches, check_join_type, join_schema, joined_rows
from .protocol import Emitter, OperatorContext, Output, Stateless


@dataclass(frozen=True)
class LookupJoin:
    """Joins with ``index``; ``on`` are the stream's columns that stand for the index's key, in its order."""

    index: Index
    on: tuple[str, ...]
    how: str = "inner"
    suffix: str = "_right"
    kind: str = "lookup join"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The stream's columns, then the index's columns without its key."""
        check_inputs(self.kind, inputs, 1)
        check_join_type(self.kind, self.how)
        check_distinct(self.kind, "key", self.on)
        check_columns(self.kind, inputs[0], self.on)
        check_movable(self.kind, inputs[0])
        if len(self.on) != len(self.index.key):
            raise FlowError(
                f"lookup join: {len(self.on)} columns {list(self.on)} stand for the key {list(self.index.key)}",
                "name one column of the stream for each column of the index's key",
            )
        fields = [inputs[0].field(name) for name in self.on]
        check_key_types(self.kind, fields, ordered=True)
        theirs = [self.index.schema.field(name) for name in self.index.key]
        check_same_types(self.kind, zip(fields, theirs, strict=True), "stream", "index")
        return join_schema(self.kind, inputs[0], self.index.schema, self.index.key, self.how, self.suffix)

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningLookupJoin:
        """A running join; opens the index."""
        return RunningLookupJoin(self, self.output_schema(inputs))

    def describe(self) -> str:
        """Join type, keys and index."""
        return f"{self.how} on {', '.join(self.on)}, {self.index.describe()}"


class RunningLookupJoin(Stateless):
    """Looks up batch by batch."""

    def __init__(self, config: LookupJoin, schema: pa.Schema) -> None:
        self._on = config.on
        self._keep_left = config.how == "left"
        self._schema = schema
        self._wanted = [name for name in config.index.schema.names if name not in config.index.key]
        self._index: OpenIndex = config.index.open()
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Emit the batch's rows with their matches."""
        records = batch.records
        keys = [records.column(name) for name in self._on]
        valid = valid_rows(keys)
        if valid is None:
            found = self._index.lookup(keys)
            matches = found.matches
        else:
            found = self._index.lookup([column.take(pa.array(valid)) for column in keys])
            matches = _spread(found.matches, valid, records.num_rows)
        rows = found.records.select(self._wanted)
        for made in joined_rows(records, rows, matches, self._schema, keep_left=self._keep_left):
            self._emitter.emit(made, batch.tag.round, batch.tag.lane, out)

    def close(self) -> None:
        """Close the index."""
        self._index.close()


def _spread(matches: Matches, valid: np.typing.NDArray[np.int64], rows: int) -> Matches:
    """Matches of the rows that were looked up as matches of all rows."""
    first, counts = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    first[valid], counts[valid] = matches.first, matches.counts
    return Matches(first, counts, matches.rows)
