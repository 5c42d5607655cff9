"""Rows that a filter, or a join, certainly lets none of through, by what a file tells of its row groups: not decoded.

Rules:

1. Statistics, bloom filters and page indexes are believed, as other engines do, statistics as pyarrow gives them: it
   knows the writers whose were wrong. Those of columns that are not stored as what they are (INT96, decimals as text,
   another unit) and bounds that cannot be are not used. A dictionary tells what it does not have where the footer says
   that all pages have codes of it.
2. By a filter rows are left out only if it, and all before it, have an answer for every row: an error stays one.
3. What a filter leaves out of a chunk that is read, and what counts, does not depend on this.
4. Page indexes and dictionaries cost something to look at. Where they have left nothing out for a while they are left.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import accumulate, pairwise, takewhile
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from ..expressions.bounds import Range, bounded, comparable_value, kind_of
from ..files.partitions import Constants
from ..kernels.key_filter import KeyTest
from ..kernels.page_stream import DoubtfulPage
from ..kernels.pages import ColumnReader, is_stored_as
from ..kernels.pieces import Positions
from .parquet_bloom import Lacks, lacks_of, stored_bytes
from .parquet_index import PageRanges, index_places, page_places, page_ranges
from .picking import Keys, Pick, Skipped

Interval: TypeAlias = tuple[int, int]

DICTIONARY_BYTES = 256 * 1024
"""Of a dictionary in the file that is looked through."""
DICTIONARIES, PAGES = 16, 64
"""Rule 4: after so many, if one of as many was of no use."""
_NUMBERS = {"INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}


def range_of(value: pa.Scalar) -> Range:
    """Within which bounds a column lies that has this value in every row."""
    bound = comparable_value(value)
    return Range(bound, bound, value.is_valid, not value.is_valid)


class GroupBounds:
    """What the statistics in the footer of a file, and its folders (``constants``), tell of its columns."""

    def __init__(
        self, metadata: parquet.FileMetaData, schema: pa.Schema, constants: Constants = MappingProxyType({})
    ) -> None:
        self._metadata = metadata
        self._constants = constants
        self._schema = schema
        names = metadata.schema.names
        self._leaves = {name: place for place, name in enumerate(names)}
        self._has_doubles = len(self._leaves) < len(names)

    def of(self, group: int, name: str) -> Range:
        """Of a column in a row group."""
        if name in self._constants:
            return range_of(self._constants[name])
        leaf = self._leaf(name)
        return Range() if leaf is None else self._bounds(group, leaf, self._schema.field(name).type)

    def _leaf(self, name: str) -> int | None:
        """The place of a column of which something may be told."""
        leaf, type = self._leaves.get(name), self._schema.field(name).type
        if leaf is None or (self._has_doubles and self._metadata.schema.names.count(name) > 1):
            return None
        column = self._metadata.schema.column(leaf)
        is_flat = column.path == name and not column.max_repetition_level
        return leaf if is_flat and is_stored_as(column, type) else None

    def _bounds(self, group: int, leaf: int, type: pa.DataType) -> Range:
        column, chunk = self._metadata.schema.column(leaf), self._metadata.row_group(group).column(leaf)
        return self._told(chunk, column, type)

    def _told(self, chunk: parquet.ColumnChunkMetaData, column: parquet.ColumnSchema, type: pa.DataType) -> Range:
        statistics = chunk.statistics
        if statistics is None:
            return Range(has_nulls=bool(column.max_definition_level))
        has_values = has_nulls = True
        if statistics.has_null_count and 0 <= statistics.null_count <= chunk.num_values:
            has_values, has_nulls = statistics.null_count < chunk.num_values, statistics.null_count > 0
        if not statistics.has_min_max:
            return Range(None, None, has_values, has_nulls)
        to_value = value_reader(column.physical_type, type)
        low, high = to_value(statistics.min_raw), to_value(statistics.max_raw)
        if low is None or high is None or not low <= high:
            low = high = None
        return Range(low, high, has_values, has_nulls)


class OpenColumns(Protocol):
    """A file that is open. ``leaping``: row groups of which pages are left out."""

    leaping: set[int]

    def part(self, offset: int, size: int) -> bytes:
        """A part of the file; less, or none, where it ends before."""

    def reader(self, group: int, field: pa.Field) -> ColumnReader | None:
        """The decoder of a column; None if it is pyarrow's."""


