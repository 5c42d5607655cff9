"""Origins of rows: how they are counted in splits, carried through states, and told as files and rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.feed.digests import OrderHash
from penstock.engine.feed.sequencer import SequencerState
from penstock.engine.feed.state import read_state, write_state
from penstock.engine.lineage.lineage import lineage, summary, unknown
from penstock.engine.lineage.origins import (
    NOWHERE,
    ONE,
    ORIGIN,
    SPANS,
    TracedSource,
    exact_spans,
    origins_of,
    rows_within,
    spans_of,
    split_numbers,
    united_spans,
)
from penstock.engine.lineage.tracing import FeedGraph
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.sources.parquet import ParquetSource


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("origins") / "rows.parquet"
    pq.write_table(pa.table({"n": range(100), "m": [n % 7 for n in range(100)]}), path, row_group_size=30)
    return path


def read(source: TracedSource, start: int = 0) -> list[tuple[int, int, int]]:
    """Value, number of the split and row of everything in the source from row ``start`` of each split on."""
    found = []
    for split in source.splits():
        for records in split.open(start):
            assert records.schema == source.schema
            column = records.column(ORIGIN)
            origins = column.to_numpy() if column.type == ONE else spans_of(column)[1][:, 0]
            found += zip(
                records.column("n").to_pylist(), split_numbers(origins), rows_within(origins), strict=True
            )  # fmt: skip
    return found


@pytest.mark.parametrize("type", [ONE, SPANS])
@pytest.mark.parametrize("filtered", [False, True])
def test_rows_are_counted_as_the_file_has_them_wherever_reading_begins(file, type, filtered):
    plain = ParquetSource(file, columns=["n"], filter=ps.field("m") > 3 if filtered else None)
    source = TracedSource(plain, tuple(plain.splits()), plain.schema, 5, type)
    numbers = [n for n in range(100) if not filtered or n % 7 > 3]
    assert read(source) == [(n, 5 + n // 30, n % 30) for n in numbers]
    by_split = [[n for n in numbers if n // 30 == split] for split in range(4)]
    assert read(source, 4) == [(n, 5 + n // 30, n % 30) for each in by_split for n in each[4:]]


def test_split_that_is_skipped_has_no_rows(file):
    plain = ParquetSource(file, columns=["n"])
    skipped = frozenset({"rows.parquet#1"})
    source = TracedSource(plain, tuple(plain.splits()), plain.schema, 0, ONE, skipped)
    assert [row[0] for row in read(source)] == [*range(30), *range(60, 100)]
    assert [split.id for split in source.splits()] == [f"rows.parquet#{group}" for group in range(4)]


def test_lineage_names_file_row_group_and_row_whatever_the_splits_are(file):
    by_file, by_group = (ParquetSource(file, split_by=each).splits() for each in ("file", "row group"))
    places = [(0, 0), (0, 29), (0, 30), (0, 99)]
    origins = np.concatenate([origins_of(split, np.array([row])) for split, row in places])
    one = lineage(pa.array(origins), 40 + np.arange(len(origins)), [("rows", split) for split in by_file]).to_pylist()
    assert [(line["row_group"], line["row"]) for line in one] == [(0, 0), (0, 29), (1, 30), (3, 99)]
    assert {line["file"] for line in one} == {str(file)}
    assert [line["position"] for line in one] == [40, 41, 42, 43]
    origins = np.concatenate([origins_of(row // 30, np.array([row % 30])) for _, row in places])
    other = lineage(
        exact_spans(origins), 40 + np.arange(len(origins)), [("rows", split) for split in by_group]
    ).to_pylist()
    assert [{**line, "split": ""} for line in other] == [{**line, "split": ""} for line in one]


def test_summary_tells_runs_of_rows_and_what_is_not_known(file):
    splits = [("rows", split) for split in ParquetSource(file).splits()]
    exact = [[origin, origin] for origin in origins_of(0, np.array([7, 3, 4, 5])).tolist()]
    rough = origins_of(1, np.array([0, 9])).tolist()
    column = pa.array([*exact, rough, [NOWHERE, NOWHERE], None], SPANS)
    table = lineage(column, np.arange(len(column)), splits)
    assert list(summary(table)) == [
        f"rows: {file}, row group 0: 4 rows: 3 to 5, 7",
        f"rows: {file}, row group 1: some of the rows 30 to 39",
        "of 2 rows it is not known where they come from",
    ]
    assert table.column("rows").to_pylist() == [1, 1, 1, 1, 10, None, None]
    assert list(summary(unknown(np.array([3])))) == ["of 1 row it is not known where they come from"]


def test_spans_are_united_split_by_split():
    spans = np.stack([origins_of(split, np.array(rows)) for split, rows in ((1, [3, 4]), (0, [9, 9]), (1, [1, 1]))])
    assert united_spans(spans).tolist() == [
        origins_of(0, np.array([9, 9])).tolist(),
        origins_of(1, np.array([1, 4])).tolist(),
    ]


def graph_of(build) -> FeedGraph:
    flow = ps.Flow("states", lanes=2)
    build(flow.from_tables([pa.table({"n": [1, 2, 3]})], name="rows")).feed(2)
    return FeedGraph(flow, "feed", plan_job(flow, 1))


def test_state_of_a_feed_gets_rows_from_nowhere():
    schema = pa.schema([("n", pa.int64())])
    rows = pa.record_batch({"n": [4, 5]}, schema=schema)
    state = SequencerState(2, 4, False, OrderHash(1, 4, 2), (rows,))
    graph = graph_of(lambda stream: stream.filter("n > 0"))
    table = graph.traced_state("feed", write_state(state, 0, schema))
    (kept,) = read_state(table, schema.append(pa.field(ORIGIN, ONE))).rows
    assert kept.to_pylist() == [{"n": 4, ORIGIN: None}, {"n": 5, ORIGIN: None}]
    assert read_state(table, kept.schema).position == 4


def test_state_that_nobody_can_add_origins_to_is_not_used():
    table = pa.table({"any": [1]})
    graph = graph_of(lambda stream: stream.sort("n").limit(5).aggregate(total=("n", "sum")))
    assert graph.traced_state("sort-1", table) is None
    for operator in ("rows", "limit-1", "hash-aggregate-1", "feed", "gone"):
        assert graph.traced_state(operator, table) is table
    assert not graph.is_traced
