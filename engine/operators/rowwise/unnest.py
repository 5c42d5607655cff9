"""Unnest: one row for each element of list columns.

Rules:

1. Several columns are unnested side by side; the longest list of a row decides its number of rows, the shorter ones
   are padded with null. A null list is an empty one; a null element is an element.
2. A list column keeps its name and place; a map column ``m`` becomes ``m_key`` and ``m_value``. The other columns are
   repeated.
3. ``outer`` keeps a row whose lists are all empty as one row of nulls, with ordinality 0: no element stands there. So
   does a ``marker``: a last column that is true for elements and false for such rows.
4. Pieces of at most ``output_rows`` rows and ``output_bytes`` bytes, made one with each step; the row and the list they
   come from may be cut anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa

from ...core.elements import Batch
from ...core.errors import FlowError
from ...core.operator import Emitter, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_columns, check_distinct, check_inputs, check_movable, unique_schema, value_type
from ...core.traits import Columns, Traits
from ...kernels.pieces import Bound, Flags, Piece, Positions, indices, picked, pieces
from ...kernels.row_bits import Bits, fixed_bits, row_bits


@dataclass(frozen=True)
class Unnest:
    """Unnests the list (or map) ``columns``; ``ordinality`` names a column for the element's position, from 1, and
    ``marker`` one that tells whether there was an element."""

    columns: tuple[str, ...]
    ordinality: str | None = None
    outer: bool = False
    marker: str | None = None
    kind: str = "unnest"

    @property
    def traits(self) -> Traits:
        """The columns besides the lists come out."""
        return Traits.row_wise(self._columns)

    def _columns(self, inputs: Sequence[pa.Schema]) -> list[Columns]:
        return [Columns(self.columns, {name: name for name in inputs[0].names if name not in self.columns})]

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's schema with elements in place of lists, and the ordinality last."""
        check_inputs(self.kind, inputs, 1)
        if not self.columns:
            raise FlowError("unnest: no column is given", "name at least one list column")
        check_distinct(self.kind, "column", self.columns)
        check_columns(self.kind, inputs[0], self.columns)
        check_columns(self.kind, inputs[0], inputs[0].names)
        check_movable(self.kind, inputs[0])
        fields: list[pa.Field] = []
        for field in inputs[0]:
            fields += _element_fields(field) if field.name in self.columns else [field]
        if self.ordinality is not None:
            fields.append(pa.field(self.ordinality, pa.int64()))
        if self.marker is not None:
            fields.append(pa.field(self.marker, pa.bool_()))
        return unique_schema(self.kind, fields, "rename the column, or choose another name for ordinality or marker")

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningUnnest:
        """A running unnest."""
        return RunningUnnest(self, self.output_schema(inputs), Bound(context.output_rows, context.output_bytes))

    def describe(self) -> str:
        """The columns and options."""
        named = (("ordinality", self.ordinality), ("marker", self.marker))
        extra = [f"{what} {name}" for what, name in named if name is not None]
        return ", ".join([*self.columns, *extra, *(["outer"] if self.outer else [])])


