"""Which side of a join is read first: the smaller one, unless somebody would wait for ever."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.engine.flow.flow import Flow, Stream
from penstock.engine.operators.join.join_shape import JOIN_TYPES
from penstock.engine.planner.pipelines import plan_job


def rows(flow: Flow, name: str, count: int) -> Stream:
    return flow.from_tables(pa.table({"k": range(count), name: range(count)}), name=name)


def found(build: Callable[[Flow], Stream], **options: object) -> dict[str, int | None]:
    flow = Flow("f")
    build(flow).collect("out")
    stages = plan_job(flow, **options).stages.values()
    operators = [each for stage in stages for pipeline in stage.pipelines for each in pipeline.operators]
    return {each.id: each.read_first for each in operators if each.config.kind == "hash join"}


@pytest.mark.parametrize("how", JOIN_TYPES)
def test_the_smaller_side_is_read_first_if_the_other_one_needs_a_match(how: str) -> None:
    def join(left: int, right: int) -> dict[str, int | None]:
        return found(lambda flow: rows(flow, "a", left).hash_join(rows(flow, "b", right), on=["k"], how=how))

    waits_left = how in {"inner", "left semi", "right", "right semi"}
    waits_right = how in {"inner", "left semi", "right semi", "left", "anti"}
    assert join(9, 3) == {"hash-join-1": 1 if waits_left else None}
    assert join(3, 9) == {"hash-join-1": 0 if waits_right else None}


def test_filtered_side_counts_as_smaller() -> None:
    def semi(flow: Flow) -> Stream:
        return rows(flow, "a", 9).filter("a > 3").hash_join(rows(flow, "b", 8), on=["k"], how="left semi")

    assert found(semi) == {"hash-join-1": 0}


def test_fork_that_both_sides_come_of_waits_for_nobody() -> None:
    def itself(flow: Flow) -> Stream:
        stream = rows(flow, "a", 9)
        return stream.hash_join(stream.filter("a > 3"), on=["k"], suffix="_other")

    assert found(itself) == {"hash-join-1": None}


def test_build_side_may_come_of_a_fork_whose_branches_are_all_built() -> None:
    def both(flow: Flow) -> Stream:
        short = rows(flow, "short", 2)
        one = rows(flow, "a", 9).hash_join(short, on=["k"])
        return one.hash_join(rows(flow, "b", 8).hash_join(short, on=["k"], how="left semi"), on=["k"])

    assert found(both) == {"hash-join-1": 1, "hash-join-2": 1, "hash-join-3": 1}


def test_fork_may_lead_past_joins_to_a_join_of_the_stream_with_itself() -> None:
    def kin(flow: Flow) -> Stream:
        stream, other = rows(flow, "a", 90), rows(flow, "b", 900)
        few = stream.hash_join(rows(flow, "few", 2), on=["k"], how="left semi")
        among = few.hash_join(other, on=["k"], how="left semi")
        return among.hash_join(stream.project("k"), on=["k"], how="anti")

    assert found(kin) == {"hash-join-1": None, "hash-join-2": 0, "hash-join-3": 1}


def test_fork_may_not_lead_to_a_join_with_what_another_fork_holds_up() -> None:
    def kin(flow: Flow) -> Stream:
        stream, other = rows(flow, "a", 90), rows(flow, "b", 900)
        few = stream.hash_join(other.filter("k < 2"), on=["k"], how="left semi")
        among = few.hash_join(other, on=["k"], how="left semi")
        return among.hash_join(stream.project("k"), on=["k"], how="anti")

    assert found(kin)["hash-join-2"] is None


def test_build_side_may_not_come_of_a_fork_that_another_branch_holds_up() -> None:
    def beside(flow: Flow) -> Stream:
        short = rows(flow, "short", 2)
        joined = rows(flow, "a", 9).hash_join(short, on=["k"]).project("k")
        return joined.union(short.project("k").gather())

    assert found(beside) == {"hash-join-1": None}


def test_both_sides_are_read_in_step_where_the_rows_meet_others_round_by_round() -> None:
    def beside(flow: Flow) -> Stream:
        joined = rows(flow, "a", 9).hash_join(rows(flow, "b", 3), on=["k"]).project("k").sort("k")
        return joined.union(rows(flow, "c", 9).project("k").gather()).hash_join(rows(flow, "d", 2), on=["k"])

    assert found(beside) == {"hash-join-1": None, "hash-join-2": 1}


def test_nobody_waits_where_it_is_not_known_how_much_there_is_or_in_what_order() -> None:
    def join(flow: Flow) -> Stream:
        return rows(flow, "a", 9).hash_join(rows(flow, "b", 3), on=["k"])

    assert found(join, order="arrival") == {"hash-join-1": None}
    assert found(join, rate=3.0) == {"hash-join-1": None}
