"""Pack: sequences of tokens, cut and put together to rows of one length.

Rules:

1. The sequences of a list column, in order, are one long line of tokens; every ``length`` of them are a row. A sequence
   may so begin in one row and go on in the next one. ``separator``: a token put behind every sequence. Null and empty
   sequences add nothing, no separator either, but count as sequences; a null token is an error of the data.
2. A row says where its sequences are, so that attention can be kept within them. *Segments*: the sequences of the row,
   numbered from 1; 0 is padding. *Positions*: of each token within its segment, from 0; what goes on from an earlier
   row begins at 0 again, because nothing before it can be attended to. *Documents*: the number of the sequence in the
   stream, from 0; −1 is padding.
3. A row leaves as soon as its last token has come, with the round and lane of that. What is left at a barrier, at the
   end of an epoch (in its last round) or at the end is filled up with ``pad``, or dropped (``remainder``).
4. It stands behind a gather, so there is one line of tokens and one remainder. State: the tokens of the open row with
   the numbers of their sequences, and how many sequences have come. Behind a barrier these are counted anew. While rows
   leave it is that before the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...core.elements import Batch, Tag
from ...core.errors import DataError, FlowError
from ...core.operator import LANE, OperatorContext, Output
from ...core.schemas import check_columns, check_inputs, is_list
from ...core.traits import Cut, Emission, Lineage, State, Traits
from ...kernels.pieces import Bound, Positions, cut
from ...kernels.row_bits import row_bits
from .by_epoch import GIVES_THE_REST, GivesTheRest

Remainder: TypeAlias = Literal["pad", "drop"]
Tokens = npt.NDArray[Any]

MAX_LENGTH = 2**24
_SPREAD = 4
"""Of each token come its segment, its position and its document besides."""


@dataclass(frozen=True)
class Pack:
    """Rows of ``length`` tokens from the sequences in column ``tokens``. The names of the other columns: None leaves
    the column out."""

    length: int
    tokens: str = "tokens"
    separator: int | None = None
    pad: int = 0
    remainder: Remainder = "pad"
    segments: str | None = "segment_ids"
    positions: str | None = "position_ids"
    documents: str | None = None
    kind: str = "pack"

    @property
    def traits(self) -> Traits:
        """A row is of the sequences that its documents number."""
        return packing(self, "the sequences of a block")

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Columns of lists of one size: the tokens, and what was asked for besides."""
        check_inputs(self.kind, inputs, 1)
        check_length(self.length)
        if self.remainder not in ("pad", "drop"):
            raise FlowError(f"pack: the remainder is {self.remainder!r}", "choose 'pad' or 'drop'")
        token = token_type(inputs[0], self.tokens)
        for what, value in (("separator", self.separator), ("pad", self.pad)):
            check_value(what, value, token)
        asked = [(self.tokens, token), (self.segments, pa.int32()), (self.positions, pa.int32())]
        asked.append((self.documents, pa.int64()))
        return schema_of_lists([list_field(name, type, self.length) for name, type in asked if name is not None])

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningPack:
        """A running operator with the open row of ``restored``."""
        running = RunningPack(self, context, self.output_schema(inputs), token_type(inputs[0], self.tokens))
        if restored is not None:
            running.restore(restored)
        return running

    def describe(self) -> str:
        """Everything that decides what comes out."""
        between = "" if self.separator is None else f", {self.separator} behind each"
        rest = "dropped" if self.remainder == "drop" else f"padded with {self.pad}"
        columns = ", ".join(name for name in (self.segments, self.positions, self.documents) if name)
        return f"{self.tokens} to {self.length}{between}; the rest {rest}{f'; with {columns}' if columns else ''}"


def packing(config: Any, beyond_budget: str) -> Traits:
    """What is said of an operator that packs, which may number its sequences in ``documents``."""

    def numbering(column: str) -> tuple[Any, str]:
        named = config.documents or column
        return replace(config, documents=named), named

    return Traits(
        emission=Emission.PER_BLOCK,
        state=State.COUNTERS,
        lineage=Lineage(numbering=numbering),
        beyond_budget=beyond_budget,
        deterministic=True,
        grouped_by=(),
        cut=dict.fromkeys(("process", *GIVES_THE_REST), Cut.BEFORE),
        ends_epochs=True,
    )


