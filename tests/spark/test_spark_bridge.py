"""Spark's side of the flights job, and the bridge: one Spark session, whose results all the tests here look at."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyarrow import feather

from penstock.jobs import flights_local
from penstock.jobs.flights import DAILY_KEY, FEATURES_KEY, build
from penstock.jobs.flights_data import FLIGHTS, PLANES, WEATHER
from penstock.jobs.flights_reference import compare
from penstock.jobs.local_run import run_local
from support import spark_stage

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@dataclass(frozen=True)
class Staged:
    """What support/spark_stage.py left."""

    folder: Path
    facts: dict[str, Any]
    printed: str

    def tables(self, name: str) -> list[pa.Table]:
        return [feather.read_table(path) for path in sorted((self.folder / name).iterdir())]


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    folder = tmp_path_factory.mktemp("staged")
    variables = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"} | {"HOME": str(folder)}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [BENCHMARKS, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, spark_stage.__file__, str(folder)],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Staged(folder, json.loads((folder / "facts.json").read_text()), done.stdout + done.stderr)


def groups(table: pa.Table) -> set[tuple[Any, ...]]:
    """The groups (origin, local day) of a split."""
    local = pc.local_timestamp(table["time_hour"].cast(pa.timestamp("us", "America/New_York")))
    keys = pa.table({"origin": table["origin"], "day": local.cast(pa.date32(), safe=False)})
    return {tuple(row.values()) for row in keys.group_by(["origin", "day"]).aggregate([]).to_pylist()}


def canonical(value: Any) -> Any:
    """A value with NaN replaced, so that equal means equal; maps and structs as dicts."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return {name: canonical(item) for name, item in value.items()}
    return [canonical(item) for item in value] if isinstance(value, list) else value


# ---------------------------------------------------------------------- the bridge


@pytest.mark.parametrize("way", ["types", "types_staged"])
def test_both_ways_hand_every_type_over_exactly(staged: Staged, way: str) -> None:
    rows = [row for table in staged.tables(way) for row in table.to_pylist(maps_as_pydicts="strict")]
    names = [column.split()[0] for column in spark_stage.TYPES.replace("y:", "").replace("q:", "").split(", ")]
    expected = [dict(zip(names, row, strict=True)) for row in spark_stage.typed_rows()]
    for row in expected:
        row["st"] = row["st"] and [{"x": x, "y": y} for x, y in row["st"]]
        row["nested"] = row["nested"] and dict(zip("pq", row["nested"], strict=True))
    assert sorted(map(canonical, rows), key=lambda row: row["id"]) == canonical(expected)


def test_declared_schema_is_the_one_that_the_blocks_are_read_with(staged: Staged) -> None:
    for name in ("types", "types_staged"):
        assert {table.schema.to_string() for table in staged.tables(name)} == {staged.facts["types_schema"]}
    # of a frame that has turned out to have no rows when it was shuffled, Spark may compute no partition at all
    assert {table.schema.to_string() for table in staged.tables("empty")} <= {staged.facts["types_schema"]}
    assert sum(table.num_rows for table in staged.tables("empty")) == 0


def test_partitions_become_splits_one_by_one_when_some_are_empty(staged: Staged) -> None:
    sizes = [table.num_rows for table in staged.tables("types")]
    assert len(sizes) == spark_stage.PARTITIONS
    assert 0 in sizes
    assert sum(sizes) == spark_stage.ROWS
    assert staged.facts["empty"] == [0] * spark_stage.PARTITIONS


def test_blocks_stay_readable_after_spark_has_stopped(staged: Staged) -> None:
    before, after = staged.tables("types"), staged.tables("types_after_stop")
    assert [canonical(table.to_pylist()) for table in after] == [canonical(table.to_pylist()) for table in before]


def test_frame_that_the_jvm_does_not_write_is_leased_by_python_workers(staged: Staged) -> None:
    assert (staged.facts["pauses"], staged.facts["numbers"]) == (["Table"] * 3, ["Buffer"] * 3)
    pauses = pa.concat_tables(staged.tables("pauses"))
    assert pauses["id"].to_pylist() == [*range(6)] == pa.concat_tables(staged.tables("numbers"))["id"].to_pylist()
    assert pauses["pause"].to_pylist() == [timedelta(days=day) for day in range(6)]


def test_fingerprint_is_equal_for_equal_data_and_tells_where_data_differ(staged: Staged) -> None:
    first, again, other = (staged.facts[f"fingerprint{name}"] for name in ("", "_again", "_other"))
    assert first == again
    assert first != other
    pairs = zip(staged.facts["partitions"], staged.facts["partitions_other"], strict=True)
    (changed,) = [position for position, pair in enumerate(pairs) if pair[0] != pair[1]]
    assert 3 in staged.tables("types")[changed]["id"].to_pylist()


