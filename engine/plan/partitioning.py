"""Exchanges: what they do with the rows of a stream, and which part a row belongs to.

Behind a *partitioned* exchange (hash, round robin, range) the lane of a row is its **part**. The number of parts is
stored with the flow; subtasks own contiguous ranges of them (``rounds.lanes_of``), so state moves by part and any
parallelism up to the number of parts can go on from a checkpoint. Rules:

1. An exchange is immutable and picklable. Its ``describe`` says all that decides the parts, the version of the hash
   included, because it is part of the flow's fingerprint.
2. A part depends on the row's values (hash, range) or on the row's position in its round and lane (round robin): not
   on arrival, batches, encoding, subtask or parallelism.
3. Hash: equal keys have equal parts; null is a key (see ``hashing``). Range: part *i* holds the values from bound
   *i − 1* (inclusive) to bound *i* (exclusive); NaN is larger than every number, and nulls come last.
4. Round robin deals blocks of ``TURN_ROWS`` rows. Consecutive blocks go to parts that lie far apart, so that few blocks
   reach many subtasks.
5. ``same_parts`` tells whether two exchanges send equal keys to the same part: only then may their streams be joined
   subtask by subtask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.elements import Batch
from ..core.errors import FlowError, InternalError
from ..core.operator import LANE
from ..core.schemas import check_columns, check_distinct, check_movable, value_type
from ..kernels.hashing import HASH_VERSION, Parts, part_order, parts_of
from ..kernels.keys import check_key_types, comparable, decoded, shared_codes, validity

EARLIER_PARTS = 128
"""Parts of every flow that did not say how many, before these depended on its lanes."""

MAX_PARTS = 32768

PART = "__part"
"""The column in which the part of a row travels from the producer to the consumer."""

TURN_ROWS = 16 * 1024
"""Rows of a block that round robin deals: smaller batches cost more than they balance."""

_GOLDEN = (math.sqrt(5) - 1) / 2


def default_parts(lanes: int) -> int:
    """Into how many parts a flow divides rows that does not say it. No stage has more subtasks than the flow has lanes,
    and with two parts a lane no subtask has much more to do than another; more would make the batches smaller that each
    operator behind an exchange works on."""
    return min(2 * lanes, EARLIER_PARTS)


class Partitioner(Protocol):
    """Finds the parts of the rows of one producer's output, batch after batch."""

    def parts(self, batch: Batch) -> Parts:
        """The part of each row."""

    def snapshot(self) -> pa.Table | None:
        """What the parts of the next rows depend on besides these, with a column ``LANE``; None: nothing."""

    def restore(self, table: pa.Table) -> None:
        """Go on behind the rows that were divided before these snapshots."""


class _ByRows:
    """One that looks at nothing but the rows."""

    def snapshot(self) -> pa.Table | None:
        return None

    def restore(self, table: pa.Table) -> None:
        raise InternalError("the parts of rows depend on these alone, and there is a state")


@dataclass(frozen=True, slots=True)
class Gather:
    """All rows to one subtask, in the order of their tags."""

    kind: str = "gather"
    keys: ClassVar[tuple[str, ...]] = ()
    is_partitioned: ClassVar[bool] = False

    def describe(self) -> str:
        return "all rows to one subtask, in order"


@dataclass(frozen=True, slots=True)
class Forward:
    """All rows of a subtask to the subtask of the same number in the next stage, which has as many; lanes stay."""

    kind: str = "forward"
    keys: ClassVar[tuple[str, ...]] = ()
    is_partitioned: ClassVar[bool] = False

    def describe(self) -> str:
        return "each subtask to the one of its number, in order"


@dataclass(frozen=True, slots=True)
class Broadcast:
    """All rows to every subtask, in the order of their tags; lanes stay what they are."""

    kind: str = "broadcast"
    keys: ClassVar[tuple[str, ...]] = ()
    is_partitioned: ClassVar[bool] = False

    def describe(self) -> str:
        return "all rows to every subtask, in order"


