"""The flows of TPC-H on the lazy frames of Polars: what they use of a stream, and the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from tpch_queries import QUERIES, Tables

HOWS = {"left semi": "semi", "anti": "anti", "inner": "inner", "left": "left"}
AGGREGATES = {"sum": "sum", "mean": "mean", "min": "min", "max": "max", "count": "count", "count_distinct": "n_unique"}


@dataclass(frozen=True)
class Down:
    """A column of a sort, the largest first."""

    column: str


@dataclass(frozen=True)
class Frame:
    """A lazy frame with the methods of a stream."""

    lazy: pl.LazyFrame

    def filter(self, condition: str) -> Frame:
        return Frame(self.lazy.filter(expression(condition)))

    def project(self, *names: str, **made: str) -> Frame:
        return Frame(self.lazy.select(*names, **{name: expression(text) for name, text in made.items()}))

    def with_columns(self, **made: str) -> Frame:
        return Frame(self.lazy.with_columns(**{name: expression(text) for name, text in made.items()}))

    def aggregate(self, by: Sequence[str] = (), **asked: Any) -> Frame:
        made = {
            name: pl.len() if of == "count" else getattr(pl.col(of[0]), AGGREGATES[of[1]])()
            for name, of in asked.items()
        }
        return Frame(self.lazy.group_by(by).agg(**made) if by else self.lazy.select(**made))

    def sort(self, *keys: str | Down) -> Frame:
        names = [key.column if isinstance(key, Down) else key for key in keys]
        return Frame(self.lazy.sort(names, descending=[isinstance(key, Down) for key in keys]))

    def top_n(self, most: int, *keys: str | Down) -> Frame:
        return Frame(self.sort(*keys).lazy.head(most))


def expression(text: str) -> pl.Expr:
    return pl.sql_expr(" ".join(text.split()))


class Frames(Tables):
    """Reads and joins frames."""

    def down(self, column: str) -> Any:
        return Down(column)

    def read(self, name: str) -> Any:
        return Frame(pl.scan_parquet(self.folder / f"{name}.parquet"))

    def join(self, left: Any, right: Any, on: str, how: str = "inner", filter: str | None = None) -> Any:
        pairs = [pair.split(" = ") for pair in on.split(" and ")]
        keys: Any = {"left_on": [pair[0] for pair in pairs], "right_on": [pair[-1] for pair in pairs]}
        if filter is None or how == "inner":
            joined = left.lazy.join(right.lazy, how=HOWS[how], coalesce=" = " not in on, **keys)
            return Frame(joined) if filter is None else Frame(joined).filter(filter)
        rows = left.lazy.with_row_index("row")
        hits = Frame(rows.join(right.lazy, how="inner", **keys)).filter(filter).lazy.select("row")
        return Frame(rows.join(hits, on="row", how=HOWS[how]).drop("row"))

    def group(self, rows: Any, by: Sequence[str], **aggregates: Any) -> Any:
        return rows.aggregate(by, **aggregates)


def frame_of(number: int, folder: Path) -> pl.LazyFrame:
    frames: Any = Frames(None, folder)  # type: ignore[arg-type]
    found: Any = QUERIES[number - 1](frames)
    return found.lazy
