"""Shuffle, pack and mix in whole flows: one sequence at any parallelism and number of threads."""

from __future__ import annotations

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.planner.pipelines import ROUND_QUOTA, plan_job

SPLITS = [pa.table({"x": pa.array(range(start, start + 37), pa.int64())}) for start in range(0, 370, 37)]


def rows(build, parallelism: int) -> list[dict[str, object]]:
    flow = ps.Flow("sequences", lanes=4)
    build(flow).collect("all")
    return ps.run_local(flow, parallelism=parallelism).result("all").to_pylist()


def shuffled(flow: ps.Flow) -> ps.Stream:
    return flow.from_tables(SPLITS).filter("x % 5 > 0").shuffle(50, seed=1)


def packed(flow: ps.Flow) -> ps.Stream:
    lists = pa.list_(pa.int64())
    return (
        flow.from_tables(SPLITS)
        .map_batches(_lists, pa.schema([("tokens", lists)]))
        .shuffle(8, seed=2)
        .pack(16, documents="documents")
        .shuffle(5)
    )


def _lists(records: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"tokens": [[x] * (x % 7) for x in records.column("x").to_pylist()]})


def mixed(flow: ps.Flow) -> ps.Stream:
    one, two = flow.from_tables(SPLITS, name="one"), flow.from_tables(SPLITS[:3], name="two").filter("x > 9")
    return flow.mix({one: 0.8, two.shuffle(10): 0.2}, seed=4).filter("x % 3 = 0").rebalance()


@pytest.mark.parametrize("build", [shuffled, packed, mixed])
def test_sequence_is_the_same_at_any_parallelism(build) -> None:
    first = rows(lambda flow: build(flow).gather(), 1)
    assert len(first) > 40
    for parallelism in (2, 3, 4):
        assert rows(lambda flow: build(flow).gather(), parallelism) == first


def test_every_row_is_there_once_and_epochs_differ() -> None:
    epochs = [
        [row["x"] for row in rows(lambda flow, n=n: flow.from_tables(SPLITS).shuffle(100, epoch=n), 2)]
        for n in range(2)
    ]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(370))


def test_what_is_gathered_is_not_gathered_again() -> None:
    flow = ps.Flow("once")
    flow.from_tables(SPLITS).shuffle(5).shuffle(7).collect("all")
    assert [node.config.kind for node in flow.nodes].count("gather") == 1


def test_sources_of_a_mixture_are_read_in_the_ratio_of_its_weights() -> None:
    flow = ps.Flow("ratio")
    one, two, three = (flow.from_tables(SPLITS, name=name) for name in ("one", "two", "three"))
    flow.mix({one: 4, two.filter("x > 1").union(three): 1}).collect("all")
    quotas = {id: source.quota for id, source in plan_job(flow).sources.items()}
    assert quotas == {"one": ROUND_QUOTA, "two": ROUND_QUOTA // 4, "three": ROUND_QUOTA // 4}
