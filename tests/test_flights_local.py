"""The flights job's data as pyarrow prepares them, the facts that they rest on, and the job over them."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from penstock.jobs import flights_local
from penstock.jobs.flights import DAILY_KEY, FEATURES_KEY, build
from penstock.jobs.flights_data import FLIGHTS, PLANES, SHIFT_DAYS, WEATHER, folder, unpack
from penstock.jobs.flights_reference import compare
from penstock.jobs.local_run import run_local

SPLITS = 16


@pytest.fixture(scope="module")
def prepared() -> tuple[list[pa.Table], list[pa.Table], pa.Table]:
    return flights_local.tables(1, SPLITS)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    """The raw files in DuckDB, whose time zone is UTC."""
    workspace = tmp_path_factory.mktemp("raw")
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name, path in (("flights", unpack(workspace)), ("weather", folder() / "weather.csv")):
        connection.execute(f"CREATE TABLE {name} AS FROM read_csv('{path}', nullstr = 'NA')")
    return connection


def one(database: duckdb.DuckDBPyConnection, query: str) -> tuple[object, ...]:
    """The only row of a query's answer."""
    (row,) = database.execute(query).fetchall()
    return tuple(row)


def groups(table: pa.Table) -> set[tuple[str, object]]:
    """The groups (origin, local day) of a split."""
    day = pc.local_timestamp(table["time_hour"].cast(pa.timestamp("us", "America/New_York"))).cast(pa.timestamp("s"))
    days = pc.floor_temporal(day, unit="day").to_pylist()
    return set(zip(table["origin"].to_pylist(), days, strict=True))


# ---------------------------------------------------------------------- facts about the raw files


def test_raw_flights_are_unique_by_origin_day_carrier_and_number(database: duckdb.DuckDBPyConnection) -> None:
    query = "SELECT count(*), count(DISTINCT (origin, year, month, day, carrier, flight)) FROM flights"
    assert one(database, query) == (336_776, 336_776)


def test_raw_weather_is_unique_by_origin_and_utc_hour_but_not_by_local_hour(
    database: duckdb.DuckDBPyConnection,
) -> None:
    query = """SELECT count(*), count(DISTINCT (origin, time_hour)), count(DISTINCT (origin, year, month, day, hour))
               FROM weather"""
    assert one(database, query) == (26_115, 26_115, 26_112)  # the hour that summer time ends, thrice


@pytest.mark.parametrize("table", ["flights", "weather"])
def test_raw_hours_fall_on_the_local_day_that_the_row_names(database: duckdb.DuckDBPyConnection, table: str) -> None:
    local = "timezone('America/New_York', time_hour)"
    query = f"""SELECT count(*) FROM {table}
                WHERE {local}::DATE <> make_date(year, month, day) OR hour({local}) <> hour"""
    assert one(database, query) == (0,)


# ---------------------------------------------------------------------- the prepared tables


def test_prepared_tables_have_the_declared_schemas(prepared: tuple[list[pa.Table], list[pa.Table], pa.Table]) -> None:
    flights, weather, planes = prepared
    assert {len(flights), len(weather)} == {SPLITS}
    assert all(table.schema.equals(FLIGHTS) for table in flights)
    assert all(table.schema.equals(WEATHER) for table in weather)
    assert planes.schema.equals(PLANES)
    assert (sum(table.num_rows for table in flights), sum(table.num_rows for table in weather)) == (336_776, 26_115)
    assert planes.num_rows == pc.count_distinct(planes["tailnum"]).as_py() == 3_322


def test_prepared_groups_stand_in_one_split_at_the_same_position_on_both_sides(
    prepared: tuple[list[pa.Table], list[pa.Table], pa.Table],
) -> None:
    flights, weather, _ = ([groups(table) for table in side] if isinstance(side, list) else side for side in prepared)
    assert sum(map(len, flights)) == len(set.union(*flights)) == 1_095
    assert sum(map(len, weather)) == len(set.union(*weather))
    everywhere = {group: position for position, split in enumerate(weather) for group in split}
    placed = {group: position for position, split in enumerate(flights) for group in split}
    assert {group: everywhere[group] for group in placed if group in everywhere} == {
        group: position for group, position in placed.items() if group in everywhere
    }


