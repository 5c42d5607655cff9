"""The flights job's answer by plain Spark SQL, and the comparison of an answer with it.

The query is written on its own, against the raw files: it shares no code with the flow or with the ETL, beyond reading
the CSV files. Floating-point columns only pass through, and all aggregates are over integers, so equal means equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .flights_data import SHIFT_DAYS
from .flights_etl import collect, read

_FEATURES = f"""
WITH copies AS (SELECT id AS copy FROM range(:scale)),
flown AS (
  SELECT *, make_date(year, month, day) AS local_day,
         make_timestamp(year, month, day, sched_dep_time DIV 100, sched_dep_time % 100, 0, 'America/New_York')
           AS planned
  FROM raw_flights WHERE dep_delay IS NOT NULL
),
joined AS (
  SELECT f.*, w.temp, w.humid, w.precip, w.pressure, w.visib,
         CASE WHEN w.wind_speed <= 200 THEN w.wind_speed END AS wind_speed,
         CASE WHEN w.wind_gust <= 200 THEN w.wind_gust END AS wind_gust,
         p.manufacturer, p.engines, p.seats, p.built
  FROM flown f
  LEFT JOIN raw_weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
  LEFT JOIN raw_planes p ON f.tailnum = p.tailnum
),
moved AS (
  SELECT j.*, date_add(local_day, CAST(copy * {SHIFT_DAYS} AS INT)) AS moved_day,
         make_dt_interval(CAST(copy * {SHIFT_DAYS} AS INT)) AS shift
  FROM joined j CROSS JOIN copies
)
SELECT concat(moved_day, '-', carrier, flight, '-', origin) AS flight_id,
       CAST(phase AS BIGINT) + 1 AS phase, origin, moved_day AS day,
       time_hour + shift AS time_hour, planned + shift AS scheduled_departure,
       planned + shift + make_dt_interval(0, 0, CAST(dep_delay AS INT)) AS departure,
       hour, carrier, dest, tailnum, distance, manufacturer, engines, seats, year(moved_day) - built AS plane_age,
       temp, humid, wind_speed, wind_gust, precip, pressure, visib,
       wind_speed >= 20 AS windy, visib < 3 AS low_visibility, delay, CAST(delay > 15 AS BIGINT) AS late
FROM moved LATERAL VIEW posexplode(array(dep_delay, arr_delay)) delays AS phase, delay
WHERE delay IS NOT NULL
"""

_DAILY = """
SELECT origin, day, count(delay) AS phases, sum(late) AS late, sum(delay) AS total_delay, max(delay) AS worst,
       min(delay) AS best, max(distance) AS longest, count(temp) AS with_weather
FROM reference_features GROUP BY origin, day
"""


def compute(spark: Any, scale: int, workspace: Path) -> tuple[pa.Table, pa.Table]:
    """The features and the daily statistics that the flow must give, in no particular order."""
    for name in ("flights", "weather", "planes"):
        read(spark, f"{name}.csv", workspace).createOrReplaceTempView(f"raw_{name}")
    features = spark.sql(_FEATURES, args={"scale": scale})
    features.createOrReplaceTempView("reference_features")
    return collect(features), collect(spark.sql(_DAILY))


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a table differs from the expected one: ``missing`` and ``extra`` keys, ``repeated`` keys, values."""

    rows: int
    expected_rows: int
    missing: int
    extra: int
    repeated: int
    different: int
    first_difference: str

    @property
    def is_equal(self) -> bool:
        return not (self.missing or self.extra or self.repeated or self.different or self.first_difference)

    def describe(self) -> str:
        if self.is_equal:
            return f"{self.rows:,} rows, equal to the reference"
        return (
            f"{self.rows:,} rows, {self.expected_rows:,} expected: {self.missing:,} missing, {self.extra:,} extra, "
            f"{self.repeated:,} repeated, {self.different:,} different; first: {self.first_difference}"
        )


def compare(actual: pa.Table, expected: pa.Table, key: Sequence[str]) -> Comparison:
    """Compare row for row, after sorting both by ``key``, unique in ``expected``. Floats must be identical."""
    counts = {"rows": actual.num_rows, "expected_rows": expected.num_rows}
    nothing = {"missing": 0, "extra": 0, "repeated": 0, "different": 0}
    if sorted(actual.schema.names) != sorted(expected.schema.names):
        text = f"the columns are {actual.schema.names}, and should be {expected.schema.names}"
        return Comparison(**counts, **nothing, first_difference=text)
    expected = _sorted(expected, key)
    try:
        actual = _sorted(actual.select(expected.schema.names).cast(expected.schema), key)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        return Comparison(**counts, **nothing, first_difference=f"a column has another type: {error}")
    if actual.num_rows != expected.num_rows or _different(actual.select(key), expected.select(key)).any():
        return _compare_keys(actual.select(key), expected.select(key), key)
    mask = _different(actual, expected)
    first_row = int(np.argmax(mask)) if mask.any() else -1
    text = _explain(actual, expected, key, first_row) if first_row >= 0 else ""
    return Comparison(**counts, **(nothing | {"different": int(mask.sum())}), first_difference=text)


def _compare_keys(actual: pa.Table, expected: pa.Table, key: Sequence[str]) -> Comparison:
    """What is missing, extra or repeated, in two sorted tables of keys."""
    repeats = actual.slice(1).filter(_same_as_next(actual, key)) if actual.num_rows else actual
    once = actual.group_by(list(key)).aggregate([])
    missing = expected.join(once, keys=list(key), join_type="left anti")
    extra = once.join(expected, keys=list(key), join_type="left anti")
    found = {"repeated": repeats, "missing": missing, "extra": extra}
    what, rows = next(((what, rows) for what, rows in found.items() if rows.num_rows), ("expected twice", expected))
    first = _sorted(rows, key).slice(0, 1).to_pylist()[0]
    numbers = {name: rows.num_rows for name, rows in found.items()}
    return Comparison(actual.num_rows, expected.num_rows, **numbers, different=0, first_difference=f"{what} {first}")


def _sorted(table: pa.Table, key: Sequence[str]) -> pa.Table:
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in key])).combine_chunks()


def _same_as_next(table: pa.Table, key: Sequence[str]) -> pa.Array:
    """For each row of a sorted table but the last: whether the next one has the same key."""
    same = np.ones(table.num_rows - 1, dtype=bool)
    for name in key:
        same &= ~_unequal(table[name].slice(0, table.num_rows - 1), table[name].slice(1))
    return pa.array(same)


def _different(actual: pa.Table, expected: pa.Table) -> Any:
    mask = np.zeros(expected.num_rows, dtype=bool)
    for name in expected.schema.names:
        mask |= _unequal(actual[name], expected[name])
    return mask


def _unequal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Any:
    """Where two columns differ; null equals null, and NaN equals NaN."""
    unequal = pc.not_equal(left, right)
    if pa.types.is_floating(left.type):
        unequal = pc.and_(unequal, pc.invert(pc.and_(pc.is_nan(left), pc.is_nan(right))))
    one_is_null = pc.xor(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.fill_null(unequal, False), one_is_null).to_numpy(zero_copy_only=False)


def _explain(actual: pa.Table, expected: pa.Table, key: Sequence[str], row: int) -> str:
    where = expected.select(key).slice(row, 1).to_pylist()[0]
    pairs = [
        f"{name} is {actual[name][row].as_py()!r}, not {expected[name][row].as_py()!r}"
        for name in expected.schema.names
        if _unequal(actual[name].slice(row, 1), expected[name].slice(row, 1)).any()
    ]
    return f"at {where}: {'; '.join(pairs)}"
