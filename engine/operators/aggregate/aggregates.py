"""What streaming and hash aggregation share: the aggregates that are asked for, and their states and columns.

Rules:

1. An aggregation in one ``step`` gives values ("single"). In two, "partial" gives one struct of state per aggregate,
   under the aggregate's name, and "final" takes such structs, from any number of partial ones, and gives the values.
2. Rows that ``where`` masks (false or null) count as if they were not there; the group itself is.
3. ``distinct`` and ``order_by`` apply to the values of a group, in SQL's sense.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from ...arrow.compact import plain
from ...buffers.state_rows import children
from ...core.arguments import checked
from ...core.errors import DataError, FlowError
from ...core.schemas import check_columns, check_movable, value_type
from ...core.user_code import is_users_object
from ...kernels.accumulators import (
    Accumulator,
    GroupRows,
    OnePass,
    accumulator_of,
    state_maker,
    states_at,
    states_later,
)
from ...kernels.aggregate_protocol import AggregateFunction, Segments, State
from ...kernels.keys import decoded
from ...kernels.pieces import Flags, Positions
from ...kernels.sorting import SortKey, as_sort_keys, check_sort_keys
from .aggregate_functions import FUNCTIONS, MADE_OF_PARTS, OF_SHARES, function_called
from .list_aggregates import DistinctValues, OrderedValues
from .own_aggregates import OwnAggregate

Step: TypeAlias = Literal["single", "partial", "final"]
Arguments: TypeAlias = tuple[pa.DataType | None, ...]


@checked()
@dataclass(frozen=True)
class Aggregate:
    """One aggregate: the name of its output column, the column it is computed of (None: the rows), the function.

    ``where`` names a boolean column: only rows in which it is true count. ``distinct``: each value counts once.
    ``order_by``: the values are taken in this order, not in that of the rows.
    """

    name: str
    column: str | None
    function: str | AggregateFunction
    where: str | None = None
    distinct: bool = False
    order_by: tuple[str | SortKey, ...] = ()

    @property
    def resolved(self) -> AggregateFunction:
        """The function itself, with ``distinct`` and ``order_by``."""
        function = self._plain()
        if (self.distinct or self.order_by) and self.column is None:
            raise FlowError(
                f"aggregate {self.name!r}: distinct and order_by need the values of a column", "name the column"
            )
        if self.distinct:
            function = DistinctValues(function)
        return OrderedValues(function, as_sort_keys(self.order_by)) if self.order_by else function

    def _plain(self) -> AggregateFunction:
        if not isinstance(self.function, str):
            return OwnAggregate(self.function) if is_users_object(self.function) else self.function
        found = function_called(self.function)
        if found is None:
            of_shares = (f"{name}(share)" for name in OF_SHARES)
            raise FlowError(
                f"aggregate {self.name!r} asks for an unknown function {self.function!r}",
                f"use one of: {', '.join((*FUNCTIONS, *of_shares))}, with a share from 0 to 1",
            )
        return found

    @property
    def columns(self) -> list[str]:
        """The columns that it reads."""
        return [*self.arguments, *([] if self.where is None else [self.where])]

    @property
    def arguments(self) -> list[str]:
        """The columns that it is computed of: its own, then those to sort by."""
        keys = [key.column for key in as_sort_keys(self.order_by)]
        return keys if self.column is None else [self.column, *keys]

    def describe(self) -> str:
        """The aggregate as a formula."""
        order = ", ".join(key.describe() for key in as_sort_keys(self.order_by))
        inside = f"{self.column or '*'}{' order by ' + order if order else ''}"
        return f"{self.name} = {self.resolved.name}({inside}){' where ' + self.where if self.where else ''}"


def check_aggregates(kind: str, aggregates: Sequence[Aggregate], schema: pa.Schema, step: Step) -> None:
    """All columns are there and of types that the functions take."""
    if step == "final":
        check_columns(kind, schema, [each.name for each in aggregates])
        return
    for each in aggregates:
        check_columns(kind, schema, each.columns)
        check_movable(kind, schema, each.columns)
        if each.where is not None and not pa.types.is_boolean(schema.field(each.where).type):
            raise FlowError(
                f"{kind}: {each.name!r} counts rows where {each.where!r}, which is {schema.field(each.where).type}",
                "compute a boolean column in a projection before it",
            )
        if each.order_by:
            check_sort_keys(f"{kind}: {each.name!r}", as_sort_keys(each.order_by), schema)


def arguments_of(aggregates: Sequence[Aggregate], schema: pa.Schema) -> Arguments:
    """The types of the aggregates' arguments over rows of ``schema``."""
    return tuple(_argument_type(each, schema) for each in aggregates)


