"""State of which a part has changed, as parts that never change themselves: all of it as it once was, and changes.

Rules:

1. The rows of a state are numbered in the order in which they came. A base holds all rows at one time, row ``n`` at its
   place ``n``; changes hold some, old and new, with their numbers in column ``ROW``. The last part that has a number
   counts. Rows do not go: a state that has forgotten something begins anew, with another log.
   Where rows never change either (``grows``), each part is a base: the rows that came since the last one.
2. An operator adds parts; whoever stores them notes in each what became of it (``kept``) and lets go of its rows when
   they are safe. So changes of a checkpoint that was given up are still there for the next one.
   States are stored one after the other, each in the parts that there are by then (``up_to_date``): what another one
   has put together, and stored, has taken the place of its parts also in a state of before.
3. The storing thread puts one part in the place of several (``merge_from``), so that a state is never much more than
   what it holds: the sizes of the changes fall, there are at most ``MOST_CHANGES``, and together they are less than a
   ``1 / BASE_SHARE`` of the base. A row that has changed is thus written about twice more, whatever the interval is,
   and a base once in as many checkpoints as change a third of it. Of a state that grows like parts are put
   together, when they are many: in a thousand checkpoints a row is written five times.
4. An operator may have several logs; its state is their rows, one behind the other.
5. An operator that is restored from parts which hold its own state and nothing else goes on with them, if it finds that
   its rows have the numbers that they had.
6. A log that a state does not name is over: files that no checkpoint names are deleted. So an operator that gives its
   state whole, as few rows are, begins with another log when they are many again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ROW = "__row"
"""The column of changes with the numbers of their rows."""

MOST_CHANGES = 12
BASE_SHARE = 3

FEW = 16 * 1024
"""Rows that are given whole each time: what has changed of them is hardly smaller."""


class StatePart:
    """Rows that never change, so many. ``make`` gives them, on any thread, when they are first asked for."""

    def __init__(self, make: Callable[[], pa.Table], rows: int) -> None:
        self._make: Callable[[], pa.Table] | None = make
        self._table: pa.Table | None = None
        self._lock = threading.Lock()
        self.rows = rows
        #: the store's note of where the rows are
        self.kept: Any = None
        #: what it was put into as the last of several
        self.ends: StatePart | None = None

    @property
    def table(self) -> pa.Table | None:
        """The rows; None: they have been let go of."""
        with self._lock:
            if self._table is None and self._make is not None:
                self._table, self._make = self._make(), None
            return self._table

    @property
    def new_bytes(self) -> int:
        """Bytes of rows that have been made and not stored."""
        table = self._table
        return 0 if table is None or self.kept is not None else int(table.nbytes)

    def let_go(self) -> None:
        """The rows are safe elsewhere."""
        with self._lock:
            self._table = self._make = None


def let_go(parts: Iterable[StatePart]) -> None:
    """The rows of all of them are safe elsewhere."""
    for part in parts:
        part.let_go()


class ChangeLog:
    """The parts of one operator's state. Safe to use from the operator's thread and those that store."""

    def __init__(self, grows: bool = False, stored: Sequence[StatePart] = ()) -> None:
        """``grows``: rule 1; ``stored``: the parts that the state was restored from."""
        self.grows = grows
        #: in all parts that were added
        self.rows = sum(part.rows for part in stored)
        self._lock = threading.Lock()
        self._parts = list(stored)

    def add(self, changes: StatePart) -> None:
        """The base, if it is the first one, and then what has changed since the last part."""
        with self._lock:
            self.rows += changes.rows
            self._parts.append(changes)

    def merged(self, parts: Sequence[StatePart], into: StatePart) -> None:
        """One part in the place of some that follow one another, if the state still has them."""
        with self._lock:
            places = [at for at, part in enumerate(self._parts) if part is parts[0]]
            if places:
                self._parts[places[0] : places[0] + len(parts)] = [into]
                parts[-1].ends = into

    def until(self, last: StatePart) -> list[StatePart]:
        """What stands now for the parts up to this one; nothing: it has been put together with some behind it."""
        with self._lock:
            while last.ends is not None:
                last = last.ends
            places = [at for at, part in enumerate(self._parts) if part is last]
            return self._parts[: places[0] + 1] if places else []

    def cut(self) -> Changes:
        """The state as it is now."""
        with self._lock:
            return Changes((LogCut(self, tuple(self._parts)),) if self._parts else ())


@dataclass(frozen=True, eq=False)
class LogCut:
    """What a log had at one moment."""

    log: ChangeLog
    parts: tuple[StatePart, ...]

    def up_to_date(self) -> list[StatePart]:
        """The same rows in the parts that stand for them now."""
        return self.log.until(self.parts[-1]) or list(self.parts)


@dataclass(frozen=True, eq=False)
class Changes:
    """The state at one moment, in parts: those of one log, or of several, one behind the other."""

    cuts: tuple[LogCut, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of what is new in it, as far as that has been made."""
        return sum(part.new_bytes for cut in self.cuts for part in cut.parts)

    def whole(self) -> pa.Table:
        """All of it, of which no part has been let go of."""
        return merged([part.table for cut in self.cuts for part in cut.parts])

    def __add__(self, other: Changes) -> Changes:
        return Changes(self.cuts + other.cuts)