def check_length(length: int) -> None:
    """Raises FlowError unless rows can be so long."""
    if not 1 <= length <= MAX_LENGTH:
        raise FlowError(f"pack: rows of {length} tokens", f"give a length from 1 to {MAX_LENGTH}")


def list_field(name: str, type: pa.DataType, size: int = -1) -> pa.Field:
    """Of lists of one size, or of any (-1), without nulls."""
    return pa.field(name, pa.list_(pa.field("item", type, False), size), False)


def schema_of_lists(fields: list[pa.Field]) -> pa.Schema:
    """Of packed rows. Raises FlowError if two columns have one name."""
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise FlowError(f"pack: two of its columns have one name among {', '.join(names)}", "rename one of them")
    return pa.schema(fields)


def token_type(schema: pa.Schema, column: str) -> pa.DataType:
    """The type of the elements of a column that can be packed. Raises FlowError."""
    check_columns("pack", schema, [column])
    type = schema.field(column).type
    if not is_list(type):
        raise FlowError(f"pack: column {column!r} is {type}", "it takes a list column of numbers")
    if not (pa.types.is_integer(type.value_type) or pa.types.is_floating(type.value_type)):
        raise FlowError(f"pack: the elements of {column!r} are {type.value_type}", "it takes numbers")
    return type.value_type


def check_value(what: str, value: int | None, token: pa.DataType) -> None:
    """Raises FlowError if the value is none of the tokens' type."""
    if value is None:
        return
    try:
        pa.scalar(value, token)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        raise FlowError(f"pack: {what} {value!r} is no {token}", "give a value of the tokens' type") from None