def test_prepared_splits_are_sorted_and_about_equally_large(
    prepared: tuple[list[pa.Table], list[pa.Table], pa.Table],
) -> None:
    flights, weather, _ = prepared
    for side, key in ((flights, ["origin", "time_hour", "flight_id"]), (weather, ["origin", "time_hour"])):
        for table in side:
            order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in key])
            assert order.equals(pa.array(np.arange(table.num_rows), pa.uint64()))
    sizes = [table.num_rows for table in flights]
    assert max(sizes) < 1.5 * min(sizes)


def test_prepared_departure_shows_the_local_clock_of_the_raw_file_on_every_flight(
    prepared: tuple[list[pa.Table], list[pa.Table], pa.Table], database: duckdb.DuckDBPyConnection
) -> None:
    """The raw file has the clock (dep_time) and the delay; we computed UTC from schedule and delay.

    Read back in New York's time, that must be the clock, through both changes of summer time and past midnight.
    """
    flights = pa.concat_tables(prepared[0])
    database.register("prepared", flights.select(["flight_id", "departure", "scheduled_departure", "time_hour"]))
    query = """
        WITH local AS (
          SELECT *, timezone('America/New_York', departure) AS left_at FROM prepared JOIN flights
          ON flight_id = format('{}-{:02d}-{:02d}-{}{}-{}', year, month, day, carrier, flight, origin))
        SELECT count(*), count(departure), count(dep_time),
               count(*) FILTER (WHERE hour(left_at) * 100 + minute(left_at) <> dep_time % 2400),
               count(*) FILTER (WHERE scheduled_departure <> local.time_hour + to_minutes(minute))
        FROM local"""
    assert one(database, query) == (336_776, 328_521, 328_521, 0, 0)


def test_prepared_delays_hold_departure_and_arrival_with_nulls_for_what_is_unknown(
    prepared: tuple[list[pa.Table], list[pa.Table], pa.Table], database: duckdb.DuckDBPyConnection
) -> None:
    delays = pa.concat_tables(prepared[0])["delays"].combine_chunks()
    assert set(pc.list_value_length(delays).to_pylist()) == {2}
    sums = [pc.sum(pc.list_element(delays, position)).as_py() for position in (0, 1)]
    unknown = [pc.list_element(delays, position).null_count for position in (0, 1)]
    query = (
        "SELECT sum(dep_delay), sum(arr_delay), count(*) - count(dep_delay), count(*) - count(arr_delay) FROM flights"
    )
    assert one(database, query) == (*sums, *unknown)


def test_broken_wind_reading_is_cleaned_and_no_other(
    prepared: tuple[list[pa.Table], list[pa.Table], pa.Table], database: duckdb.DuckDBPyConnection
) -> None:
    wind = pa.concat_tables(prepared[1])["wind_speed"]
    query = "SELECT count(wind_speed), count(*) FILTER (WHERE wind_speed > 200) FROM weather"
    assert one(database, query) == (len(wind) - wind.null_count + 1, 1)


def test_copies_are_shifted_by_four_years_and_stay_unique() -> None:
    flights, weather, _ = flights_local.tables(2, 4)
    rows = pa.concat_tables(flights)
    assert rows.num_rows == pc.count_distinct(rows["flight_id"]).as_py() == 2 * 336_776
    second = rows.filter(pc.field("day") >= pa.scalar(SHIFT_DAYS + 15_706, pa.int32()).cast(pa.date32()))
    assert second.num_rows == 336_776
    assert set(pc.year(second["day"]).unique().to_pylist()) == {2017}
    hours = pa.concat_tables(weather)
    assert hours.group_by(["origin", "time_hour"]).aggregate([]).num_rows == 2 * 26_115


# ---------------------------------------------------------------------- comparing


TABLE = pa.table({"k": [1, 2, 3], "x": [0.1, None, float("nan")], "s": ["a", "b", None]})