@dataclass(frozen=True, slots=True)
class HashPartitioning:
    """Rows with equal ``keys`` to one part."""

    keys: tuple[str, ...]
    parts: int
    kind: str = "partition by"
    is_partitioned: ClassVar[bool] = True

    def check(self, schema: pa.Schema) -> None:
        """Raises FlowError if rows of ``schema`` cannot be divided like this."""
        if not self.keys:
            raise FlowError("partition by: no key is given", "name at least one column, or use rebalance()")
        check_distinct(self.kind, "key", self.keys)
        _check_rows(self.kind, schema, self.keys, self.parts)

    def describe(self) -> str:
        return f"{', '.join(self.keys)} (hash {HASH_VERSION}) into {self.parts} parts"

    def partitioner(self, schema: pa.Schema) -> Partitioner:
        """Finds the parts of rows of ``schema``."""
        return _ByHash([schema.get_field_index(name) for name in self.keys], self.parts)


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Rows in turn to all parts, whatever they hold."""

    parts: int
    kind: str = "rebalance"
    keys: ClassVar[tuple[str, ...]] = ()
    is_partitioned: ClassVar[bool] = True

    def check(self, schema: pa.Schema) -> None:
        """Raises FlowError if rows of ``schema`` cannot be divided like this."""
        _check_rows(self.kind, schema, (), self.parts)

    def describe(self) -> str:
        return f"{TURN_ROWS:,} rows in turn to {self.parts} parts"

    def partitioner(self, schema: pa.Schema) -> Partitioner:
        """Finds the parts of rows of ``schema``."""
        return _ByTurns(self.parts)


@dataclass(frozen=True, slots=True)
class RangePartitioning:
    """Rows by the range of ``column`` that they lie in: one part more than there are ``bounds``, which ascend."""

    column: str
    bounds: tuple[Any, ...]
    kind: str = "partition by range"
    is_partitioned: ClassVar[bool] = True

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def parts(self) -> int:
        return len(self.bounds) + 1

    def check(self, schema: pa.Schema) -> None:
        """Raises FlowError if rows of ``schema`` cannot be divided like this."""
        _check_rows(self.kind, schema, self.keys, self.parts)
        field = schema.field(self.column)
        check_key_types(self.kind, [field])
        if pa.types.is_nested(field.type):
            raise FlowError(
                f"partition by range: column {field.name!r} is {field.type}, and ranges are of single values",
                "name a column of numbers, texts, binary or times: of a struct, one that a projection makes of a field",
            )
        bounds = self._array(field.type)
        if not self.bounds:
            raise FlowError("partition by range: no bound is given", "give one bound less than you want parts")
        if bounds.null_count:
            raise FlowError("partition by range: a bound is null", "leave it out: nulls go to the last part")
        codes, _ = shared_codes([comparable(bounds)], [comparable(bounds)])
        if (np.diff(codes) <= 0).any():
            raise FlowError("partition by range: the bounds do not ascend", "sort them, and give each once")

    def describe(self) -> str:
        return f"{self.column}, bounds {', '.join(map(repr, self.bounds))}: {self.parts} parts"

    def partitioner(self, schema: pa.Schema) -> Partitioner:
        """Finds the parts of rows of ``schema``."""
        index = schema.get_field_index(self.column)
        return _ByRange(index, self._array(schema.field(index).type))

    def _array(self, type: pa.DataType) -> pa.Array:
        try:
            return pa.array(self.bounds, value_type(type))
        except (pa.ArrowException, TypeError, ValueError) as error:
            message = f"partition by range: the bounds do not fit column {self.column!r} of type {type}: {error}"
            raise FlowError(message, "give bounds of the column's type") from None


Partitioning: TypeAlias = HashPartitioning | RoundRobin | RangePartitioning
Exchanging: TypeAlias = Gather | Forward | Broadcast | Partitioning


def same_parts(one: Partitioning, other: Partitioning) -> bool:
    """Whether equal keys, column by column, have equal parts in both."""
    if isinstance(one, HashPartitioning) and isinstance(other, HashPartitioning):
        return (len(one.keys), one.parts) == (len(other.keys), other.parts)
    if isinstance(one, RangePartitioning) and isinstance(other, RangePartitioning):
        return one.bounds == other.bounds
    return False


def divided(config: Any, parts: int) -> Any:
    """A partitioning into a flow's number of parts, into so many; anything else as it is."""
    return replace(config, parts=parts) if isinstance(config, HashPartitioning | RoundRobin) else config