class GroupRanges(GroupBounds):
    """What a file that is open tells of its columns. ``skipped``: what came of that so far."""

    def __init__(
        self,
        metadata: parquet.FileMetaData,
        schema: pa.Schema,
        opened: OpenColumns,
        skipped: Skipped,
        constants: Constants = MappingProxyType({}),
    ) -> None:
        super().__init__(metadata, schema, constants)
        self._opened = opened
        self._skipped = skipped
        self._known: dict[tuple[int, str], Range] = {}

    def of(self, group: int, name: str) -> Range:
        """Of a column in a row group."""
        found = self._known.get((group, name))
        if found is None:
            found, leaf = super().of(group, name), self._leaf(name)
            if leaf is not None:
                found = replace(found, lacks=self._lacks(group, leaf, self._schema.field(name)))
            self._known[group, name] = found
        return found

    def _lacks(self, group: int, leaf: int, field: pa.Field) -> Lacks | None:
        column, chunk = self._metadata.schema.column(leaf), self._metadata.row_group(group).column(leaf)
        found = lacks_of(self._opened.part, chunk, column, field.type)
        if found is not None or not chunk.has_dictionary_page:
            return found
        size = chunk.data_page_offset - (chunk.dictionary_page_offset or 0)
        if not 0 < size <= DICTIONARY_BYTES:
            return None
        words: list[ColumnReader | None] = []

        def lacks(value: Any) -> bool:
            content = stored_bytes(value, column.physical_type, column.length, field.type)
            skipped = self._skipped
            is_given_up = skipped.dictionaries >= DICTIONARIES * (1 + skipped.by_dictionary)
            if content is None or (not words and is_given_up):
                return False
            if not words:
                skipped.dictionaries += 1
                is_all = index_places(self._metadata, group, leaf).only_words == 1
                words.append(self._opened.reader(group, field) if is_all else None)
            try:
                return words[0] is not None and not words[0].has_word(content)
            except DoubtfulPage:
                words[0] = None
                return False

        return lacks

    def has_bloom(self, group: int, name: str) -> bool:
        """Whether a bloom filter tells what a column has not, and not its dictionary."""
        leaf = self._leaf(name)
        return leaf is not None and self._metadata.row_group(group).column(leaf).bloom_filter_offset is not None

    def pages(self, group: int, names: Iterable[str]) -> Mapping[str, PageRanges]:
        """Of those columns in a row group that have an index, what is told of their pages."""
        skipped = self._skipped
        if skipped.pages >= PAGES * (1 + skipped.pages_left_out):
            return {}
        found = {name: self._pages(group, leaf, name) for name in names if (leaf := self._leaf(name)) is not None}
        return {name: each for name, each in found.items() if each is not None}

    def _pages(self, group: int, leaf: int, name: str) -> PageRanges | None:
        chunk, column = self._metadata.row_group(group).column(leaf), self._metadata.schema.column(leaf)
        if not (chunk.has_column_index and chunk.has_offset_index and chunk.is_stats_set):
            return None
        where = index_places(self._metadata, group, leaf)
        starts = page_places(self._opened.part, chunk, where)
        if starts is None or len(starts) <= 2:
            return None
        to_value = bound_reader(column.physical_type, self._schema.field(name).type)
        return page_ranges(self._opened.part, where, starts[:-1, 1].tolist(), self.of(group, name), to_value)

    def leave_out(self, group: int) -> None:
        """Pages of this row group are left out."""
        self._opened.leaping.add(group)


def bound_reader(physical: str, type: pa.DataType) -> Callable[[bytes], Any]:
    """The same as ``value_reader`` of the bytes of a bound."""
    to_value, form = value_reader(physical, type), _NUMBERS.get(physical)
    if form is None:
        return (lambda raw: None) if physical == "BOOLEAN" else to_value
    return lambda raw: to_value(struct.unpack(form, raw)[0])


def value_reader(physical: str, type: pa.DataType) -> Callable[[Any], Any]:
    """Makes values that can be compared (``expressions.bounds``) of those of statistics."""
    kind = kind_of(type)
    if kind == "whole" and pa.types.is_unsigned_integer(type):
        mask = (1 << (64 if physical == "INT64" else 32)) - 1
        return lambda raw: raw & mask
    if kind == "decimal":
        if physical == "BYTE_ARRAY":
            return lambda raw: None
        scale = type.scale

        def decimal(raw: Any) -> Decimal:
            digits = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
            return Decimal(f"{digits}E{-scale}")

        return decimal
    if kind == "real":
        return lambda raw: None if math.isnan(raw) else raw
    return (lambda raw: None) if kind is None else (lambda raw: raw)