def never_overflow(aggregates: Sequence[Aggregate], arguments: Arguments) -> bool:
    """Whether it is certain that no values make one of them fail, however many rows there are."""
    return all(map(_never_overflows, aggregates, arguments))


def _never_overflows(each: Aggregate, type: pa.DataType | None) -> bool:
    if each.function not in ("sum", "mean") or each.distinct or type is None:
        return each.function in ("count", "min", "max")
    return bool(pa.types.is_floating(type) or (pa.types.is_decimal128(type) and type.precision <= _SUMMED_DIGITS))


_SUMMED_DIGITS = 18
"""10¹⁸ values of so many digits have a sum of fewer digits than a decimal may have."""


def final_of(aggregates: Sequence[Aggregate]) -> tuple[Aggregate, ...]:
    """The aggregates of a final step: masks have been applied, and the columns to sort by stand in the state."""
    return tuple(replace(each, where=None) for each in aggregates)


def needed_columns(by: Sequence[str], aggregates: Sequence[Aggregate], step: Step) -> list[str]:
    """The input columns that an aggregation reads; a final step those of the states."""
    if step == "final":
        return list(dict.fromkeys([*by, *(each.name for each in aggregates)]))
    return list(dict.fromkeys([*by, *(name for each in aggregates for name in each.columns)]))


def groups_in_words(by: Sequence[str], aggregates: Sequence[Aggregate], schema: pa.Schema, arguments: Arguments) -> str:
    """Of what the groups of an aggregation are, whatever its step is and its columns are called."""
    made = []
    for each, types in zip(aggregates, arguments, strict=True):
        formula = each.describe().partition(" = ")[2]
        made.append(formula if types is None else f"{formula} over {types}")
    return f"{keys_in_words(by, schema)}: {', '.join(made) or 'distinct keys'}"


def keys_in_words(by: Sequence[str], schema: pa.Schema) -> str:
    """Keys and their types."""
    return f"groups by {', '.join(f'{name} ({value_type(schema.field(name).type)})' for name in by) or 'nothing'}"