def wire_schema(schema: pa.Schema) -> pa.Schema:
    """What travels through a partitioned exchange: the rows and their parts."""
    return schema.append(pa.field(PART, pa.uint16(), nullable=False))


def sorted_by_part(records: pa.RecordBatch, parts: Parts) -> tuple[pa.RecordBatch, Parts]:
    """The rows by part, within a part in their order; and the parts, sorted."""
    if (parts[1:] >= parts[:-1]).all():
        return records, parts
    order, ordered = part_order(parts)
    return pc.take(records, pa.array(order), boundscheck=False), ordered


def _check_rows(kind: str, schema: pa.Schema, keys: Sequence[str], parts: int) -> None:
    check_columns(kind, schema, keys)
    check_movable(kind, schema)
    if PART in schema.names:
        raise FlowError(f"{kind}: the stream has a column {PART!r}, a name that exchanges need", "rename it before")
    if not 1 <= parts <= MAX_PARTS:
        raise FlowError(f"{kind}: {parts} parts are impossible", f"use between 1 and {MAX_PARTS} of them")


class _ByHash(_ByRows):
    def __init__(self, columns: Sequence[int], parts: int) -> None:
        self._columns, self._parts = columns, parts

    def parts(self, batch: Batch) -> Parts:
        return parts_of([batch.records.column(index) for index in self._columns], self._parts)


class _ByTurns:
    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._stride = next(step for step in range(round(parts * _GOLDEN), parts + 2) if math.gcd(step, parts) == 1)
        self._round = -1
        #: lane -> rows of the round that have passed
        self._rows: dict[int, int] = {}

    def parts(self, batch: Batch) -> Parts:
        tag = batch.tag
        if tag.round != self._round:
            self._round, self._rows = tag.round, {}
        first = self._rows.get(tag.lane, 0)
        self._rows[tag.lane] = last = first + batch.records.num_rows
        # lanes and rounds begin at different places: the first blocks are the only ones of a small round
        turns = np.arange(first, last) // TURN_ROWS + (tag.lane + tag.round % self._parts)
        return (turns * self._stride % self._parts).astype(np.uint16)

    def snapshot(self) -> pa.Table | None:
        """The rows of the round so far, by lane."""
        if not self._rows:
            return None
        lanes, rows = list(self._rows), list(self._rows.values())
        rounds = [self._round] * len(lanes)
        return pa.table({LANE: pa.array(lanes, pa.int32()), "round": rounds, "rows": rows})

    def restore(self, table: pa.Table) -> None:
        """Go on behind these rows; of lanes that are in an earlier round than others nothing is left to count."""
        for lane, round, rows in zip(
            *(table.column(name).to_pylist() for name in (LANE, "round", "rows")), strict=True
        ):
            if round > self._round:
                self._round, self._rows = round, {}
            if round == self._round:
                self._rows[lane] = rows


class _ByRange(_ByRows):
    def __init__(self, column: int, bounds: pa.Array) -> None:
        self._column, self._bounds = column, bounds
        self._searched = bounds.cast(pa.binary()) if pa.types.is_fixed_size_binary(bounds.type) else bounds
        self._keys = comparable(bounds)

    def parts(self, batch: Batch) -> Parts:
        column = decoded(batch.records.column(self._column))
        found: Parts = self._places(column).astype(np.uint16)
        if column.null_count:
            found[~validity(column)] = len(self._bounds)
        return found

    def _places(self, column: pa.Array) -> Any:
        if isinstance(self._keys, np.ndarray):
            return np.searchsorted(self._keys, comparable(column), side="right")
        if pa.types.is_decimal(column.type):  # Arrow cannot search among decimals
            filled = column.fill_null(self._bounds[0])
            values, bounds = shared_codes([filled], [self._bounds])
            return np.searchsorted(bounds, values, side="right")
        if pa.types.is_fixed_size_binary(column.type):  # nor among these
            column = column.cast(pa.binary())
        places = pc.search_sorted(self._searched, column, side="right").fill_null(0)
        return places.to_numpy(zero_copy_only=False)