class Skipping:
    """What is left out of the rows of some row groups, which are counted from the first one on. ``groups``: (row group,
    number of rows) of each."""

    def __init__(self, ranges: GroupRanges, groups: Sequence[tuple[int, int]], pick: Pick) -> None:
        self._ranges = ranges
        self._groups = groups
        self._ends = list(accumulate(rows for _, rows in groups))
        self.pick = pick
        found = [bounded(each.expression, pick.schema) for each in pick.conditions]
        #: rule 2
        safe = list(takewhile(lambda condition: condition.is_safe, found))
        self._safe = len(safe)
        self._conditions = safe + [bounded(each.condition.expression, pick.schema) for each in pick.early]
        #: by filter and row group, the rows of it that may pass; None: all may
        self._passing: dict[tuple[int, int], Sequence[Interval] | None] = {}
        #: the same by what a join has told, which is kept for its id, and row group
        self._met_by: dict[tuple[int, int], tuple[KeyTest, Sequence[Interval] | None]] = {}
        pick.skipped.groups += len(groups)

    def passing(self, place: int, at: int, rows: int) -> Positions | None:
        """Which of so many rows from row ``at`` on that filter may let through; None: all."""
        if place >= self._safe:
            return None
        return self._positions(lambda group: self._passing_of(place, group), at, rows)

    def passing_early(self, place: int, at: int, rows: int) -> Positions | None:
        """The same of what operators further down ask early."""
        return self._positions(lambda group: self._passing_of(self._safe + place, group), at, rows)

    def needed(self, keys: Keys, at: int, rows: int) -> Positions | None:
        """Which of so many rows from row ``at`` on a join may need; None: all."""
        test = keys.filter.test(self.pick.window)
        if test is None or not any(test.bounds):
            return None
        told = zip(keys.columns, test.bounds, strict=True)
        bounds = {name: tuple(map(comparable_value, found)) for name, found in told if found is not None}

        def met(group: int) -> Sequence[Interval] | None:
            known = self._met_by.get((id(test), group))
            if known is None:
                known = self._met_by[id(test), group] = test, self._met(group, bounds)
            return known[1]

        return self._positions(met, at, rows)

    def _positions(self, of: Callable[[int], Sequence[Interval] | None], at: int, rows: int) -> Positions | None:
        """The rows of the groups' intervals among so many rows from row ``at`` on."""
        found: list[Interval] = []
        place = bisect_right(self._ends, at)
        while place < len(self._ends) and (begin := self._ends[place] - self._groups[place][1]) < at + rows:
            group, count = self._groups[place]
            inner = of(group)
            for low, high in ((0, count),) if inner is None else inner:
                piece = max(begin + low - at, 0), min(begin + high - at, rows)
                if piece[0] < piece[1]:
                    found.append(piece)
            place += 1
        left = sum(high - low for low, high in found)
        if left == rows:
            return None
        return np.concatenate([np.arange(low, high) for low, high in found] or [np.arange(0)])

    def _passing_of(self, place: int, group: int) -> Sequence[Interval] | None:
        at = place, group
        if at not in self._passing:
            condition = self._conditions[place]
            ranges = {name: self._ranges.of(group, name) for name in condition.columns}
            if condition.may_hold(ranges):
                self._passing[at] = self._among_pages(group, ranges, condition.may_hold)
            else:
                self._passing[at] = ()
                if all(self._passing.get((each, group)) != () for each in range(place)):
                    self._count(group, condition.may_hold, ranges)
        return self._passing[at]

    def _count(self, group: int, may_hold: Callable[[Mapping[str, Range]], bool], ranges: Mapping[str, Range]) -> None:
        """A row group is left out, and why."""
        skipped = self.pick.skipped
        skipped.groups_left_out += 1
        if may_hold({name: replace(range, lacks=None) for name, range in ranges.items()}):
            has_bloom = any(self._ranges.has_bloom(group, name) for name in ranges)
            skipped.by_bloom += has_bloom
            skipped.by_dictionary += not has_bloom

    def _met(self, group: int, bounds: Mapping[str, Interval]) -> Sequence[Interval] | None:
        ranges = {name: self._ranges.of(group, name) for name in bounds}

        def may_meet(ranges: Mapping[str, Range]) -> bool:
            return all(_meets(ranges[name], *each) for name, each in bounds.items())

        return self._among_pages(group, ranges, may_meet) if may_meet(ranges) else ()

    def _among_pages(
        self, group: int, ranges: Mapping[str, Range], may_hold: Callable[[Mapping[str, Range]], bool]
    ) -> Sequence[Interval] | None:
        """The rows of a row group that may be wanted by what is told of its pages; None: all."""
        pages = self._ranges.pages(group, ranges)
        if not pages:
            return None
        rows = next(count for each, count in self._groups if each == group)
        found: list[Interval] = []
        bounds = sorted({start for each in pages.values() for start in each.starts})
        for low, high in pairwise([*bounds, rows]):
            here = {name: replace(each.at(low), lacks=ranges[name].lacks) for name, each in pages.items()}
            if may_hold({**ranges, **here}):
                goes_on = bool(found) and found[-1][1] == low
                found.append((found.pop()[0] if goes_on else low, high))
            else:
                self.pick.skipped.pages_left_out += 1
        self.pick.skipped.pages += len(bounds)
        if found == [(0, rows)]:
            return None
        self._ranges.leave_out(group)
        return found


def _meets(range: Range, low: Any, high: Any) -> bool:
    """Whether values may lie within such bounds."""
    return range.has_values and (range.low is None or (range.high >= low and range.low <= high))
