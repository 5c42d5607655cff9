"""Origins in words of the inputs: files, row groups and rows.

The table of a batch has a line for each row of it and for each span that this row is of:

=========  ================================================================================================
position   the row's place in the feed
source     the operator that has read it; null: it is not known where the row comes from
split      the split's id
file       its path; null where the source reads no files
row_group  of a Parquet file
row        the row's number in the file from 0, whatever row groups it has (in the split, where there is no file)
rows       1: exactly this row; else it is one of so many rows from ``row`` on
=========  ================================================================================================
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa

from ..core.source import Split
from ..files.paths import DataFile
from ..sources.parquet import ParquetSplit
from .origins import Numbers, rows_within, spans_of, split_numbers

SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("source", pa.string()),
        ("split", pa.string()),
        ("file", pa.string()),
        ("row_group", pa.int32()),
        ("row", pa.int64()),
        ("rows", pa.int64()),
    ]
)
MOST_LINES = 24
MOST_RUNS = 8


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the rows of a split lie. ``groups``: (first row in the split, row group, its first row in the file)."""

    source: str
    split: str
    file: str | None
    groups: tuple[tuple[int, int | None, int], ...]

    def of(self, row: int) -> tuple[int | None, int]:
        """Row group and row in the file."""
        first, group, begin = self.groups[bisect_right(self.groups, row, key=lambda each: each[0]) - 1]
        return group, begin + row - first


def lineage(column: pa.Array, positions: Numbers, splits: Sequence[tuple[str, Split]]) -> pa.Table:
    """The table for the rows at these positions with these origins; ``splits``: source and split by number."""
    counts, spans = spans_of(column)
    positions = np.repeat(positions, counts)
    places = _places(splits, {int(each) for each in np.unique(split_numbers(spans[:, 0])) if each >= 0})
    lines = [_line(int(position), span, places) for position, span in zip(positions, spans, strict=True)]
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, line, strict=True)) for line in lines], schema=SCHEMA)


def unknown(positions: Numbers) -> pa.Table:
    """The table of the rows at these positions, of which nothing is known."""
    nothing = {field.name: pa.nulls(len(positions), field.type) for field in SCHEMA}
    return pa.table({**nothing, "position": pa.array(positions)}, schema=SCHEMA)


def _line(position: int, span: Numbers, places: Mapping[int, _Place]) -> tuple[object, ...]:
    number = int(split_numbers(span[:1])[0])
    if number < 0:
        return (position, None, None, None, None, None, None)
    begin, end = rows_within(span).tolist()
    place = places[number]
    group, row = place.of(begin)
    return (position, place.source, place.split, place.file, group, row, place.of(end)[1] - row + 1)


def _places(splits: Sequence[tuple[str, Split]], wanted: set[int]) -> dict[int, _Place]:
    """Of the splits with the wanted numbers."""
    sizes: dict[tuple[str, str], dict[int, int]] = {}
    for source, split in splits:
        if isinstance(split, ParquetSplit):
            sizes.setdefault((source, split.file.path), {}).update(split.groups)
    return {number: _place(*splits[number], sizes) for number in wanted}


def _place(source: str, split: Split, sizes: Mapping[tuple[str, str], Mapping[int, int]]) -> _Place:
    file = getattr(split, "file", None)
    path = file.path if isinstance(file, DataFile) else None
    if not isinstance(split, ParquetSplit):
        return _Place(source, split.id, path, ((0, None, 0),))
    in_file = sizes[source, split.file.path]
    starts = accumulate((count for _, count in split.groups), initial=0)
    groups = tuple(
        (start, group, sum(rows for each, rows in in_file.items() if each < group))
        for start, (group, _) in zip(starts, split.groups, strict=False)
    )
    return _Place(source, split.id, path, groups or ((0, None, 0),))


def summary(table: pa.Table) -> Iterator[str]:
    """A line for each file and row group that rows of the table are of, in the order of their names."""
    found: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    lost = 0
    for line in table.to_pylist():
        if line["source"] is None:
            lost += 1
        else:
            key = (line["source"], line["file"] or f"split {line['split']}", line["row_group"])
            found.setdefault(key, []).append((line["row"], line["rows"]))
    ordered = sorted(found.items(), key=lambda each: (each[0][0], each[0][1], each[0][2] or 0))
    for (source, where, group), rows in ordered[:MOST_LINES]:
        part = "" if group is None else f", row group {group}"
        yield f"{source}: {where}{part}: {_told(rows)}"
    if len(ordered) > MOST_LINES:
        yield f"… and {len(ordered) - MOST_LINES:,} more files and row groups"
    if lost:
        yield f"of {lost:,} {'row' if lost == 1 else 'rows'} it is not known where they come from"


def _told(rows: Sequence[tuple[int, int]]) -> str:
    """Rows as runs: "12 rows: 3, 7 to 17"; those that are only known roughly aside."""
    exact = sorted({row for row, count in rows if count == 1})
    rough = sorted({(row, row + count - 1) for row, count in rows if count > 1})
    told = []
    if exact:
        runs = [(run[0], run[-1]) for run in np.split(exact, np.flatnonzero(np.diff(exact) != 1) + 1)]
        told.append(f"{len(exact):,} {'row' if len(exact) == 1 else 'rows'}: {_runs(runs)}")
    if rough:
        told.append(f"some of the rows {_runs(rough)}")
    return "; ".join(told)


def _runs(runs: Sequence[tuple[int, int]]) -> str:
    text = ", ".join(f"{begin}" if begin == end else f"{begin} to {end}" for begin, end in runs[:MOST_RUNS])
    return text if len(runs) <= MOST_RUNS else f"{text}, …"
