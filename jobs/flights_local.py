"""The flights job's data prepared with pyarrow: the twin of ``flights_etl`` for runs without Ray and Spark.

It gives the same rows as Spark does (tests/spark proves it). Only the assignment of a group to a split differs, since
each uses a hash of its own; the outputs of the job are the same sets of rows. Within a split, rows are sorted by
(origin, time_hour, flight_id) in both.
"""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from .flights_data import FLIGHTS, PLANES, SHIFT_DAYS, SPLITS, WEATHER, WIND_LIMIT, ZONE, folder

_MICROSECONDS_A_MINUTE = 60_000_000
_DAY = "__day"


def tables(scale: int = 1, splits: int | None = None) -> tuple[list[pa.Table], list[pa.Table], pa.Table]:
    """Flights and weather, one table a split, equal groups (origin, day) in splits of equal position; and planes."""
    count = splits or SPLITS * scale
    flights = pa.concat_tables(_shifted(_flights(), copy) for copy in range(scale))
    weather = pa.concat_tables(_shifted(_weather(), copy) for copy in range(scale))
    flights = flights.append_column("flight_id", _flight_id(flights))
    return (
        _split(flights, count, ["origin", "time_hour", "flight_id"], FLIGHTS),
        _split(weather, count, ["origin", "time_hour"], WEATHER),
        _planes(),
    )


def _read(name: str) -> pa.Table:
    options = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    if name == "flights.csv":
        with zipfile.ZipFile(folder() / "flights.csv.zip") as archive:
            source: Any = pa.BufferReader(archive.read(name))
    else:
        source = folder() / name
    return csv.read_csv(source, convert_options=options)


def _flights() -> pa.Table:
    raw = _read("flights.csv")
    clock = raw["sched_dep_time"]
    hours = pc.divide(clock, 100)
    minutes = pc.add(pc.multiply(hours, 60), pc.subtract(clock, pc.multiply(hours, 100)))
    scheduled = _to_utc(pc.add(_midnight(raw), _minutes(minutes)))
    delays = _pairs(raw["dep_delay"], raw["arr_delay"])
    kept = raw.select(["origin", "hour", "carrier", "flight", "dest", "tailnum", "distance"])
    return (
        kept.append_column(_DAY, _midnight(raw))
        .append_column("time_hour", raw["time_hour"].cast(pa.timestamp("us", "UTC")))
        .append_column("scheduled_departure", scheduled)
        .append_column("departure", pc.add(scheduled, _minutes(raw["dep_delay"])))
        .append_column("delays", delays)
    )


def _weather() -> pa.Table:
    raw = _read("weather.csv")
    kept = raw.select(["origin", "temp", "humid", "precip", "pressure", "visib"])
    table = kept.append_column(_DAY, _midnight(raw)).append_column(
        "time_hour", raw["time_hour"].cast(pa.timestamp("us", "UTC"))
    )
    for name in ("wind_speed", "wind_gust"):
        believable = pc.less_equal(raw[name], WIND_LIMIT)
        table = table.append_column(name, pc.if_else(believable, raw[name], None))
    return table


def _planes() -> pa.Table:
    raw = _read("planes.csv")
    return raw.rename_columns({"year": "built"}).select(PLANES.names).cast(PLANES).sort_by("tailnum")


def _midnight(raw: pa.Table) -> pa.ChunkedArray:
    """The local day as a timestamp without a zone."""
    parts = [raw[name].cast(pa.string()) for name in ("year", "month", "day")]
    return pc.strptime(pc.binary_join_element_wise(*parts, "-"), "%Y-%m-%d", "us")


def _to_utc(local: pa.ChunkedArray) -> pa.ChunkedArray:
    """An hour that occurs twice is the earlier one, as in Java; one that does not exist would raise (none is flown)."""
    return pc.assume_timezone(local, ZONE, ambiguous="earliest", nonexistent="raise").cast(pa.timestamp("us", "UTC"))


def _minutes(count: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.multiply(count, _MICROSECONDS_A_MINUTE).cast(pa.duration("us"))


def _pairs(first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.Array:
    """Lists [first, second], one a row; missing values stay in the list as nulls."""
    count = len(first)
    values = pa.concat_arrays([first.combine_chunks(), second.combine_chunks()])
    order = np.arange(2 * count).reshape(2, count).T.ravel()  # first[0], second[0], first[1], …
    offsets = pa.array(np.arange(0, 2 * count + 1, 2, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, values.take(pa.array(order)), type=FLIGHTS.field("delays").type)


def _shifted(table: pa.Table, copy: int) -> pa.Table:
    """The table with all its days and instants moved; see ``flights_data``."""
    shift = pa.scalar(copy * SHIFT_DAYS * 24 * 60 * _MICROSECONDS_A_MINUTE, pa.duration("us"))
    for position, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(position, column.name, pc.add(table[column.name], shift))
    return table


def _flight_id(flights: pa.Table) -> pa.ChunkedArray:
    """For example 2013-01-01-UA1545-EWR."""
    day = flights[_DAY].cast(pa.date32()).cast(pa.string())
    number = pc.binary_join_element_wise(flights["carrier"], flights["flight"].cast(pa.string()), "")
    return pc.binary_join_element_wise(day, number, flights["origin"], "-")


def _split(table: pa.Table, count: int, order: Sequence[str], schema: pa.Schema) -> list[pa.Table]:
    """The table in ``count`` parts by a hash of (origin, day), each part sorted by ``order``."""
    part = pa.array(_part(table["origin"], table[_DAY], count))
    table = table.append_column("__part", part)
    keys = [(name, "ascending") for name in ("__part", *order)]
    table = table.take(pc.sort_indices(table, sort_keys=keys)).combine_chunks()
    bounds = np.searchsorted(table["__part"].to_numpy(), np.arange(count + 1))
    if "day" in schema.names:
        table = table.append_column("day", table[_DAY].cast(pa.date32()))
    table = table.select(schema.names).cast(schema)
    return [table.slice(start, stop - start) for start, stop in itertools.pairwise(bounds)]


def _part(origin: pa.ChunkedArray, day: pa.ChunkedArray, count: int) -> Any:
    """A number below ``count`` for each row, the same on every machine: a multiplicative hash of airport and day."""
    airports = pa.array(["EWR", "JFK", "LGA"])
    mixed = day.cast(pa.date32()).cast(pa.int32()).to_numpy().astype(np.uint64) * np.uint64(len(airports))
    mixed += pc.index_in(origin, airports).to_numpy().astype(np.uint64)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    return (((mixed >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)).astype(np.int32)
