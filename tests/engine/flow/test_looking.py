"""Streams that are looked at: the rows of a job in its order, no more read than is asked for, nothing left behind."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.core.errors import ConfigurationError, FlowError, TaskLostError, UserCodeError
from penstock.engine.flow.row_text import table_text
from support.guides import blocks

SPLITS = [pa.table({"k": [f"k{(n * 7) % 5}"] * 3, "v": [n, n + 1, n + 2]}) for n in range(0, 57, 3)]


def stream(lanes: int = 4, splits: Sequence[pa.Table] = SPLITS) -> ps.Stream:
    return ps.Flow("looking", lanes=lanes).from_tables(list(splits), name="rows")


def by_job(given: ps.Stream) -> pa.Table:
    given.collect("found")
    with ps.run_local(given.flow) as job:
        return job.wait(30).result("found")


def two_subtasks(flow: ps.Flow) -> ps.Job:
    return ps.run_local(flow, parallelism=2)


def doubled(records: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([records, records])


def joined(given: ps.Stream) -> ps.Stream:
    other = given.flow.from_tables(SPLITS[:4], name="others").project("k", w="v")
    return given.hash_join(other, ["k"], exchange="key")


SHAPES: dict[str, Callable[[ps.Stream], ps.Stream]] = {
    "plain": lambda given: given,
    "filter": lambda given: given.filter("v % 2 = 0"),
    "function": lambda given: given.map_batches(doubled, given.schema),
    "gather": lambda given: given.gather(),
    "keys": lambda given: given.partition_by("k"),
    "aggregate": lambda given: given.aggregate(["k"], exchange="key", n="count"),
    "aggregate in one place": lambda given: given.aggregate(["k"], n="count"),
    "sort": lambda given: given.sort("k", "v"),
    "join": joined,
    "union": lambda given: given.union(given.filter("v > 20")),
    "limit": lambda given: given.limit(7),
    "sample": lambda given: given.sample(0.6, seed=1),
    "sample behind keys": lambda given: given.partition_by("k").sample(0.6, seed=1),
    "shuffle": lambda given: given.shuffle(True, seed=3),
    "distinct": lambda given: given.distinct("k"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_and_their_order_are_those_of_a_job(shape: str) -> None:
    found = SHAPES[shape](stream())
    rows = found.to_arrow()
    assert found.take(3) == rows.slice(0, 3).to_pylist()
    assert found.count() == rows.num_rows > 4
    assert rows.to_pylist() == by_job(found).to_pylist()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_job_that_is_run_to_look_gives_the_same_rows(shape: str) -> None:
    found = SHAPES[shape](stream())
    rows = found.to_arrow()
    assert found.to_arrow(run=two_subtasks).equals(rows)
    assert found.take(3, run=two_subtasks) == rows.slice(0, 3).to_pylist()
    assert found.count(run=two_subtasks) == rows.num_rows
    sizes = [each.num_rows for each in found.iter_batches(4, run=two_subtasks)]
    assert sizes == [4] * (rows.num_rows // 4) + [rows.num_rows % 4] * (rows.num_rows % 4 > 0)


def test_a_job_that_looks_is_not_the_flows_and_has_ended_with_the_call() -> None:
    begun: list[ps.Job] = []

    def run(flow: ps.Flow) -> ps.Job:
        begun.append(ps.run_local(flow))
        return begun[-1]

    found = stream()
    found.collect("output")
    batches = found.iter_batches(10, batch_format="numpy", run=run)
    assert not begun, "nothing runs before it is asked for"
    assert next(batches)["v"].tolist() == list(range(10))
    batches.close()  # type: ignore[attr-defined]
    assert found.head(0, run=run).equals(found.schema.empty_table())
    [job] = begun
    assert job.name.startswith("looking-look-")
    with pytest.raises(TaskLostError, match="was shut down"):
        job.checkpoint()
    assert [node.id for node in found.flow.nodes] == ["rows", "output"]


def test_sources_are_not_paced_and_errors_are_those_of_the_job() -> None:
    paced = ps.Flow("paced").from_tables(SPLITS, rate=0.01)
    assert paced.count(run=ps.run_local) == 57

    def fail(records: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("too bad")

    with pytest.raises(UserCodeError, match=r"bad: .*too bad"):
        stream().map_batches(fail, SPLITS[0].schema, name="bad").take(1, run=ps.run_local)
    fed = ps.Flow("fed").from_split_sets(SPLITS[0].schema, name="in")
    with pytest.raises(FlowError, match="its rows are fed"):
        fed.take(1, run=ps.run_local)


@pytest.mark.parametrize("exchange", ["gather", "key"])
def test_files_that_are_joined_come_in_the_order_of_a_job(exchange: str, tmp_path: Path) -> None:
    """A join by key gives the rows of one part after the other; readers wait for the keys of its other side."""
    for number in range(3):
        rows = pa.table({"k": [n % 100 for n in range(2000)], "n": range(number * 2000, number * 2000 + 2000)})
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=500)
    pq.write_table(pa.table({"k": [3, 5, 7, 11], "s": ["a", "b", "c", "d"]}), tmp_path / "few")
    flow = ps.Flow("joined")
    few = flow.read_parquet(tmp_path / "few").filter("k > 3")
    found = flow.read_parquet([tmp_path / f"{number}.parquet" for number in range(3)])
    found = found.hash_join(few, ["k"], exchange=exchange)
    rows = found.to_arrow().to_pylist()
    assert len(rows) == 180
    assert found.take(2) == rows[:2]
    assert rows == by_job(found).to_pylist()


def test_files_come_in_the_order_of_a_job(tmp_path: Path) -> None:
    for number in range(11):
        rows = pa.table({"n": range(number * 1000, number * 1000 + 1000)})
        pq.write_table(rows, tmp_path / f"{number:02}.parquet", row_group_size=300)
    found = ps.Flow("files", lanes=3, round_rows=400).read_parquet(tmp_path)
    assert found.to_arrow().to_pylist() == by_job(found).to_pylist()


def test_stream_without_rows_has_a_schema_and_a_count() -> None:
    found = stream().filter("v < 0")
    assert (found.take(), found.count()) == ([], 0)
    assert found.to_arrow().equals(found.schema.empty_table())
    assert found.head(0).schema == found.schema


@dataclass(frozen=True)
class Endless:
    """A split that never ends, and says how much of it was read."""

    id: str
    read: list[int] = field(hash=False)
    rows: None = None

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                self.read.append(start)
                yield pa.record_batch({"n": range(start, start + 1000)})
                start += 1000
        finally:
            self.read.append(-1)


@dataclass(frozen=True)
class EndlessSource:
    """Of one such split."""

    read: list[int] = field(hash=False)
    schema: pa.Schema = field(default=pa.schema({"n": pa.int64()}), hash=False)
    kind: str = "endless"

    def describe(self) -> str:
        return "without an end"

    def splits(self) -> Sequence[Endless]:
        return [Endless("endless", self.read)]


def test_first_rows_need_no_more_than_a_little_of_a_source_and_leave_nothing() -> None:
    read: list[int] = []
    before = set(threading.enumerate())
    found = ps.Flow("endless").from_source(EndlessSource(read)).filter("n % 2 = 1")
    assert [each["n"] for each in found.take(3)] == [1, 3, 5]
    assert len(read) < 1000
    assert read[-1] == -1, "the split was not closed"
    assert set(threading.enumerate()) <= before


def test_batches_have_the_size_asked_for_and_whoever_stops_leaves_nothing() -> None:
    assert [each.num_rows for each in stream().iter_batches(25)] == [25, 25, 7]
    assert pa.Table.from_batches(stream().iter_batches(25)).equals(stream().to_arrow())
    assert sum(each.num_rows for each in stream().iter_batches()) == 57
    read: list[int] = []
    batches = ps.Flow("endless").from_source(EndlessSource(read)).iter_batches(7, batch_format="numpy")
    assert [int(next(batches)["n"][0]) for _ in range(3)] == [0, 7, 14]
    batches.close()  # type: ignore[attr-defined]
    assert read[-1] == -1


def test_rows_as_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(stream().to_pandas()["v"]) == stream().to_arrow()["v"].to_pylist()
    assert [len(each) for each in stream().iter_batches(50, batch_format="pandas")] == [50, 7]
    polars = ModuleType("polars")
    polars.from_arrow = lambda table: ("frame", table.num_rows)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "polars", polars)
    assert stream().to_polars() == ("frame", 57)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_library_that_is_missing_is_named_before_anything_runs(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    found = stream().map_batches(lambda records: 1 / 0, SPLITS[0].schema)
    with pytest.raises(ConfigurationError, match=rf"{library} is not installed(.|\n)*pip install {library}"):
        getattr(found, f"to_{library}")()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigurationError, match="pandas is not installed"):
        found.iter_batches(batch_format="pandas")


def test_repr_tells_columns_and_plan_of_the_stream_alone() -> None:
    flow = ps.Flow("shown")
    rows = flow.from_tables(SPLITS, name="rows")
    flow.from_tables(SPLITS, name="others")
    assert repr(rows.filter("v > 1", name="some").limit(3)).splitlines() == [
        "Stream 'limit-1' of flow 'shown'",
        "  columns: k: string, v: int64",
        *(f"  {line}" for line in flow.describe().splitlines() if not line.startswith("others")),
    ]


def test_flow_stays_as_it_is_and_its_sinks_do_not_run(tmp_path: Path) -> None:
    found = stream()
    found.write_parquet(tmp_path / "out")
    found.collect("output")
    before = found.flow.describe()
    assert found.count() == 57
    assert len(found.filter("v > 3").take(2)) == 2
    assert not (tmp_path / "out").exists()
    assert found.flow.describe().startswith(before)
    assert "count" not in found.flow.describe()


def test_error_of_a_function_is_that_of_a_job() -> None:
    def fail(records: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("too bad")

    with pytest.raises(UserCodeError, match="too bad"):
        stream().map_batches(fail, SPLITS[0].schema, name="bad").take(1)


def test_what_cannot_be_looked_at_is_refused_but_does_not_matter_beside_the_stream() -> None:
    flow = ps.Flow("fed")
    fed = flow.from_split_sets(SPLITS[0].schema, name="in")
    with pytest.raises(FlowError, match=r"in: its rows are fed(.|\n)*PlanTask"):
        fed.filter("v > 1").take(1)
    assert flow.from_tables(SPLITS).count() == 57


def test_show_prints_names_types_and_rows_cut(capsys: pytest.CaptureFixture[str]) -> None:
    rows = pa.table({"a": [1, None], "text": ["two\nlines", "x" * 100]})
    ps.Flow("shown").from_tables(rows).show()
    assert capsys.readouterr().out.splitlines() == [
        "a      text",
        "int64  string",
        "-----  ----------------------------------------",
        "1      two lines",
        f"null   {'x' * 39}…",
        "(2 rows)",
    ]
    assert table_text(rows.slice(0, 1)).endswith("(1 row)")


def test_page_about_streams_runs_as_it_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flights.csv").write_text(
        "origin,carrier,flight,dep_delay,distance\nJFK,AA,1,120,2000\nJFK,UA,2,90,500\nLGA,AA,3,NA,700\nLGA,AA,4,5,700\n"
    )
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(Path(__file__).parents[3] / "docs" / "streams.md"):
        exec(compile(block, "streams.md", "exec", dont_inherit=True), names)
    printed = capsys.readouterr().out
    assert "JFK     1.75    120.0    2\n(1 row)" in printed
    assert "2 [{'origin': 'JFK', 'hours': 2.0, 'size': 'long', 'key': 'AA-1'}]" in printed
