"""Where rows come from, operator by operator: told by the replay, compared with what the rows themselves say."""

from __future__ import annotations

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.flow import index
from penstock.engine.lineage.lineage import summary
from support.feeds import ROWS, SPLITS, plain, read_group, tables

LISTS = pa.list_(pa.int64())


def rows_of(flow, name="rows"):
    return flow.from_tables(tables(), name=name)


def listed(flow):
    lists = pa.array([list(range(n % 4)) for n in range(ROWS)], LISTS)
    return flow.from_tables([table.append_column("each", lists) for table in tables()], name="rows")


def other(flow):
    return rows_of(flow, "other").filter("n % 25 = 0").project("key", m="n")


def united(flow):
    unnested = listed(flow).unnest("each", ordinality="at").project("n", "key")
    return unnested.union(rows_of(flow, "more").filter("n % 9 = 0"))


def mixed(flow):
    return flow.mix({listed(flow).unnest("each").project("n", "key"): 3, rows_of(flow, "more"): 1}, seed=5)


def looked_up(flow):
    table = pa.table({"key": list(range(SPLITS)), "name": [f"split {n}" for n in range(SPLITS)]})
    return rows_of(flow).lookup_join(index.memory(table, key=["key"]), "key").filter("n % 3 = 0")


def marked(flow):
    return rows_of(flow).with_columns(m="n % 7").mark_distinct("m", marker="is_first").filter("n < 300")


def half_known(flow):
    sums = rows_of(flow, "more").aggregate(["key"], n=("n", "sum")).project("n", "key")
    return rows_of(flow).filter("n < 10").gather().union(sums)


def right_sided(flow):
    return other(flow).project("key").hash_join(rows_of(flow).filter("n % 5 = 0"), on=["key"], how="right semi")


SHAPES = {
    "columns": lambda flow: plain(flow).with_columns(twice="n * 2").project("n", "twice"),
    "lists": lambda flow: listed(flow).unnest("each", ordinality="at").filter("each <> 2"),
    "parts": lambda flow: plain(flow).partition_by("key").rebalance(),
    "shuffled": lambda flow: plain(flow).shuffle(100, seed=4).filter("n % 5 <> 0").shuffle(30),
    "sorted": lambda flow: plain(flow).sort("key", ps.SortKey("n", descending=True)),
    "first": lambda flow: plain(flow).top_n(130, ps.SortKey("n", descending=True)),
    "limited": lambda flow: rows_of(flow).limit(150, offset=70),
    "united": united,
    "mixed": mixed,
    "distinct": lambda flow: rows_of(flow).with_columns(m="n % 177").distinct("m"),
    "whole rows": lambda flow: plain(flow).distinct(exchange="key"),
    "marked": marked,
    "window": lambda flow: plain(flow).window(["key"], ["n"], place="row_number", exchange="key"),
    "looked up": looked_up,
    "joined": lambda flow: rows_of(flow).hash_join(other(flow), on=["key"]).filter("m % 50 = 0"),
    "joined by parts": lambda flow: rows_of(flow).hash_join(other(flow), on=["key"], how="left", exchange="key"),
    "broadcast": lambda flow: rows_of(flow).rebalance().hash_join(other(flow).broadcast(), on=["key"]),
    "semi": lambda flow: rows_of(flow).hash_join(other(flow).filter("m < 300"), on=["key"], how="left semi"),
    "right semi": right_sided,
    "merged": lambda flow: rows_of(flow).merge_join(other(flow), on=["key"]).filter("n % 3 = 0"),
    "half known": half_known,
}


def flow_of(shape, size=40) -> ps.Flow:
    flow = ps.Flow("traced", lanes=4)
    SHAPES[shape](flow).feed(size)
    return flow