def as_changes(table: pa.Table) -> Changes:
    """Rows that may all be others next time."""
    log = ChangeLog()
    log.add(StatePart(lambda: table, table.num_rows))
    return log.cut()


class ChangingOperator(Protocol):
    """What a running operator offers besides, if it knows which part of its state has changed."""

    def changes(self) -> pa.Table | Changes | None:
        """As ``snapshot``, where it may be in parts."""


def merge_from(sizes: Sequence[int], grows: bool = False) -> int:
    """From which part on all should be put together, given their sizes, the base first (rule 3). The last place: none
    should."""
    last = len(sizes) - 1
    if not grows and last and BASE_SHARE * sum(sizes[1:]) >= sizes[0]:
        return 0
    if last <= MOST_CHANGES:
        return last
    first, size = last, sizes[last]
    while first > (not grows) and sizes[first - 1] <= 2 * size:
        first -= 1
        size += sizes[first]
    return min(first, last - 1)


def merged(parts: Sequence[pa.Table]) -> pa.Table:
    """Parts that follow one another as one."""
    if ROW not in parts[0].schema.names:
        # tasks that finished earlier may have stored less (``lane_counts``)
        return pa.concat_tables(states_of(parts), promote_options="default")
    table = pa.concat_tables(parts, promote_options="default")
    numbers = table.column(ROW).to_numpy()
    _, places = np.unique(numbers[::-1], return_index=True)
    return table.take(pa.array(len(numbers) - 1 - places))


def states_of(parts: Iterable[pa.Table]) -> list[pa.Table]:
    """Whole states, of parts one behind the other: each begins with a base."""
    runs: list[list[pa.Table]] = []
    for part in parts:
        if ROW in part.schema.names and runs:
            runs[-1].append(part)
        else:
            runs.append([part])
    return [_applied(run) for run in runs]


def _applied(parts: Sequence[pa.Table]) -> pa.Table:
    """Changes put into their base."""
    base, *changes = parts
    if not changes:
        return base
    latest = merged(changes)
    numbers = latest.column(ROW).to_numpy()
    latest = latest.drop_columns([ROW])
    old = int(np.searchsorted(numbers, base.num_rows))
    pairs = zip(base.columns, latest.slice(0, old).columns, strict=True)
    columns = [_replaced(column, numbers[:old], values.combine_chunks()) for column, values in pairs]
    table = pa.Table.from_arrays(columns, schema=base.schema)
    return pa.concat_tables([table, latest.slice(old)], promote_options="default")


def _replaced(column: pa.ChunkedArray, numbers: Any, values: pa.Array) -> pa.ChunkedArray | pa.Array:
    """The column with these values, in order, at these places. Arrow has no fast way for every type. Mostly there are
    columns that never change, as keys: these are not copied."""
    type = column.type
    if _says_equal(type) and column.take(pa.array(numbers)).combine_chunks().equals(values):
        return column
    if len(numbers) and not column.null_count and not values.null_count and _is_fixed(type):
        replaced = np.concatenate([_numbers(chunk) for chunk in column.chunks])
        replaced[numbers] = _numbers(values)
        return pa.Array.from_buffers(type, len(replaced), [None, pa.py_buffer(replaced)])
    places = np.arange(len(column))
    if not pa.types.is_dictionary(type):
        with suppress(pa.ArrowNotImplementedError):
            mask = np.zeros(len(column), dtype=bool)
            mask[numbers] = True
            return pc.replace_with_mask(column, pa.array(mask), values)
    places[numbers] = np.arange(len(column), len(column) + len(values))
    return pa.chunked_array([*column.chunks, values]).unify_dictionaries().combine_chunks().take(pa.array(places))


def _says_equal(type: pa.DataType) -> bool:
    """Whether values that Arrow calls equal are the same bits: not so zeros with a sign."""
    return not (pa.types.is_floating(type) or pa.types.is_nested(type) or pa.types.is_dictionary(type))


def _is_fixed(type: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(type)) and type.bit_width in (8, 16, 32, 64)


def _numbers(values: pa.Array) -> Any:
    """What lies there, whatever it means."""
    width = values.type.bit_width // 8
    content = np.frombuffer(values.buffers()[1] or b"", dtype=f"u{width}")
    return content[values.offset : values.offset + len(values)]
