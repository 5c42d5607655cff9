"""What SQL text gives over a table: by our expressions, and by DuckDB, in a form in which both can be compared."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.engine.expressions.evaluator import Evaluator
from penstock.engine.expressions.expressions import as_expression
from support.oracle import connect


def by_us(text: str, table: pa.Table) -> list[Any]:
    (records,) = table.combine_chunks().to_batches()
    (found,) = Evaluator([("found", as_expression("project", text, table.schema))]).evaluate(records)
    return [close(value) for value in found.to_pylist()]


def by_duckdb(text: str, table: pa.Table) -> list[Any]:
    with connect() as connection:
        connection.register("given", table.append_column("place", pa.array(range(table.num_rows))))
        connection.execute("set timezone = 'UTC'")
        found = connection.execute(f"select ({text}) from given order by place").fetchall()
    return [close(value) for (value,) in found]


def close(value: Any) -> Any:
    """Numbers by value, to ten digits, also inside lists and structs; a date as the time of its start."""
    if isinstance(value, list):
        return [close(each) for each in value]
    if isinstance(value, dict):
        return {name: close(each) for name, each in value.items()}
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float | Decimal):
        number = float(value)
        return repr(number) if not math.isfinite(number) else float(f"{number:.10g}") + 0.0
    if isinstance(value, datetime.date):
        return value.isoformat().removesuffix("T00:00:00")
    return value