class AggregateColumns:
    """The aggregates of one running operator: rows to states, states to output columns."""

    def __init__(self, kind: str, aggregates: Sequence[Aggregate], arguments: Arguments, step: Step) -> None:
        self._kind = kind
        self._step = step
        self._aggregates = aggregates
        self._functions = [each.resolved for each in aggregates]
        self._arguments = arguments
        #: the columns that each is computed of: its own, then those to sort by
        self._names = [each.arguments for each in aggregates]
        #: the functions that have accumulators, each once for one argument, with an aggregate that asks for it; and for
        #: each aggregate the numbers of those that its state is made of
        self._kept: list[tuple[AggregateFunction, int]] = []
        self._made_of: list[list[int]] = []
        self._share()

    def _share(self) -> None:
        numbers: dict[Any, int] = {}
        for place, (each, function) in enumerate(zip(self._aggregates, self._functions, strict=True)):
            made_of = []
            for part in function.parts if isinstance(function, MADE_OF_PARTS) else (function,):
                # states that come from elsewhere may be of different rows (``where``)
                key = (id(part), each.column, each.where) if self._step != "final" else (place, id(part))
                if numbers.setdefault(key, len(self._kept)) == len(self._kept):
                    self._kept.append((part, place))
                made_of.append(numbers[key])
            self._made_of.append(made_of)

    def state_fields(self) -> list[pa.Field]:
        """The columns of all states, side by side."""
        return [
            pa.field(f"{each.name}.{number}", type)
            for each, types in zip(self._aggregates, self._state_types(), strict=True)
            for number, type in enumerate(types)
        ]

    def output_fields(self) -> list[pa.Field]:
        """The output columns: values, or states as structs."""
        names = [each.name for each in self._aggregates]
        results = [self._result_type(place) for place in range(len(names))]
        if self._step == "partial":
            structs = [pa.struct(_numbered(types)) for types in self._state_types()]
            return [pa.field(name, type) for name, type in zip(names, structs, strict=True)]
        return [pa.field(name, type) for name, type in zip(names, results, strict=True)]

    def lift(self, records: pa.RecordBatch) -> list[State]:
        """Each row as the states of all aggregates."""
        if self._step == "final":
            return [tuple(children(records.column(each.name))) for each in self._aggregates]
        return [self._lifted(place, records) for place in range(len(self._functions))]

    def blank(self) -> list[State]:
        """The states of one group without any row."""
        return [function.blank(type, 1) for function, type in zip(self._functions, self._arguments, strict=True)]

    def merge(self, states: Sequence[State], segments: Segments) -> list[State]:
        """The states of each segment as one."""
        return [function.merge(state, segments) for function, state in zip(self._functions, states, strict=True)]

    def accumulators(self) -> list[Accumulator]:
        """The states of no group."""
        return [accumulator_of(function, self._arguments[place]) for function, place in self._kept]

    def add(self, accumulators: Sequence[Accumulator], records: pa.RecordBatch, rows: GroupRows) -> None:
        """Merge rows into the states of their groups; they may stand anywhere."""
        if self._step == "final":
            states = [tuple(children(records.column(each.name))) for each in self._aggregates]
            self.add_states(accumulators, states, rows)
            return
        together = OnePass.over(rows)
        others: list[tuple[Accumulator, pa.Array | None, GroupRows]] = []
        for accumulator, (_, place) in zip(accumulators, self._kept, strict=True):
            where, counted = self._aggregates[place].where, rows
            values = self._argument(place, records, accumulator.takes_compact)
            if where is not None:
                counts = _flags(records.column(where))
                counted = rows.only(counts)
                values = None if values is None else values.filter(pa.array(counts))
            elif together is not None and values is not None:
                feed = getattr(accumulator, "feed", None)
                if feed is not None and feed(values, rows, together):
                    continue
            others.append((accumulator, values, counted))
        if together is not None:
            together.run(rows)
        for accumulator, values, counted in others:
            accumulator.add(values, counted)

    def add_states(self, accumulators: Sequence[Accumulator], states: Sequence[State], rows: GroupRows) -> None:
        """Merge rows that are states already."""
        for number, (accumulator, (_, place)) in enumerate(zip(accumulators, self._kept, strict=True)):
            before = self._made_of[place][: self._made_of[place].index(number)]
            start = sum(self._width(each) for each in before)
            accumulator.merge(states[place][start : start + self._width(number)], rows)

    def states(self, accumulators: Sequence[Accumulator]) -> list[State]:
        """The states of all groups, for each aggregate."""
        made = [accumulator.state() for accumulator in accumulators]
        return [tuple(column for number in numbers for column in made[number]) for numbers in self._made_of]

    def states_of_parts(self, accumulators: Sequence[Accumulator]) -> Callable[[slice], list[State]]:
        """The same for the groups of any slice, made when it is asked for where that can be done."""
        makers = [state_maker(accumulator) for accumulator in accumulators]

        def states(part: slice) -> list[State]:
            made = [make(part) for make in makers]
            return [tuple(column for number in numbers for column in made[number]) for numbers in self._made_of]

        return states

    def states_at(self, accumulators: Sequence[Accumulator], groups: Positions) -> list[State]:
        """The same for some groups."""
        made = [states_at(accumulator, groups) for accumulator in accumulators]
        return [tuple(column for number in numbers for column in made[number]) for numbers in self._made_of]

    def states_later(self, accumulators: Sequence[Accumulator]) -> Callable[[], list[State]]:
        """What gives the states of all groups as they are now, on any thread."""
        makers = [states_later(accumulator) for accumulator in accumulators]

        def states() -> list[State]:
            made = [make() for make in makers]
            return [tuple(column for number in numbers for column in made[number]) for numbers in self._made_of]

        return states

    def _width(self, number: int) -> int:
        """The columns of the state of a function that is kept."""
        function, place = self._kept[number]
        return len(function.state_types(self._arguments[place]))

    def columns(self, states: Sequence[State]) -> list[pa.Array]:
        """The output columns."""
        if self._step == "partial":
            return [
                pa.StructArray.from_arrays(state, fields=_numbered(types))
                for state, types in zip(states, self._state_types(), strict=True)
            ]
        return [self._value(place, state) for place, state in enumerate(states)]

    def split(self, columns: Sequence[pa.Array]) -> list[State]:
        """The state of each aggregate, of the columns of all."""
        states, position = [], 0
        for types in self._state_types():
            states.append(tuple(columns[position : position + len(types)]))
            position += len(types)
        return states

    def _state_types(self) -> list[tuple[pa.DataType, ...]]:
        return [function.state_types(type) for function, type in zip(self._functions, self._arguments, strict=True)]

    def _lifted(self, place: int, records: pa.RecordBatch) -> State:
        each, function = self._aggregates[place], self._functions[place]
        rows = records.num_rows
        state = function.lift(self._argument(place, records), rows)
        if each.where is None:
            return state
        counts = _flags(records.column(each.where))
        if counts.all():
            return state
        rows_or_blank = pa.array(np.where(counts, np.arange(rows), rows))
        blank = function.blank(self._arguments[place], 1)
        return tuple(
            pa.concat_arrays([part, none]).take(rows_or_blank) for part, none in zip(state, blank, strict=True)
        )

    def _argument(self, place: int, records: pa.RecordBatch, compact: bool = False) -> pa.Array | None:
        """What is computed of; in its compact form, if it is a decimal that may be."""
        names, type = self._names[place], self._arguments[place]
        if not names or type is None:
            return None
        if len(names) == 1:
            column = records.column(names[0])
            if column.type == type:
                return column
            column = decoded(column)
            return column if compact and pa.types.is_decimal(type) else plain(column, type)
        columns = [plain(decoded(records.column(name)), field.type) for name, field in zip(names, type, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=list(type))

    def _value(self, place: int, state: State) -> pa.Array:
        each = self._aggregates[place]
        try:
            return self._functions[place].final(state, self._arguments[place])
        except OverflowError as error:
            raise DataError(
                f"{each.describe()} does not fit into {error}",
                f"cast {each.column!r} to float64 or to a decimal in a projection before it",
            ) from error

    def _result_type(self, place: int) -> pa.DataType:
        each, type = self._aggregates[place], self._arguments[place]
        try:
            self._functions[place].state_types(type)
            return self._functions[place].result_type(type)
        except FlowError as error:
            where = f"{self._kind}: {each.name!r}" + (f" of column {each.column!r}" if each.column else "")
            raise FlowError(f"{where}: {error.message}", error.remedy) from None


def _flags(mask: pa.Array) -> Flags:
    flags: Flags = mask.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _argument_type(each: Aggregate, schema: pa.Schema) -> pa.DataType | None:
    if each.column is None:
        return None
    type = value_type(schema.field(each.column).type)
    keys = [value_type(schema.field(key.column).type) for key in as_sort_keys(each.order_by)]
    return pa.struct(_numbered([type, *keys])) if keys else type


def _numbered(types: Sequence[pa.DataType]) -> list[pa.Field]:
    return [pa.field(str(number), type) for number, type in enumerate(types)]
