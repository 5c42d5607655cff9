"""The job that disasters happen to (two sources, a shuffle, a join, a group-by, two sinks), and what it must write."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.engine.flow.flow import Flow

SPLITS, ROWS, GROUPS = 48, 400, 97
PACE = 4000.0
"""Rows per second: all of them last for nearly five seconds."""


def make_flow(output: Path, rate: float = PACE) -> Flow:
    """Each number with the name of its group; and for each group how many there are, and their sum."""
    flow = Flow("chaos", lanes=4)
    numbers = flow.from_tables([_numbers(split) for split in range(SPLITS)], name="numbers", rate=rate)
    groups = flow.from_tables([_groups(part) for part in range(4)], name="groups")
    joined = numbers.hash_join(groups, ["g"], exchange="key")
    joined.write_parquet(output / "joined", name="joined")
    joined.aggregate(["name"], n="count", total=("n", "sum")).write_parquet(output / "totals", name="totals")
    return flow


def _numbers(split: int) -> pa.Table:
    numbers = range(split * ROWS, (split + 1) * ROWS)
    return pa.table({"n": pa.array(numbers), "g": pa.array([number * 7919 % GROUPS for number in numbers])})


def _groups(part: int) -> pa.Table:
    groups = range(part, GROUPS, 4)
    return pa.table({"g": pa.array(groups), "name": pa.array([f"group {group}" for group in groups])})


def outputs(output: Path) -> dict[str, pa.Table]:
    """What a plain reader sees in both sinks, in an order that depends on the rows alone."""
    return {
        "joined": ds.dataset(output / "joined", format="parquet").to_table().sort_by("n"),
        "totals": ds.dataset(output / "totals", format="parquet").to_table().sort_by("name"),
    }


def differences(found: dict[str, pa.Table], undisturbed: dict[str, pa.Table]) -> list[str]:
    """In which sinks the rows are others, in a sentence each."""
    return [
        f"{name}: {found[name].num_rows} rows instead of {rows.num_rows}, or other ones"
        for name, rows in undisturbed.items()
        if not found[name].equals(rows)
    ]
