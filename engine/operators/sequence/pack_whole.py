"""Pack whole: the sequences of a batch (``batches``) one behind the other in a row of one length; none is cut.

Rules:

1. Which sequences are in a row was decided before: rows come with a column that ends each group (``feed.marks``). What
   of a group has not come waits; nothing does at a barrier, because ``batches`` gives whole groups.
2. ``alike`` are further lists of numbers, as long in each row as its tokens, packed in the same places. All are filled
   up with ``pad``. Empty and null sequences add nothing.
3. *Segments*: the sequences of a row, from 1; 0 is padding. *Positions*: of a token in its sequence, from 0.
   *Documents*: the number of the sequence, counted as they are packed; −1 is padding. ``cu_seqlens``: where in the row
   sequences end, behind a 0, as kernels for attention over several sequences take it.
4. ``labels``: the column of that name, or else the tokens, with ``ignore`` in place of the first one of each sequence,
   which nothing before it can predict, and of padding.
5. ``each``: columns of which a row has a list, the value of each sequence that has tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...buffers.state_rows import as_rows, in_one, rows_of_state
from ...buffers.stored_rows import brought_together, concatenated
from ...core.elements import FINAL_ROUND, Batch
from ...core.errors import DataError
from ...core.operator import LANE, Emitter, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_columns, check_inputs
from ...core.traits import Traits
from ...feed.marks import END
from ...kernels.pieces import Bound, Flags, Positions, cut
from .pack import check_length, check_value, list_field, packing, schema_of_lists, token_type


@dataclass(frozen=True)
class PackWhole:
    """See the module's rules. Names that are None leave their column out."""

    length: int
    tokens: str = "tokens"
    alike: tuple[str, ...] = ()
    each: tuple[str, ...] = ()
    pad: int = 0
    segments: str | None = "segment_ids"
    positions: str | None = "position_ids"
    documents: str | None = None
    cu_seqlens: str | None = None
    labels: str | None = None
    ignore: int = -100
    kind: str = "pack"

    @property
    def traits(self) -> Traits:
        """A row is of the sequences that its documents number."""
        return packing(self, "the sequences of a row")

    def lists(self, schema: pa.Schema) -> list[str]:
        """The columns that are packed token by token."""
        own = [self.labels] if self.labels is not None and self.labels in schema.names else []
        return list(dict.fromkeys([self.tokens, *self.alike, *own]))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Lists of one size, where sequences end, and lists of what was asked for besides."""
        check_inputs(self.kind, inputs, 1)
        (schema,) = inputs
        check_length(self.length)
        check_columns(self.kind, schema, [END, *self.each])
        types = {name: token_type(schema, name) for name in self.lists(schema)}
        if self.labels is not None and self.labels not in types:
            own = types[self.tokens]
            types[self.labels] = pa.int64() if pa.types.is_integer(own) and own != pa.uint64() else own
        for name, type in types.items():
            is_label = name == self.labels
            check_value("ignore" if is_label else "pad", self.ignore if is_label else self.pad, type)
        asked: list[tuple[str | None, pa.DataType]] = list(types.items())
        asked += [(self.segments, pa.int32()), (self.positions, pa.int32()), (self.documents, pa.int64())]
        fields = [list_field(name, type, self.length) for name, type in asked if name is not None]
        if self.cu_seqlens is not None:
            fields.append(list_field(self.cu_seqlens, pa.int32()))
        fields += [pa.field(name, pa.list_(schema.field(name).type), False) for name in self.each]
        return schema_of_lists(fields)

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningPackWhole:
        """A running operator with what ``restored`` has of a row."""
        running = RunningPackWhole(self, context, inputs[0], self.output_schema(inputs))
        if restored is not None:
            running.restore(restored)
        return running

    def describe(self) -> str:
        """Everything that decides what comes out."""
        alike = f", {', '.join(self.alike)} alike" if self.alike else ""
        names = (self.segments, self.positions, self.documents, self.cu_seqlens, self.labels, *self.each)
        return f"{self.tokens}{alike} to {self.length}, whole; padded with {self.pad}; with " + ", ".join(
            name for name in names if name
        )


class RunningPackWhole(Stateless):
    """See the module's rules."""

    def __init__(self, config: PackWhole, context: OperatorContext, schema: pa.Schema, target: pa.Schema) -> None:
        self._config, self._schema, self._target = config, schema, target
        self._lane, self._memory = context.lanes.start, context.memory
        self._bound = Bound(context.output_rows, context.output_bytes)
        #: of a group that has not ended
        self._held: list[pa.RecordBatch] = []
        #: sequences that have come
        self._count = 0
        #: both before the call that is under way
        self._before: tuple[list[pa.RecordBatch], int] | None = None
        self._round = max(context.ended_round, 0)
        self._emitter = Emitter()

    @property
    def count(self) -> int:
        """Sequences that have come since the beginning."""
        return self._count

    @property
    def oldest(self) -> int:
        """The number of the first sequence that is held; of the next one if none are."""
        held: int = sum(records.num_rows for records in self._held)
        return self._count - held

    def process(self, port: int, batch: Batch, out: Output) -> Iterator[None]:
        """Emit the rows whose sequences are there."""
        records = batch.records
        ends = np.flatnonzero(records.column(END).to_numpy(zero_copy_only=False))
        whole = int(ends[-1]) + 1 if len(ends) else 0
        self._held.append(records.slice(0, whole) if whole else records)
        self._count += records.num_rows
        if whole:
            first = self.oldest - (records.num_rows - whole)
            self._before = self._held[:-1], self._count - records.num_rows
            groups = brought_together(self._schema, self._held)
            self._held = [records.slice(whole)] if whole < records.num_rows else []
            yield from self._emit(groups, first, batch.tag.round, batch.tag.lane, out)
            self._before = None
        self._memory.hold(sum(held.nbytes for held in self._held))

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        """A round has ended."""
        self._round = self._round if round == FINAL_ROUND else round
        return None

    def drain(self, out: Output) -> Steps:
        """Give what is there, and begin anew."""
        return self._end(self._round, out)

    def finish(self, out: Output) -> Steps:
        """Give what is there."""
        return self._end(FINAL_ROUND, out)

    def close(self) -> None:
        """Hold nothing any more."""
        self._held, self._before = [], None
        self._memory.hold(0)

    def snapshot(self) -> pa.Table | None:
        """How many sequences have come, and those of a row that is not complete."""
        held, sequences = self._before or (self._held, self._count)
        if not sequences:
            return None
        rows = as_rows(concatenated(self._schema, held))
        count = len(rows)
        return pa.table(
            {
                LANE: pa.array(np.full(count + 1, self._lane, np.int32)),
                "place": pa.array(np.arange(-1, count)),
                "sequences": pa.array(np.full(count + 1, sequences)),
                "held": pa.chunked_array([pa.nulls(1, rows.type), rows], rows.type),
            }
        )

    def restore(self, table: pa.Table) -> None:
        """Go on with an earlier snapshot."""
        mine = table.take(pa.array(np.argsort(table.column("place").to_numpy(), kind="stable")))
        self._count = int(mine.column("sequences")[0].as_py())
        if mine.num_rows > 1:
            self._held = [rows_of_state(in_one(mine.slice(1), "held"), self._schema)]

    # ------------------------------------------------------------------ parts

    def _end(self, round: int, out: Output) -> Iterator[None]:
        if self._held:
            self._before = self._held, self._count
            yield from self._emit(concatenated(self._schema, self._held), self.oldest, round, self._lane, out)
        self._held, self._count, self._before = [], 0, None
        self._memory.hold(0)

    def _emit(self, groups: pa.RecordBatch, first: int, round: int, lane: int, out: Output) -> Iterator[None]:
        packed = self._packed(groups, first)
        if packed.num_rows:
            yield from self._emitter.emit_each(cut(packed, self._bound.rows, self._bound.bytes), round, lane, out)

    def _packed(self, groups: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Whole groups as rows. ``first``: the number of the first sequence."""
        config = self._config
        places = _TokenPlaces.of(groups, config, first)
        lists = {name: self._values(groups, name, places) for name in config.lists(self._schema)}
        columns: dict[str, pa.Array] = {}
        for name, values in lists.items():
            columns[name] = places.laid(values, self._target.field(name).type, config.pad)
        if config.labels is not None:
            values = lists.get(config.labels, lists[config.tokens])
            columns[config.labels] = places.laid(
                values, self._target.field(config.labels).type, config.ignore, ~places.is_first
            )
        asked = ((config.segments, places.segments, 0), (config.positions, places.positions, 0))
        for further, values, fill in (*asked, (config.documents, places.documents, -1)):
            if further is not None:
                columns[further] = places.laid(values, self._target.field(further).type, fill)
        if config.cu_seqlens is not None:
            columns[config.cu_seqlens] = places.ends(self._target.field(config.cu_seqlens).type)
        for name in config.each:
            values = groups.column(name).take(pa.array(places.sequences))
            columns[name] = pa.ListArray.from_arrays(
                pa.array(places.borders, pa.int32()), values, type=self._target.field(name).type
            )
        return pa.RecordBatch.from_arrays([columns[name] for name in self._target.names], schema=self._target)

    def _values(self, groups: pa.RecordBatch, name: str, places: _TokenPlaces) -> np.ndarray:
        column = groups.column(name)
        lengths = pc.list_value_length(column).fill_null(0).to_numpy()
        if (wrong := lengths != places.lengths).any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"pack: a sequence has {places.lengths[row]:,} tokens and {lengths[row]:,} elements in {name!r}",
                "make them equally long, or give the column as each=",
            )
        values = pc.list_flatten(column)
        if values.null_count:
            raise DataError(f"pack: an element of a list in column {name!r} is null", "drop or replace it before")
        found: np.ndarray = values.to_numpy(zero_copy_only=False)
        return found


@dataclass(frozen=True)
class _TokenPlaces:
    """Where the tokens of whole groups stand in rows. Of each token: its place in the rows (``at``), whether it
    ``is_first``, its segment, position and document. ``sequences``: those that have tokens; ``borders``: behind which
    of these rows end; ``starts``: where they begin in their rows; ``lengths``: of all sequences."""

    length: int
    rows: int
    lengths: Positions
    sequences: Positions
    borders: Positions
    at: Positions
    is_first: Flags
    segments: Positions
    positions: Positions
    documents: Positions
    starts: Positions

    @classmethod
    def of(cls, groups: pa.RecordBatch, config: PackWhole, first: int) -> _TokenPlaces:
        lengths = pc.list_value_length(groups.column(config.tokens)).fill_null(0).to_numpy().astype(np.int64)
        ends = groups.column(END).to_numpy(zero_copy_only=False)
        sequences = np.flatnonzero(lengths)
        # the groups that have tokens are the rows
        _, row = np.unique((np.cumsum(ends) - ends)[sequences], return_inverse=True)
        rows, long = int(row[-1]) + 1 if len(row) else 0, lengths[sequences]
        before = np.cumsum(long) - long
        borders = np.searchsorted(row, np.arange(rows + 1))
        starts = before - np.append(before, 0)[borders[:-1]][row] if rows else before
        if (starts + long > config.length).any():
            most = int((starts + long).max())
            raise DataError(
                f"pack: a row would have {most:,} tokens of {config.length:,}",
                'say what becomes of sequences that are longer, too_long="truncate", "drop" or "split"',
            )
        positions = np.arange(int(long.sum())) - np.repeat(before, long)
        return cls(
            *(config.length, rows, lengths, sequences, borders),
            at=np.repeat(row * config.length + starts, long) + positions,
            is_first=positions == 0,
            segments=np.repeat(np.arange(len(row)) - borders[row] + 1, long),
            positions=positions,
            documents=np.repeat(first + sequences, long),
            starts=starts,
        )

    def laid(self, values: np.ndarray, type: pa.DataType, fill: int, shown: Flags | None = None) -> pa.Array:
        """A list for each row, of one value a token; ``fill`` elsewhere, and where one is not ``shown``."""
        found = np.full(self.rows * self.length, fill, dtype=type.value_type.to_pandas_dtype())
        found[self.at if shown is None else self.at[shown]] = values if shown is None else values[shown]
        return pa.FixedSizeListArray.from_arrays(pa.array(found, type.value_type), type=type)

    def ends(self, type: pa.DataType) -> pa.Array:
        """For each row a 0, and where its sequences end."""
        counts = np.diff(self.borders)
        found = np.zeros(len(self.sequences) + self.rows, np.int32)
        is_end = np.ones(len(found), np.bool_)
        offsets = np.append(0, np.cumsum(counts + 1))
        is_end[offsets[:-1]] = False
        found[is_end] = self.starts + self.lengths[self.sequences]
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(found), type=type)
