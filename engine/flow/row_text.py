"""Rows as text, for people: one line a row under the names and types of the columns. Pure."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

WIDEST = 40
"""Characters of a value that are shown; of a longer one the rest is three dots."""


def table_text(table: pa.Table) -> str:
    """The rows, columns one beside the other, and how many rows there are."""
    columns = [
        [field.name, str(field.type), *map(_shown, table.column(place).to_pylist())]
        for place, field in enumerate(table.schema)
    ]
    columns = [[_cut(each) for each in column] for column in columns]
    widths = [max(map(len, column)) for column in columns]
    for column, width in zip(columns, widths, strict=True):
        column.insert(2, "-" * width)
    lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in zip(*columns, strict=True)]
    return "\n".join([*lines, f"({table.num_rows:,} row{'' if table.num_rows == 1 else 's'})"])


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _cut(text: str) -> str:
    line = " ".join(text[: WIDEST + 1].splitlines())
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 1]}…"