class RunningUnnest(Stateless):
    """Unnests batch by batch."""

    def __init__(self, config: Unnest, schema: pa.Schema, bound: Bound) -> None:
        self._config = config
        self._schema = schema
        self._bound = bound
        #: of the columns that the operator makes itself
        self._own_bits = (config.ordinality is not None) * 65 + (config.marker is not None) * 2
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Emit one row per element."""
        return self._steps(batch, out)

    def _steps(self, batch: Batch, out: Output) -> Iterator[None]:
        records = batch.records
        lists = {name: _ListColumns.of(records.column(name)) for name in self._config.columns}
        longest = reduce(np.maximum, [found.lengths for found in lists.values()])
        keeps_all = self._config.outer or self._config.marker is not None
        counts = np.maximum(longest, 1) if keeps_all else longest
        lists = {name: found.laid_out(counts) for name, found in lists.items()}
        repeated = [records.column(name) for name in records.schema.names if name not in lists]
        for piece in pieces(counts, self._bound.rows):
            bits = self._own_bits + row_bits(repeated, piece.rows)
            for found in lists.values():
                bits = bits + found.bits(piece)
            for part in self._bound.parts(len(piece.rows), bits):
                made = self._rows(records, lists, longest, piece.part(part))
                self._emitter.emit(made, batch.tag.round, batch.tag.lane, out)
                yield

    def _rows(
        self, records: pa.RecordBatch, lists: Mapping[str, _ListColumns], longest: Positions, piece: Piece
    ) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        for name, column in zip(records.schema.names, records.columns, strict=True):
            arrays += lists[name].elements(piece) if name in lists else [piece.repeat(column)]
        if self._config.ordinality is not None:
            arrays.append(pa.array(np.where(longest[piece.rows] > 0, piece.positions + 1, 0)))
        if self._config.marker is not None:
            arrays.append(pa.array(longest[piece.rows] > 0))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


@dataclass(frozen=True, slots=True)
class _ListColumns:
    """A list column as numbers: list ``n`` is ``lengths[n]`` elements of each of ``values`` from ``starts[n]`` on."""

    starts: Positions
    lengths: Positions
    values: tuple[pa.Array, ...]
    #: each list begins where the one before it ends
    adjacent: bool = False
    #: the output is the elements as they stand, without gaps between lists and without padding
    gapless: bool = False

    @classmethod
    def of(cls, given: pa.Array) -> _ListColumns:
        if pa.types.is_dictionary(given.type):
            return cls.of(given.dictionary).picked(given.indices)
        column = given
        rows, adjacent = len(column), True
        if pa.types.is_fixed_size_list(column.type):
            size = column.type.list_size
            starts = (np.arange(rows, dtype=np.int64) + column.offset) * size
            lengths = np.full(rows, size, dtype=np.int64)
        else:
            offsets = column.offsets.to_numpy().astype(np.int64, copy=False)
            starts, lengths = offsets[:-1], np.diff(offsets)
        if column.null_count:
            lengths = np.where(column.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
            adjacent = bool((starts[1:] == starts[:-1] + lengths[:-1]).all())
        values = (column.keys, column.items) if pa.types.is_map(column.type) else (column.values,)
        return cls(starts, lengths, values, adjacent)

    def picked(self, codes: pa.Array) -> _ListColumns:
        """The lists with these numbers; none where a number is null."""
        numbers = codes.fill_null(0).to_numpy() if len(self.starts) else np.zeros(0, dtype=np.int64)
        if not len(numbers):
            nothing = np.zeros(len(codes), dtype=np.int64)
            return _ListColumns(nothing, nothing, self.values)
        lengths = np.where(codes.is_valid().to_numpy(zero_copy_only=False), self.lengths[numbers], 0)
        return _ListColumns(self.starts[numbers], lengths, self.values)

    def laid_out(self, counts: Positions) -> _ListColumns:
        """The same for an output of ``counts[n]`` rows for list ``n``."""
        return replace(self, gapless=self.adjacent and (counts is self.lengths or np.array_equal(counts, self.lengths)))

    def elements(self, piece: Piece) -> list[pa.Array]:
        if self.gapless:
            return [values.slice(int(self.starts[0]) + piece.low, len(piece.rows)) for values in self.values]
        where, padded = self._places(piece)
        taken = indices(where, padded if padded.any() else None)
        return [picked(values, taken) for values in self.values]

    def bits(self, piece: Piece) -> Bits:
        """What each element takes; padding counts as nothing."""
        fixed = [fixed_bits(values.type) for values in self.values]
        if None not in fixed:
            return sum(each or 0 for each in fixed)
        where, padded = self._places(piece)
        found = np.zeros(len(where), dtype=np.int64)
        found[~padded] = row_bits(self.values, where[~padded])
        return found

    def _places(self, piece: Piece) -> tuple[Positions, Flags]:
        """Where the element of each row lies among the values, and which rows have none."""
        padded = piece.positions >= self.lengths[piece.rows]
        return np.where(padded, 0, self.starts[piece.rows] + piece.positions), padded


def _element_fields(field: pa.Field) -> list[pa.Field]:
    listed = value_type(field.type)
    types = pa.types
    if types.is_map(listed):
        return [pa.field(f"{field.name}_key", listed.key_type), pa.field(f"{field.name}_value", listed.item_type)]
    if types.is_list(listed) or types.is_large_list(listed) or types.is_fixed_size_list(listed):
        return [pa.field(field.name, listed.value_type)]
    raise FlowError(
        f"unnest: column {field.name!r} is {field.type}",
        "unnest takes list, large_list, fixed_size_list and map columns",
    )
