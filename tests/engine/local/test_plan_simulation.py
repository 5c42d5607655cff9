"""Plans of every shape, in thousands of interleavings: the same rows in the same order, window for window."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.exchange.channels import DEFAULT_CREDIT, OutputChannel
from penstock.engine.flow.flow import Flow
from penstock.engine.plan import rounds
from support.plan_simulation import Simulation, run_serially
from support.sweeps import swept

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def table(*pairs) -> pa.Table:
    return pa.table([[k for k, _ in pairs], [v for _, v in pairs]], schema=SCHEMA)


def source(flow, name):
    return flow.from_tables([table()], name=name)


def chain():
    return source(Flow("f"), "a").filter(pc.field("v") > 1).project("k", "v", w=pc.field("v") * 2)


def aggregation():
    return source(Flow("f"), "a").gather().stream_aggregate(by=["k"], total=("v", "sum"))


def merge_join():
    flow = Flow("f")
    joined = source(flow, "a").merge_join(source(flow, "b"), on=["k"], how="full")
    return joined.gather().stream_aggregate(by=["k"], n="count")


def hash_join():
    flow = Flow("f")
    return source(flow, "a").hash_join(source(flow, "b"), on=["k"], how="left").sort("k", "v")


def union():
    flow = Flow("f")
    both = source(flow, "a").union(source(flow, "b"))
    return both.aggregate(by=["k"], total=("v", "sum"))


def diamond():
    stream = source(Flow("f"), "a")
    return stream.filter(pc.field("v") > 1).hash_join(stream, on=["k"], how="inner", suffix="_other")


def merging_diamond():
    stream = source(Flow("f"), "a")
    return stream.filter(pc.field("v") > 1).merge_join(stream, on=["k"], how="inner", suffix="_other")


def first_rows():
    return source(Flow("f"), "a").limit(3, per="window")


def sequences():
    groups = source(Flow("f"), "a").shuffle(4, seed=1).aggregate(by=["k"], tokens=("v", "collect_list"))
    return groups.pack(3, documents="of")


def mixture():
    flow = Flow("f")
    return flow.mix({source(flow, "a"): 3, source(flow, "b").shuffle(2): 1}, at_end="go on")


PLANS = [chain, aggregation, merge_join, hash_join, union, diamond, merging_diamond, first_rows, sequences, mixture]
SETS = [
    {"a": table((1, 1), (1, 2), (2, 3)), "b": table((1, 10), (3, 30))},
    {"a": table(), "b": table((4, 40))},
    {"a": table(*((key, key % 3) for key in range(50))), "b": table(*((key, key) for key in range(0, 50, 7)))},
]
LAST = {"a": table((7, 7), (8, 1)), "b": table((7, 70))}


@pytest.mark.parametrize("seeds", [range(15), swept(range(15, 100))], ids=["few", "many"])
@pytest.mark.parametrize("credit", [1, DEFAULT_CREDIT])
@pytest.mark.parametrize("build", PLANS)
def test_plan_gives_the_same_rows_in_the_same_order_in_every_interleaving(build, credit, seeds, monkeypatch):
    monkeypatch.setattr(OutputChannel.__init__, "__defaults__", (credit,))
    monkeypatch.setattr(rounds, "CHUNK_ROWS", 5)
    monkeypatch.setattr("penstock.engine.operators.join.merge_join.HELD_ROWS", 1)
    names = {node.id for node in build().flow.nodes}
    sets = [{name: found for name, found in each.items() if name in names} for each in SETS]
    last = {name: found for name, found in LAST.items() if name in names}
    expected = run_serially(build, sets, last)
    assert any(expected), "a test of nothing"
    for seed in seeds:
        assert Simulation(build, sets, last, seed).run() == expected, f"seed {seed}"