@pytest.mark.parametrize("shape", SHAPES)
def test_every_row_is_traced_to_the_one_that_it_was_read_as(shape):
    with ps.run_local(flow_of(shape)) as job:
        batches = read_group(job.feed(), 1)
    for step, parallelism in ((0, 1), (min(1, len(batches) - 1), 3), (len(batches) - 1, 2)):
        found = ps.replay(flow_of(shape), step=step, parallelism=parallelism)
        assert found.rows.to_pylist() == batches[step]
        lineage = found.lineage.to_pylist()
        assert [line["position"] for line in lineage] == list(range(step * 40, step * 40 + len(batches[step])))
        for row, line in zip(batches[step], lineage, strict=True):
            if shape == "half known" and line["source"] is None:
                assert row["n"] > 10  # a sum
                continue
            assert (line["split"], line["row"], line["rows"]) == (f"memory/{row['n'] // ROWS}", row["n"] % ROWS, 1)
            assert line["source"] in ("rows", "more")
            assert line["file"] is None
    if shape == "half known":
        assert "hash-aggregate-1 makes other rows of those that come to it" in found.untraced
        assert found.lineage.column("source").null_count == SPLITS
    else:
        assert found.untraced == ()


def test_what_an_aggregation_makes_is_from_nowhere_and_is_replayed_all_the_same():
    flow = ps.Flow("sums", lanes=4)
    rows_of(flow).aggregate(["key"], total=("n", "sum")).feed(5)
    with ps.run_local(flow) as job:
        batches = read_group(job.feed(), 1)
    found = ps.replay(flow, step=1)
    assert found.rows.to_pylist() == batches[1]
    assert found.lineage.column("source").null_count == 5
    assert "of 5 rows it is not known where they come from" in str(found)
    assert "makes other rows of those that come to it" in str(found)


def evens_first(batch):
    """As many rows as it gets, others, and in another order."""
    numbers = batch.column("n").to_pylist()
    numbers.sort(key=lambda n: n % 2)
    return pa.record_batch({"m": pa.array(numbers, pa.int64())})


def test_row_that_a_function_made_is_traced_to_what_the_function_was_given():
    flow = ps.Flow("mapped", lanes=4)
    rows_of(flow).filter("n % 10 > 1").map_batches(evens_first, pa.schema([("m", pa.int64())])).shuffle(50).feed(20)
    found = ps.replay(flow, step=2)
    for row, line in zip(found.rows.to_pylist(), found.lineage.to_pylist(), strict=True):
        assert (line["split"], line["row"], line["rows"]) == (f"memory/{row['m'] // ROWS}", 2, ROWS - 2)
    assert any("some of the rows 2 to 99" in line for line in summary(found.lineage))


def test_packed_row_is_of_the_sequences_whose_tokens_it_has():
    """Tokens say where they are from; so each packed row names its sequences itself."""
    flow = ps.Flow("packed", lanes=4)
    tokens = [pa.array([[n] * (n % 5) for n in table.column("n").to_pylist()], LISTS) for table in tables()]
    given = [table.append_column("tokens", each) for table, each in zip(tables(), tokens, strict=True)]
    packed = flow.from_tables(given, name="rows").shuffle(64).pack(12, separator=-1, documents="documents")
    packed.filter("segment_ids is not null").shuffle(8).feed(10)
    with ps.run_local(flow) as job:
        batches = read_group(job.feed(), 1)
    for step in (0, 7, len(batches) - 1):
        found = ps.replay(flow, step=step, parallelism=2)
        assert found.rows.to_pylist() == batches[step]
        lines = found.lineage.to_pylist()
        for place, row in enumerate(batches[step]):
            mine = [line for line in lines if line["position"] == step * 10 + place]
            sequences = list(dict.fromkeys(number for number in row["documents"] if number >= 0))
            assert len(mine) == len(sequences)
            shown = [int(line["split"].removeprefix("memory/")) * ROWS + line["row"] for line in mine]
            # a row may begin with the separator of a sequence whose tokens are all in the one before
            first = 1 if row["tokens"][0] == -1 else 0
            assert shown[first:] == list(dict.fromkeys(token for token in row["tokens"] if token > 0))
            assert all(line["rows"] == 1 for line in mine)


def test_packing_what_was_packed_and_mapped_keeps_all_that_is_known():
    flow = ps.Flow("twice", lanes=2)
    tokens = [pa.table({"tokens": pa.array([[n, n] for n in range(40)], LISTS)}) for _ in range(2)]
    stream = flow.from_tables(tokens, name="rows").pack(4, segments=None, positions=None)
    stream.pack(8, segments=None, positions=None).feed(3)
    found = ps.replay(flow, step=1)
    rows = [[line["row"] for line in found.lineage.to_pylist() if line["position"] == at] for at in (3, 4, 5)]
    assert rows == [sorted(set(row["tokens"])) for row in found.rows.to_pylist()]