class RunningPack(GivesTheRest):
    """See the module's rules."""

    def __init__(self, config: Pack, context: OperatorContext, target: pa.Schema, token: pa.DataType) -> None:
        super().__init__(context)
        self._config, self._target, self._token = config, target, token
        self._bound = Bound(context.output_rows, context.output_bytes)
        self._type = token.to_pandas_dtype()
        #: the tokens of the open row, fewer than ``length``, and of each the number of its sequence
        self._held: Tokens = np.zeros(0, self._type)
        self._held_documents: Positions = np.zeros(0, np.int64)
        #: sequences that have come since the beginning, or the last barrier
        self._count = 0
        #: the three before the call that is under way
        self._before: tuple[Tokens, Positions, int] | None = None

    @property
    def count(self) -> int:
        """Sequences that have come since the beginning, or the last barrier."""
        return self._count

    @property
    def oldest(self) -> int:
        """The number of the first sequence of which tokens are held; of the next one if none are."""
        return int(self._held_documents[0]) if len(self._held_documents) else self._count

    def process(self, port: int, batch: Batch, out: Output) -> Iterator[None]:
        """Append the sequences to the line, a few at a time, and emit the rows that they fill."""
        column = batch.records.column(self._config.tokens)
        bits = row_bits([column], np.arange(len(column)))
        self._before = self._standing
        for part in Bound(len(column), self._bound.bytes // _SPREAD).parts(len(column), bits):
            yield from self._append(column.slice(part.start, part.stop - part.start), batch.tag, out)
        self._before = None

    def _append(self, column: pa.Array, tag: Tag, out: Output) -> Iterator[None]:
        tokens, documents = self._line(column)
        if not len(tokens):
            return
        tokens = np.concatenate([self._held, tokens])
        documents = np.concatenate([self._held_documents, documents])
        full = len(tokens) - len(tokens) % self._config.length
        if full:
            yield from self._emit(tokens[:full], documents[:full], tag.round, tag.lane, out)
        # copies: what is held must not keep the whole batch
        self._held, self._held_documents = tokens[full:].copy(), documents[full:].copy()
        self._memory.hold(self._held.nbytes + self._held_documents.nbytes)

    def close(self) -> None:
        """Hold nothing any more."""
        self._memory.hold(0)

    def snapshot(self) -> pa.Table | None:
        """The open row, a token a row; behind it a row without token, which tells how many sequences have come."""
        held, documents, sequences = self._standing
        if not sequences:
            return None
        count = len(held)
        return pa.table(
            {
                LANE: pa.array(np.full(count + 1, self._lane, dtype=np.int32)),
                "place": pa.array(np.arange(count + 1)),
                "document": pa.array(np.append(documents, sequences)),
                "token": pa.concat_arrays([pa.array(held, self._token), pa.nulls(1, self._token)]),
            }
        )

    def restore(self, table: pa.Table) -> None:
        """Go on with the open row of an earlier snapshot."""
        rows = table.sort_by("place")
        documents = rows.column("document").to_numpy()
        self._held = rows.column("token").slice(0, len(rows) - 1).to_numpy().astype(self._type)
        self._held_documents, self._count = documents[:-1].astype(np.int64), int(documents[-1])
        self._memory.hold(self._held.nbytes + self._held_documents.nbytes)

    # ------------------------------------------------------------------ parts

    @property
    def _standing(self) -> tuple[Tokens, Positions, int]:
        """The open row, the sequences of its tokens, and how many have come; before the call that is under way."""
        return self._before or (self._held, self._held_documents, self._count)

    def _line(self, column: pa.Array) -> tuple[Tokens, Positions]:
        """The tokens of all sequences, separators among them, and the sequence of each."""
        lengths = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
        values = pc.list_flatten(column)
        if values.null_count:
            at = self._count + int(np.searchsorted(np.cumsum(lengths), _first_null(values), side="right"))
            raise DataError(
                f"pack: a token of sequence {at} in column {self._config.tokens!r} is null",
                "drop or replace null tokens before they are packed",
            )
        numbers = self._count + np.arange(len(lengths))
        self._count += len(lengths)
        tokens = values.to_numpy()
        separator = self._config.separator
        if separator is None:
            return tokens, np.repeat(numbers, lengths)
        long = lengths + (lengths > 0)
        line = np.full(int(long.sum()), separator, dtype=self._type)
        is_token = np.ones(len(line), dtype=np.bool_)
        is_token[np.cumsum(long)[lengths > 0] - 1] = False
        line[is_token] = tokens
        return line, np.repeat(numbers, long)

    def _end(self, round: int, out: Output, lane: int) -> Iterator[None]:
        self._before = self._standing
        missing = self._config.length - len(self._held)
        if len(self._held) and self._config.remainder == "pad":
            tokens = np.append(self._held, np.full(missing, self._config.pad, dtype=self._type))
            documents = np.append(self._held_documents, np.full(missing, -1))
            yield from self._emit(tokens, documents, round, lane, out)
        self._held, self._held_documents, self._count = self._held[:0], self._held_documents[:0], 0
        self._before = None
        self._memory.hold(0)

    def _emit(self, tokens: Tokens, documents: Positions, round: int, lane: int, out: Output) -> Iterator[None]:
        records = self._rows(tokens, documents)
        yield from self._emitter.emit_each(cut(records, self._bound.rows, self._bound.bytes), round, lane, out)

    def _rows(self, tokens: Tokens, documents: Positions) -> pa.RecordBatch:
        """As many tokens as fill rows, with what is asked for besides."""
        length = self._config.length
        rows = documents.reshape(-1, length)
        begins = np.ones(rows.shape, dtype=np.bool_)
        np.not_equal(rows[:, 1:], rows[:, :-1], out=begins[:, 1:])
        is_padding = rows < 0
        columns = [pa.array(tokens, self._token)]
        if self._config.segments is not None:
            segments = np.cumsum(begins, axis=1, dtype=np.int32)
            segments[is_padding] = 0
            columns.append(pa.array(segments.ravel()))
        if self._config.positions is not None:
            places = np.arange(length, dtype=np.int32)
            positions = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
            positions[is_padding] = 0
            columns.append(pa.array(positions.ravel().astype(np.int32)))
        if self._config.documents is not None:
            columns.append(pa.array(documents))
        lists = [pa.FixedSizeListArray.from_arrays(values, type=field.type)
                 for values, field in zip(columns, self._target, strict=True)]  # fmt: skip
        return pa.RecordBatch.from_arrays(lists, schema=self._target)


def _first_null(values: pa.Array) -> int:
    return int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
