"""A user's operator that says what it does is planned like the built-in one; one that does not, is planned safely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import FlowError
from penstock.engine.lineage.tracing import FeedGraph
from penstock.engine.planner.pipelines import plan_job
from support.own_operators import Above, AboveUntold, Counted, Doubled

ROWS = pa.table({"k": [1, 1, 2, 3], "v": [5, 12, 30, 9], "w": [1, 2, 3, 4]})
Filtered = Callable[[ps.Stream], ps.Stream]


def built_in(stream: ps.Stream) -> ps.Stream:
    return stream.filter("v > 9", name="mine")


def own(stream: ps.Stream) -> ps.Stream:
    return stream.apply(Above("v", 9), name="mine")


def untold(stream: ps.Stream) -> ps.Stream:
    return stream.apply(AboveUntold("v", 9), name="mine")


def pruned(flow: ps.Flow, filtered: Filtered) -> None:
    filtered(flow.from_tables([ROWS])).project("k").collect("found")


def grouped(flow: ps.Flow, filtered: Filtered) -> None:
    filtered(flow.from_tables([ROWS]).partition_by("k")).aggregate(["k"], n="count").collect("found")


def merged(flow: ps.Flow, filtered: Filtered) -> None:
    other = flow.from_tables([ROWS])
    filtered(flow.from_tables([ROWS])).merge_join(other, ["k"]).collect("found")


def copied(flow: ps.Flow, filtered: Filtered) -> None:
    other = filtered(flow.from_tables([ROWS]).broadcast())
    flow.from_tables([ROWS]).rebalance().hash_join(other, ["k"]).collect("found")


def repeated(flow: ps.Flow, filtered: Filtered) -> None:
    filtered(flow.from_tables([ROWS])).feed(2, epochs=2)


FLOWS = (pruned, grouped, merged, copied, repeated)
EACH = pytest.mark.parametrize("build", FLOWS, ids=lambda build: build.__name__)


def flow_of(build: Callable[[ps.Flow, Filtered], None], filtered: Filtered) -> ps.Flow:
    flow = ps.Flow("one")
    build(flow, filtered)
    return flow


def plan_of(build: Callable[[ps.Flow, Filtered], None], filtered: Filtered) -> list[str]:
    """What ``explain`` says: columns that are read, stages, exchanges.

    A built-in filter takes less memory: it gives no columns that only its condition needs. Only built-in ones are
    applied by readers, or say what readers may ask early.
    """
    text, *_ = flow_of(build, filtered).explain(parallelism=2).split("memory, at most")
    text = text.replace("; mine is applied as it is read", "").replace("; early for mine: (v > 9)", "")
    return text.replace("filter v > 9", "(what keeps them)").replace("above v > 9", "(what keeps them)").splitlines()


@EACH
def test_own_filter_is_planned_like_the_built_in_one(build: Any) -> None:
    assert plan_of(build, own) == plan_of(build, built_in)


@EACH
def test_own_filter_gives_the_rows_of_the_built_in_one(build: Any) -> None:
    if build is repeated:
        assert plan_job(flow_of(build, own), 1).epochs == plan_job(flow_of(build, built_in), 1).epochs
        return
    found, wanted = (ps.run_local(flow_of(build, each), parallelism=2).result("found") for each in (own, built_in))
    assert found.num_rows
    assert found.equals(wanted)


def test_one_that_says_nothing_reads_all_and_its_rows_are_brought_together() -> None:
    assert plan_job(flow_of(pruned, untold), 2).sources["memory-1"].schema.names == ["k", "v", "w"]
    assert plan_job(flow_of(pruned, own), 2).sources["memory-1"].schema.names == ["k", "v"]
    assert [each.config.kind for each in plan_job(flow_of(grouped, untold), 2).exchanges] == ["partition by", "gather"]
    assert [each.config.kind for each in plan_job(flow_of(grouped, own), 2).exchanges] == ["partition by"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (merged, "it is not known in which rounds mine gives them"),
        (copied, "its input is broadcast"),
        (repeated, "above: what it holds or remembers would pass from one of the 2 epochs to the next"),
    ],
)
def test_one_that_says_nothing_is_refused_where_it_could_be_wrong(build: Any, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        plan_job(flow_of(build, untold), 2)


def test_own_filter_is_traced_like_the_built_in_one() -> None:
    def traced(filtered: Filtered) -> FeedGraph:
        flow = ps.Flow("one")
        filtered(flow.from_tables([ROWS])).feed(2)
        return FeedGraph(flow, "feed", plan_job(flow, 1))

    assert [traced(each).is_traced for each in (built_in, own, untold)] == [True, True, False]
    assert traced(untold).ends == {"mine": "mine makes other rows of those that come to it"}


def test_own_projection_computes_what_is_wanted() -> None:
    flow = ps.Flow("one")
    flow.from_tables([ROWS]).apply(Doubled("k", ("v", "w"))).project("w_2").collect("found")
    assert plan_job(flow, 1).sources["memory-1"].schema.names == ["k", "w"]
    assert ps.run_local(flow).result("found").to_pydict() == {"w_2": [2, 4, 6, 8]}


@pytest.mark.parametrize("exchange", ["gather", "key"])
def test_rows_of_a_group_are_brought_together_as_an_own_operator_says(exchange: Any) -> None:
    flow = ps.Flow("one")
    flow.from_tables([ROWS]).apply(Counted("k"), exchange=exchange).collect("found")
    kinds = [each.config.kind for each in plan_job(flow, 2).exchanges]
    assert kinds == ["gather" if exchange == "gather" else "partition by"]
    found = ps.run_local(flow, parallelism=2).result("found").to_pydict()
    assert dict(zip(found["k"], found["rows"], strict=True)) == {1: 2, 2: 1, 3: 1}


def test_what_is_not_traits_is_refused_where_the_operator_is_added() -> None:
    class Wrong(AboveUntold):
        traits: ClassVar[Any] = {"state": None}

    with pytest.raises(FlowError, match="the traits of Wrong are no Traits"):
        ps.Flow("one").from_tables([ROWS]).apply(Wrong("v", 9))


class Odd:
    """A config that says what it is given to say."""

    kind = "odd"

    def __init__(self, schema: Any, traits: ps.Traits | None = None) -> None:
        self._schema = schema
        self.traits = traits or ps.Traits()

    def output_schema(self, inputs: Any) -> Any:
        if isinstance(self._schema, Exception):
            raise self._schema
        return self._schema

    def build(self, context: object, inputs: object, restored: object) -> Any:
        raise AssertionError("it is refused before")

    def describe(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (None, "odd-1: output_schema.. of Odd gave a NoneType"),
        (["k"], "gave a list"),
        (ValueError("what is this"), "odd-1: output_schema.. of Odd raised ValueError: what is this"),
    ],
)
def test_a_config_without_a_schema_is_refused_by_name(schema: Any, message: str) -> None:
    flow = ps.Flow("odd")
    with pytest.raises(ps.errors.PenstockError, match=message):
        flow.from_tables([ROWS]).apply(Odd(schema))


@pytest.mark.parametrize("columns", [lambda inputs: [], lambda inputs: None, lambda inputs: ["k"]])
def test_columns_that_are_not_one_for_each_input_are_refused(columns: Any) -> None:
    flow = ps.Flow("odd")
    flow.from_tables([ROWS]).apply(Odd(ROWS.schema, ps.Traits.row_wise(columns))).collect("r")
    with pytest.raises(FlowError, match="columns gave"):
        flow.explain()


@pytest.mark.parametrize(
    "wrong", [{"emission": "per batch"}, {"state": None}, {"grouped_by": "k"}, {"co_partitioned_by": ("k", "k")}]
)
def test_traits_of_another_kind_are_refused(wrong: Any) -> None:
    with pytest.raises(FlowError, match="Traits: "):
        ps.Traits(**wrong)
