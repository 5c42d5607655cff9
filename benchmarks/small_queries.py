"""What a query of next to no rows costs: processor milliseconds of planning, running and ending it in this process.

``nation`` of TPC-H (25 rows) alone, and joined with ``region`` (5 rows) up to six times, each join with a scan of its
own. A join costs what six cost more than none, by six.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from growth_axes import seconds
from tpch_data import look_alike

import penstock as ps
from harness import Row, make_row, sized

ROUNDS = sized(15, 2)
JOINS = 6
MOST_MS, MOST_MS_A_JOIN = 8.0, 2.0


def joined(folder: Path, joins: int) -> ps.Flow:
    """``nation`` with the name of its region, so many times."""
    flow = ps.Flow("small")
    stream = flow.read_parquet(folder / "nation.parquet")
    for number in range(joins):
        key, name = f"key{number}", f"name{number}"
        regions = flow.read_parquet(folder / "region.parquet").select(**{key: "r_regionkey", name: "r_name"})
        stream = stream.hash_join(regions, ["n_regionkey"], right_on=[key], exchange="gather")
    stream.collect("rows")
    return flow


def small_queries() -> list[Row]:
    """The floor, and what each join adds; queries in turn, the least of the rounds counts."""
    folder = look_alike()
    jobs = [partial(joined, folder, joins) for joins in (0, 1, JOINS)]
    for job in jobs:
        seconds(job)
    turns = [[seconds(job) * 1e3 for job in jobs] for _ in range(ROUNDS)]
    none, one, most = (min(each) for each in zip(*turns, strict=True))
    return [
        against("small query (nation): plan, start and end", none, MOST_MS),
        against("small query (nation ⋈ region): plan, start and end", one, MOST_MS + MOST_MS_A_JOIN),
        against(f"small query, each of {JOINS} joins", max((most - none) / JOINS, 0.01), MOST_MS_A_JOIN),
    ]


def against(work: str, found: float, most: float) -> Row:
    return make_row(work, f"the aim of {most:g} ms", ([found], [most]), "ms", 1.0, False)