def test_compare_accepts_equal_rows_in_any_order() -> None:
    found = compare(TABLE.take([2, 0, 1]).select(["s", "x", "k"]), TABLE, ["k"])
    assert found.is_equal
    assert found.describe() == "3 rows, equal to the reference"


@pytest.mark.parametrize(
    ("actual", "counts", "text"),
    [
        (TABLE.slice(1), (1, 0, 0, 0), "missing {'k': 1}"),
        (pa.concat_tables([TABLE, TABLE.slice(1, 1)]), (0, 0, 1, 0), "repeated {'k': 2}"),
        (TABLE.set_column(0, "k", [[1, 2, 4]]), (1, 1, 0, 0), "missing {'k': 3}"),
        (TABLE.set_column(1, "x", [[0.1, 7.0, float("nan")]]), (0, 0, 0, 1), "at {'k': 2}: x is 7.0, not None"),
        (TABLE.set_column(1, "x", [[0.1, None, 1.0]]), (0, 0, 0, 1), "at {'k': 3}: x is 1.0, not nan"),
        (TABLE.set_column(1, "x", [[np.nextafter(0.1, 1), None, float("nan")]]), (0, 0, 0, 1), "at {'k': 1}: x is 0.1"),
        (TABLE.slice(0, 0), (3, 0, 0, 0), "missing {'k': 1}"),
        (TABLE.drop_columns(["s"]), (0, 0, 0, 0), "the columns are ['k', 'x']"),
        (TABLE.set_column(2, "s", [[b"\xff", b"b", None]]), (0, 0, 0, 0), "a column has another type"),
    ],
)
def test_compare_names_the_first_difference(actual: pa.Table, counts: tuple[int, int, int, int], text: str) -> None:
    found = compare(actual, TABLE, ["k"])
    assert not found.is_equal
    assert (found.missing, found.extra, found.repeated, found.different) == counts
    assert found.first_difference.startswith(text)


def test_compare_accepts_two_empty_tables() -> None:
    assert compare(TABLE.slice(0, 0), TABLE.slice(0, 0), ["k"]).is_equal


# ---------------------------------------------------------------------- the flow


def test_flow_declares_outputs_whose_keys_exist(
    prepared: tuple[list[pa.Table], list[pa.Table], pa.Table], tmp_path: Path
) -> None:
    flow = build(*prepared, tmp_path)
    for sink, key in (("features", FEATURES_KEY), ("daily", DAILY_KEY)):
        node = flow.node(flow.node(sink).inputs[0])
        assert node.schema is not None
        assert set(key) <= set(node.schema.names)
    assert build(*prepared, tmp_path / "elsewhere").fingerprint() == flow.fingerprint()


DAILY = """
    WITH known AS (
      SELECT f.*, make_date(f.year, f.month, f.day) AS local_day, w.temp, unnest([dep_delay, arr_delay]) AS delay
      FROM flights f LEFT JOIN weather w USING (origin, time_hour) WHERE dep_delay IS NOT NULL)
    SELECT origin, local_day AS day, count(*) AS phases, sum((delay > 15)::BIGINT)::BIGINT AS late,
           sum(delay)::BIGINT AS total_delay, max(delay) AS worst, min(delay) AS best, max(distance) AS longest,
           count(temp) AS with_weather
    FROM known WHERE delay IS NOT NULL GROUP BY ALL"""


def test_flow_run_in_this_process_equals_the_same_query_in_duckdb(
    prepared: tuple[list[pa.Table], list[pa.Table], pa.Table], database: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    with run_local(build(*prepared, tmp_path), parallelism=2) as job:
        job.wait()
    expected = database.sql(DAILY).to_arrow_table()
    daily = ds.dataset(tmp_path / "daily").to_table()
    assert compare(daily, expected, DAILY_KEY).describe() == "1,095 rows, equal to the reference"
    features = ds.dataset(tmp_path / "features").to_table()
    assert features.num_rows == pc.sum(expected["phases"]).as_py() == 655_867
    assert features.group_by(list(FEATURES_KEY)).aggregate([]).num_rows == features.num_rows
