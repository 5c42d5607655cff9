"""The public graph: names, schemas checked on the line that breaks them, immutability."""

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.core.errors import FlowError
from penstock.engine.flow import index
from penstock.engine.flow.flow import Flow

ROWS = pa.table({"k": pa.array([1], pa.int64()), "v": pa.array([1.0]), "tags": pa.array([["a"]])})


def stream(flow=None):
    return (flow or Flow("flow")).from_tables([ROWS], name="rows")


def test_missing_column_is_reported_where_it_is_asked_for():
    with pytest.raises(FlowError) as caught:
        stream().filter(pc.field("delay") > 0)
    assert caught.value.operator == "filter-1"
    assert "delay" in str(caught.value)
    assert "tags" in str(caught.value), "the message lists what exists"


def test_wrong_type_is_reported_where_it_is_asked_for():
    with pytest.raises(FlowError):
        stream().filter(pc.field("v") + pc.field("tags") > pc.scalar(1))


def test_join_keys_of_different_types_are_refused():
    flow = Flow("flow")
    other = flow.from_tables([pa.table({"k": ["1"]})], name="other")
    with pytest.raises(FlowError, match=r"int64.*string|string.*int64"):
        stream(flow).merge_join(other, on=["k"])


def test_streams_of_two_flows_do_not_mix():
    with pytest.raises(FlowError, match="two flows"):
        stream(Flow("one")).merge_join(stream(Flow("two")), on=["k"])


def test_name_is_given_once():
    flow = Flow("flow")
    stream(flow)
    with pytest.raises(FlowError, match="two operators"):
        stream(flow)


@pytest.mark.parametrize("name", ["", "a/b", "../x", "-a", "ä", "x" * 101])
def test_name_that_could_not_be_a_path_is_refused(name):
    with pytest.raises(FlowError):
        Flow(name)


def test_with_columns_replaces_and_adds():
    schema = stream().with_columns(v=pc.field("k") * 2, w=pc.field("k") + 1).schema
    assert schema.names == ["k", "v", "tags", "w"]
    assert schema.field("v").type == pa.int64()


def test_project_keeps_what_it_names():
    assert stream().project("v", twice=pc.field("v") * 2).schema.names == ["v", "twice"]


def test_schema_follows_through_unnest_and_aggregation():
    schema = stream().unnest("tags", ordinality="at").stream_aggregate(by=["k"], n="count", mean=("v", "mean")).schema
    assert schema == pa.schema([("k", pa.int64()), ("n", pa.int64()), ("mean", pa.float64())])


def test_a_stream_can_be_used_twice():
    flow = Flow("flow")
    rows = stream(flow)
    assert rows.filter(pc.field("k") > 1).id == "filter-1"
    assert rows.filter(pc.field("k") > 2).id == "filter-2"
    assert rows.schema == ROWS.schema


def test_fingerprint_changes_with_an_expression_but_not_with_a_rate():
    def build(limit, rate=0.0):
        flow = Flow("flow")
        flow.from_tables([ROWS], name="rows", rate=rate).filter(pc.field("k") > limit).collect("out")
        return flow.fingerprint()

    assert build(1) == build(1, rate=5.0)
    assert build(1) != build(2)


def scaled(batch, by):
    return batch


class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, batch):
        return batch

    def fingerprint(self):
        return f"by {self.by}"


KEYS = list(range(40))
OTHERS = [*range(20), 99, *range(21, 40)]
INDEX = index.memory(pa.table({"k": [1], "w": [1]}), "k")
CHANGES = {
    "filter": lambda rows, more: rows.filter(pc.field("k").isin(OTHERS if more else KEYS)),
    "project": lambda rows, more: rows.project(
        z=pc.index_in(pc.field("k"), value_set=pa.array(OTHERS if more else KEYS))
    ),
    "lookup": lambda rows, more: rows.lookup_join(INDEX, ["k"], filter=pc.field("w").isin(OTHERS if more else KEYS)),
    "join": lambda rows, more: rows.hash_join(rows, ["k"], filter=pc.field("k").isin(OTHERS if more else KEYS)),
    "partial": lambda rows, more: rows.map_batches(partial(scaled, by=2 + more), ROWS.schema),
    "object": lambda rows, more: rows.map_batches(Scale(2 + more), ROWS.schema),
    "weights": lambda rows, more: rows.flow.mix({rows: 1.0, rows.filter("k > 0"): 0.1234567 + more * 1e-9}),
    "seed": lambda rows, more: rows.shuffle(10, seed=int(more)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_fingerprint_knows_every_value_that_changes_rows(change):
    """What is told to people is shortened: a job went on with another filter, whose list of values had changed in its
    middle."""

    def build(more):
        flow = Flow("flow")
        CHANGES[change](flow.from_tables([ROWS], name="rows"), more).collect("out")
        return flow.fingerprint()

    assert build(False) == build(False)
    assert build(False) != build(True)


def test_fingerprint_knows_how_a_source_reads_its_files(tmp_path):
    (tmp_path / "a.csv").write_text("k,s\n1,a\n")
    pq.write_table(ROWS, tmp_path / "a.parquet")

    def csv(**options):
        flow = Flow("flow")
        flow.read_csv(tmp_path / "a.csv", **options).collect("out")
        return flow.fingerprint()

    def parquet(values):
        flow = Flow("flow")
        flow.read_parquet(tmp_path / "a.parquet", filter=pc.field("k").isin(values)).collect("out")
        return flow.fingerprint()

    assert len({csv(), csv(null_values=["NA"]), csv(null_values=["a"])}) == 3
    assert parquet(KEYS) == parquet(KEYS) != parquet(OTHERS)


def test_fluent_expressions_stand_wherever_text_does():
    def made(filter, doubled, named, on):
        flow = Flow("flow")
        rows = stream(flow).filter(filter).with_columns(v=doubled).project("k", "v", **named)
        other = flow.from_tables([ROWS], name="other")
        rows.hash_join(other, on=["k"], filter=on).feed(tokens=8, cost=named["c"])
        return flow

    fluent = made(ps.col("k") > 0, ps.col("v") * 2, {"c": ps.col("k").fill_null(0)}, ps.col("v") >= ps.col("v_right"))
    text = made('"k" > 0', '"v" * 2', {"c": 'coalesce("k", 0)'}, '"v" >= "v_right"')
    assert fluent.fingerprint() == text.fingerprint()


def test_expressions_among_columns_go_by_their_names():
    rows = stream().project("k", ps.col("v") * 2, (ps.col("k") + 1).alias("w"))
    assert rows.schema.names == ["k", "v", "w"]
    assert stream().with_columns(ps.col("v").cast(str)).schema.field("v").type == pa.string()
    with pytest.raises(FlowError, match="has no name"):
        stream().project(ps.lit(1))
    with pytest.raises(FlowError, match="'v' is given twice"):
        stream().with_columns(ps.col("v") * 2, v=ps.col("k"))


def test_missing_column_is_told_with_those_that_are_near():
    with pytest.raises(FlowError, match="did you mean 'tags'"):
        stream().filter(ps.col("tag").is_null())
