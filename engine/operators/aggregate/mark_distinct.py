"""Mark distinct: every row, with a boolean that tells whether it is the first one of its key.

Rules:

1. Keys are equal as in grouping. The first row is the first in the order of tags.
2. A mask is a boolean column; its marker is true in the first row of the key *in which the mask is true*. A null mask
   is false. The plain marker comes first, then one per mask.
3. Rows keep their tags and are emitted when their round ends. Keys are remembered until a barrier (``drain``) or the
   end. A subtask knows the keys that it has received (see ``distinct``, rule 4). Keys
   and rows that wait are counted as held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...buffers.held_rows import Held, HeldRows
from ...core.elements import FINAL_ROUND, Batch
from ...core.errors import FlowError
from ...core.operator import Emitter, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_columns, check_distinct, check_inputs, check_movable, unique_schema
from ...core.traits import Cut, Emission, Lineage, Traits, all_kept
from ...kernels.groups import check_group_types
from ...kernels.pieces import Bound, Flags
from ...state.change_log import Changes
from .aggregates import keys_in_words
from .seen_keys import SeenKeys
from .seen_state import restore_seen, seen_changes, seen_state


@dataclass(frozen=True)
class MarkDistinct:
    """``marker`` names the column for the key as such, ``masks`` pairs of a mask and the column for it."""

    by: tuple[str, ...]
    marker: str
    masks: tuple[tuple[str, str], ...] = ()
    kind: str = "mark distinct"

    @property
    def traits(self) -> Traits:
        """All columns come out."""
        return Traits(
            columns=all_kept(),
            emission=Emission.PER_ROUND,
            lineage=Lineage(follows=0),
            beyond_budget="the rows of a round, and the keys that it has seen",
            deterministic=True,
            cut={"end_round": Cut.WITHIN, "drain": Cut.WITHIN, "finish": Cut.WITHIN},
            grouped_by=self.by,
            state_of=lambda inputs: f"distinct {keys_in_words(self.by, inputs[0])}{self._where()}",
        )

    def _where(self) -> str:
        masks = [mask for mask, _ in self.masks]
        return f", and where {', '.join(masks)}" if masks else ""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's fields, then the markers."""
        check_inputs(self.kind, inputs, 1)
        (schema,) = inputs
        if not self.by:
            raise FlowError("mark distinct: no key is given", "name at least one column")
        check_distinct(self.kind, "key", self.by)
        masks = [mask for mask, _ in self.masks]
        check_columns(self.kind, schema, [*self.by, *masks])
        check_group_types(self.kind, [schema.field(name) for name in self.by])
        check_movable(self.kind, schema)
        for mask in masks:
            if not pa.types.is_boolean(schema.field(mask).type):
                raise FlowError(
                    f"mark distinct: mask {mask!r} is {schema.field(mask).type}", "compute a boolean column before it"
                )
        markers = [pa.field(name, pa.bool_()) for name in (self.marker, *(name for _, name in self.masks))]
        return unique_schema(self.kind, [*schema, *markers], "give the marker another name")

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningMarkDistinct:
        """A running operator that knows the keys of ``restored``."""
        return RunningMarkDistinct(self, context, inputs[0], restored)

    def describe(self) -> str:
        """The keys and masks."""
        masks = ", ".join(f"{name} where {mask}" for mask, name in self.masks)
        return f"by {', '.join(self.by)}: {self.marker}{', ' + masks if masks else ''}"


class RunningMarkDistinct(Stateless):
    """See the module's rules."""

    def __init__(
        self, config: MarkDistinct, context: OperatorContext, source: pa.Schema, restored: pa.Table | None
    ) -> None:
        self._memory = context.memory
        self._by = config.by
        self._masks = [mask for mask, _ in config.masks]
        self._schema = config.output_schema([source])
        self._bound = Bound(context.output_rows, context.output_bytes)
        keys = pa.schema([source.field(name) for name in config.by])
        #: the keys seen: in any row, then for each mask
        self._seen = [SeenKeys(keys) for _ in range(1 + len(self._masks))]
        #: rows of rounds that have not ended
        self._held = HeldRows(source)
        self._emitter = Emitter()
        if restored is not None:
            restore_seen(restored, self._seen, self._held, context.stored)
        self._account()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Hold the rows until the round ends."""
        self._held.add(batch)
        self._account()

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        """Emit the rows of the round."""
        return self._emit(out) if round < FINAL_ROUND and self._held.rows else None

    def drain(self, out: Output) -> Iterator[None]:
        """Emit what came since the round ended, and forget all keys."""
        yield from self._emit(out)
        for seen in self._seen:
            seen.forget()
        self._account()

    def finish(self, out: Output) -> Steps:
        """Emit what came in the final round."""
        return self.drain(out)

    def snapshot(self) -> pa.Table | None:
        """One row for each key, and those held."""
        return seen_state(self._seen, self._held)

    def changes(self) -> pa.Table | Changes | None:
        """The same; of many keys only those that are new since it was asked last."""
        return seen_changes(self._seen, self._held)

    def close(self) -> None:
        """Give everything up."""
        self._held = HeldRows(self._held.schema)
        for seen in self._seen:
            seen.forget()
        self._account()

    def _account(self) -> None:
        self._memory.hold(self._held.bytes + sum(seen.bytes for seen in self._seen))

    def _emit(self, out: Output) -> Iterator[None]:
        """Mark the rows held a piece at a time, which is let go of then."""
        for held in self._held.take_pieces(self._bound):
            every = np.ones(held.records.num_rows, dtype=bool)
            masks = [held.records.column(name).fill_null(False).to_numpy(zero_copy_only=False) for name in self._masks]
            markers = [self._marked(seen, held, mask) for seen, mask in zip(self._seen, [every, *masks], strict=True)]
            columns = [*held.records.columns, *(pa.array(marker) for marker in markers)]
            marked = pa.RecordBatch.from_arrays(columns, schema=self._schema)
            for round, lane, start, rows in held.units():
                self._emitter.emit(marked.slice(start, rows), round, lane, out)
            yield
            self._account()
        self._account()

    def _marked(self, seen: SeenKeys, held: Held, mask: Flags) -> Flags:
        rows = np.flatnonzero(mask)
        keys = [held.records.column(name).take(pa.array(rows)) for name in self._by]
        marker = np.zeros(len(mask), dtype=bool)
        if len(rows):
            marker[rows[seen.first(keys, held.lanes[rows])]] = True
        return marker