def test_frame_without_columns_is_staged_and_keeps_its_rows(staged: Staged) -> None:
    assert staged.facts["no_columns"] == ["StagedSource", 10]


def test_session_inside_a_session_is_the_same_one_and_does_not_end_it(staged: Staged) -> None:
    assert staged.facts["same_session"]


def test_source_describes_its_columns_and_no_place(staged: Staged) -> None:
    assert staged.facts["kind"] == "spark"
    assert staged.facts["describe"].startswith("frame with id, b, sh")


def test_session_that_cannot_fit_is_refused_with_both_sizes(staged: Staged) -> None:
    assert "Spark asks for 4096 CPUs" in staged.facts["no_room"]
    assert "remedy: ask for fewer or smaller executors" in staged.facts["no_room"]


def test_first_job_that_does_not_end_in_time_is_refused_with_what_the_cluster_lacks(staged: Staged) -> None:
    assert staged.facts["no_executor"].startswith("SetupError: Spark's first job did not finish within 0 s")
    assert "the cluster is small" in staged.facts["no_executor"]
    assert "`ray status`" in staged.facts["no_executor"]


def test_column_without_an_arrow_type_is_refused_before_anything_runs(staged: Staged) -> None:
    assert staged.facts["no_arrow_type"].startswith("ConfigurationError: column 'months' of the DataFrame has")
    assert "CAST(column AS INT)" in staged.facts["no_arrow_type"]


def test_frame_of_a_stopped_session_is_refused(staged: Staged) -> None:
    assert "session of this DataFrame has ended" in staged.facts["after_stop"]


def test_timestamps_of_a_session_in_another_zone_arrive_as_the_same_instants(staged: Staged) -> None:
    assert staged.facts["other_zone"] == ["timestamp[us, tz=UTC]", "2024-07-01T04:00:00+00:00"]


def test_session_is_quiet(staged: Staged) -> None:
    assert staged.printed == "staged\n"


# ---------------------------------------------------------------------- the flights job


def test_etl_puts_equal_groups_into_partitions_of_equal_position(staged: Staged) -> None:
    flights = [groups(table) for table in staged.tables("flights")]
    weather = [groups(table) for table in staged.tables("weather")]
    assert len(flights) == len(weather) == 128
    placed = {group: position for position, split in enumerate(flights) for group in split}
    assert len(placed) == sum(map(len, flights)) == 1_095
    known = {group: position for position, split in enumerate(weather) for group in split}
    assert sum(map(len, weather)) == len(known)
    assert {group: known.get(group, position) for group, position in placed.items()} == placed
    assert len(placed.keys() & known.keys()) > 1_000


def test_etl_sorts_each_partition(staged: Staged) -> None:
    for name, key in (("flights", ["origin", "time_hour", "flight_id"]), ("weather", ["origin", "time_hour"])):
        for table in staged.tables(name):
            order = pc.sort_indices(table, sort_keys=[(column, "ascending") for column in key])
            assert order.to_pylist() == list(range(table.num_rows))


def test_etl_gives_the_same_rows_as_the_pyarrow_version(staged: Staged) -> None:
    local = flights_local.tables()
    for name, tables, schema, key in (
        ("flights", local[0], FLIGHTS, ["flight_id"]),
        ("weather", local[1], WEATHER, ["origin", "time_hour"]),
        ("planes", [local[2]], PLANES, ["tailnum"]),
    ):
        spark = pa.concat_tables(staged.tables(name))
        assert spark.schema.equals(schema)
        assert compare(spread(spark), spread(pa.concat_tables(tables)), key).is_equal, name


def spread(table: pa.Table) -> pa.Table:
    """The table with its list column as two columns."""
    if "delays" not in table.schema.names:
        return table
    delays = table["delays"].combine_chunks()
    for position, name in enumerate(("departure_delay", "arrival_delay")):
        table = table.append_column(name, pc.list_element(delays, position))
    return table.drop_columns(["delays"])


def test_reference_by_spark_sql_equals_the_flow_over_sparks_blocks(staged: Staged, tmp_path: Path) -> None:
    flow = build(staged.tables("flights"), staged.tables("weather"), staged.tables("planes")[0], tmp_path)
    with run_local(flow, parallelism=2) as job:
        job.wait()
    for name, key in (("features", FEATURES_KEY), ("daily", DAILY_KEY)):
        found = compare(ds.dataset(tmp_path / name).to_table(), staged.tables(name)[0], key)
        assert found.is_equal, found.describe()
        assert found.rows == {"features": 655_867, "daily": 1_095}[name]


def test_benchmark_of_the_handoff_reads_the_same_rows_in_all_ways_and_leaves_figures(staged: Staged) -> None:
    figures = [(row["work"], row["peer"]) for row in staged.facts["measured"]]
    assert len(figures) == len(set(figures)) == 8
    assert ("lease: memory", "ray.data.from_spark") in figures
