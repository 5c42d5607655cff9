"""What a merge join holds of one split set: the rows of both sides that have come and are not yet joined.

Rules:

1. A unit of joining is one (round, lane). The rows of a unit never meet those of another.
2. Rows with a null in a key may stand anywhere: they match nothing and are left out of every comparison. The others
   must be sorted ascending; this is checked as they come, across batches.
3. ``step`` joins as many left rows as the right side has passed, and forgets what neither side can need again. A right
   side counts as having passed a key when a larger one has come, or when it is complete.
4. A right row that matches nothing has its place in the output before the first left row with a larger key. A right row
   without a key goes with the row before it, in its own side.
5. Which right rows have matched is noted in ``Rows.matched``, by whoever makes the output of a step. What stays of a
   side is a view of the same flags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ...core.errors import DataError
from ...kernels.keys import Comparable, comparable, compared, first_descent, joined, shared_codes, taken, valid_rows
from ...kernels.native import kernels_for
from ...kernels.pieces import Flags, Positions
from .matching import JoinStep, Matches

STEP_ROWS = 64 * 1024
"""New rows that make a step within a unit worth its cost (both windows are encoded again): about one large batch."""

STEP_BYTES = 16 * 1024 * 1024
"""New bytes that do; for wide rows."""

NO_ROWS: Positions = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class SideRows:
    """Some rows of one side: ``valid`` are those without a null key (None: all), ``keys`` their comparable keys."""

    records: pa.RecordBatch
    valid: Positions | None
    keys: list[Comparable]
    #: which rows have matched something; None: no step has noted it yet, so none has
    matched: Flags | None = None

    @classmethod
    def of(cls, records: pa.RecordBatch, on: Sequence[str]) -> SideRows:
        """The rows with their keys."""
        columns = [records.column(name) for name in on]
        valid = valid_rows(columns)
        keys = [comparable(column) for column in columns]
        return cls(records, valid, keys if valid is None else [taken(column, valid) for column in keys])

    def position(self, key: int) -> int:
        """The row number of the ``key``-th row without nulls; the number of rows for the one after the last."""
        if key == len(self.keys[0]):
            return int(self.records.num_rows)
        return key if self.valid is None else int(self.valid[key])

    def positions(self, keys: Positions) -> Positions:
        """``position`` of many."""
        if self.valid is None:
            return keys
        positions: Positions = np.append(self.valid, self.records.num_rows)[keys]
        return positions

    def last_keys(self, rows: int) -> Positions:
        """For each of the first ``rows`` rows the last row without nulls up to it, as its number among those; or -1."""
        if self.valid is None:
            return np.arange(rows)
        return np.searchsorted(self.valid, np.arange(rows), side="right") - 1

    def after(self, key: int) -> SideRows:
        """The rows from the ``key``-th one without nulls on."""
        start = self.position(key)
        valid = None if self.valid is None else self.valid[key:] - start
        matched = None if self.matched is None else self.matched[start:]
        return SideRows(self.records.slice(start), valid, [column[key:] for column in self.keys], matched)

    def noted(self) -> Flags:
        """The flags of ``matched``."""
        if self.matched is None:
            self.matched = np.zeros(self.records.num_rows, dtype=bool)
        return self.matched


@dataclass(slots=True)
class Side:
    """One side of a unit: what has come and is still needed, in order."""

    parts: list[SideRows] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    #: rows and bytes that have come since the last step
    new_rows: int = 0
    new_bytes: int = 0
    #: the last key that came (one value per column), and its row for an error; empty before the first
    last: list[Comparable] = field(default_factory=list)
    last_row: pa.RecordBatch | None = None

    @property
    def is_full(self) -> bool:
        """Whether so many rows are held that it should be joined before more come."""
        return self.rows >= STEP_ROWS or self.bytes >= STEP_BYTES

    @property
    def first(self) -> list[Comparable]:
        """The first key that is held; empty if there is none."""
        return next(([column[:1] for column in part.keys] for part in self.parts if len(part.keys[0])), [])

    @property
    def is_without_keys(self) -> bool:
        """Whether a key of every row that is held is null."""
        return not any(len(part.keys[0]) for part in self.parts)

    @property
    def is_ripe(self) -> bool:
        """Whether enough rows are new for a step to be worth its cost."""
        return self.new_rows >= STEP_ROWS or self.new_bytes >= STEP_BYTES

    def add(self, records: pa.RecordBatch, on: Sequence[str], where: str, matched: Flags | None = None) -> None:
        """Take a batch; raises DataError if it is not sorted or does not continue the order."""
        part = SideRows.of(records, on)
        part.matched = matched
        if len(part.keys[0]):
            self._check_order(part, on, where)
            end = len(part.keys[0]) - 1
            self.last = [column[end:] for column in part.keys]
            self.last_row = records.slice(part.position(end), 1)
        size = records.nbytes
        self.parts.append(part)
        self.rows, self.bytes = self.rows + records.num_rows, self.bytes + size
        self.new_rows, self.new_bytes = self.new_rows + records.num_rows, self.new_bytes + size

    def window(self) -> SideRows | None:
        """All rows as one; None if there are none."""
        if not self.parts:
            return None
        if len(self.parts) > 1:
            self.parts = [_concatenated(self.parts)]
        return self.parts[0]

    def keep(self, rows: SideRows | None) -> None:
        """``rows`` is what is left after a step."""
        left = rows if rows is not None and rows.records.num_rows else None
        self.parts = [left] if left else []
        self.rows = left.records.num_rows if left else 0
        self.bytes = left.records.nbytes if left else 0
        self.new_rows = self.new_bytes = 0

    def _check_order(self, part: SideRows, on: Sequence[str], where: str) -> None:
        fall = 0 if is_less([column[:1] for column in part.keys], self.last) else first_descent(part.keys)
        if fall is None:
            return
        later = part.records.slice(part.position(fall), 1)
        earlier = self.last_row if fall == 0 else part.records.slice(part.position(fall - 1), 1)
        assert earlier is not None
        names = ", ".join(on)
        raise DataError(
            f"the {where} is not sorted by {names}: ({_shown(later, on)}) comes after ({_shown(earlier, on)})",
            f"sort within partitions by {names}, ascending, before the join (in Spark: sortWithinPartitions)",
        )


@dataclass(slots=True)
class Unit:
    """Both sides of one (round, lane): left, then right."""

    sides: tuple[Side, Side] = field(default_factory=lambda: (Side(), Side()))


def is_worth_a_step(unit: Unit, complete: tuple[bool, bool]) -> bool:
    """Whether a step within a unit that is not complete would get far enough to pay.

    The left side waits until it is full, or complete; then the right side should have passed all of it, or have grown
    by enough rows and let some row be joined or forgotten. That fails while both sides stand in one huge group.
    """
    left, right = unit.sides
    if complete[1]:
        return left.is_full
    if not (left.is_full or complete[0]) or not right.rows:
        return False
    first = left.first
    if not first or is_less(left.last, right.last):
        return True
    return right.is_ripe and (is_less(first, right.last) or is_less(right.first, first))


def is_less(one: Sequence[Comparable], other: Sequence[Comparable]) -> bool:
    """Whether one key (a value per column) is smaller than another; not, if there is no such key."""
    if not one or not other:
        return False
    for mine, theirs in zip(one, other, strict=True):
        if compared("less", mine, theirs)[0]:
            return True
        if not compared("equal", mine, theirs)[0]:
            return False
    return False


def step(
    unit: Unit, complete: tuple[bool, bool], empty: tuple[pa.RecordBatch, pa.RecordBatch], *, placed: bool
) -> JoinStep | None:
    """Join what can be joined and forget what no side needs again; None if nothing leaves. ``empty``: no rows;
    ``placed``: right rows are given their places (rule 4), for join types that show them without a match."""
    left, right = (side.window() for side in unit.sides)
    if left is not None and right is not None:
        return _step(unit, left, right, complete, placed=placed)
    if left is not None and complete[1]:
        unit.sides[0].keep(None)
        matches = Matches.none(left.records.num_rows)
        return JoinStep(left.records, empty[1], matches, NO_ROWS, np.zeros(0, dtype=bool))
    if right is not None and complete[0]:
        unit.sides[1].keep(None)
        places = np.zeros(right.records.num_rows, dtype=np.int64)
        return JoinStep(empty[0], right.records, Matches.none(0), places, right.noted())
    return None


def _step(unit: Unit, left: SideRows, right: SideRows, complete: tuple[bool, bool], *, placed: bool) -> JoinStep | None:
    ours, theirs = _codes(left.keys, right.keys)
    matched = right.noted()  # before the side is cut: what stays is a view of it
    passed = len(ours)
    if not complete[1]:
        passed = int(np.searchsorted(ours, theirs[-1])) if len(theirs) else 0
    rows = left.records if complete[1] else left.records.slice(0, left.position(passed))
    places = NO_ROWS
    if len(ours) or complete[0]:  # else the next left row with a key decides what stands before it
        needless = _needless(ours, theirs, passed, left_complete=complete[0])
        if placed:
            leaving = right.last_keys(right.position(needless))
            behind = np.append(np.searchsorted(ours, theirs[:needless], side="right"), 0)  # the last one is for -1
            places = left.positions(behind[leaving])
        unit.sides[1].keep(None if all(complete) else right.after(needless))
    unit.sides[0].keep(None if complete[1] else left.after(passed))
    if not rows.num_rows and not len(places):
        return None
    return JoinStep(rows, right.records, _matches(left, right, ours[:passed], theirs, rows.num_rows), places, matched)


def _codes(left: Sequence[Comparable], right: Sequence[Comparable]) -> tuple[Positions, Positions]:
    """Numbers that are ordered and equal as the keys are; a single column of integers is that already."""
    if len(left) == 1 and isinstance(left[0], np.ndarray):
        return left[0], right[0]
    return shared_codes(left, right)


def _matches(left: SideRows, right: SideRows, ours: Positions, theirs: Positions, rows: int) -> Matches:
    """Who matches whom, for the first ``rows`` left rows, of which ``ours`` are those without nulls."""
    first, found = _equal_spans(ours, theirs)
    if left.valid is None:
        return Matches(first, found, right.valid)
    starts, counts = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    joinable = left.valid[: len(ours)]
    starts[joinable], counts[joinable] = first, found
    return Matches(starts, counts, right.valid)


def _equal_spans(ours: Positions, theirs: Positions) -> tuple[Positions, Positions]:
    """For each of our codes where the equal ones of theirs begin, and how many there are; both are sorted."""
    kernels = kernels_for(len(ours))
    if kernels is not None:
        return kernels.merge_spans(np.ascontiguousarray(ours), np.ascontiguousarray(theirs))
    first = theirs.searchsorted(ours)
    return first, theirs.searchsorted(ours, side="right") - first


def _needless(ours: Positions, theirs: Positions, passed: int, *, left_complete: bool) -> int:
    """How many right rows (without null keys) no left row can match any more."""
    if passed < len(ours):
        return int(np.searchsorted(theirs, ours[passed]))
    if left_complete:
        return len(theirs)
    return int(np.searchsorted(theirs, ours[-1])) if len(ours) else 0


def _concatenated(parts: Sequence[SideRows]) -> SideRows:
    records = pa.concat_batches([part.records for part in parts])
    keys = [joined(columns) for columns in zip(*(part.keys for part in parts), strict=True)]
    is_noted = any(part.matched is not None for part in parts)
    matched = np.concatenate([part.noted() for part in parts]) if is_noted else None
    if all(part.valid is None for part in parts):
        return SideRows(records, None, keys, matched)
    starts = np.cumsum([0, *(part.records.num_rows for part in parts[:-1])])
    valid = [
        start + (np.arange(part.records.num_rows) if part.valid is None else part.valid)
        for start, part in zip(starts, parts, strict=True)
    ]
    return SideRows(records, np.concatenate(valid), keys, matched)


def _shown(row: pa.RecordBatch, on: Sequence[str]) -> str:
    return ", ".join(str(row.column(name)[0].as_py()) for name in on)
