"""Operators that had finished at the checkpoint that a task is restored from: they are not run again."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest

from penstock.engine.core.elements import FINAL_ROUND, Batch, EndOfData, EndOfRound
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.core.identity import EndedLanes, TaskId
from penstock.engine.core.operator import LANE, exhaust
from penstock.engine.flow.flow import Flow
from penstock.engine.plan.plan import JobPlan
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.runtime.operator_chain import Division, EndedOperator, divide, ended_lanes
from penstock.engine.runtime.restored import Restored
from support.driver_rig import batch, rows
from support.engine_simulation_flows import Disk, DiskSink, numbers
from support.operator_harness import Collected
from support.task_owner import Owner
from support.trailer_flows import Trailer

SOURCE, SINK = TaskId("numbers", 0), TaskId("gather-1", 0)


def flow_of(parallelism: int) -> JobPlan:
    """A trailer in each subtask, one behind a gather, and a sink."""
    flow = Flow("ends", lanes=4)
    parts = flow.apply(Trailer(), [flow.from_tables(numbers((2, 1, 3, 1)), name="numbers")], name="parts")
    whole = flow.apply(Trailer(), [parts.gather()], name="whole")
    flow.attach(DiskSink("out", Disk()), whole, name="out")
    return plan_job(flow, parallelism)


def trailers(owner: Owner) -> list[int]:
    """The lanes for which the task has emitted a trailer."""
    batches = [element for element in owner.elements() if isinstance(element, Batch)]
    return [row["key"] for each in batches for row in each.records.to_pylist() if row["split"] == -1]


def ended(*ranges: tuple[str, int, int]) -> tuple[EndedLanes, ...]:
    return tuple(EndedLanes(*each) for each in ranges)


# --- lanes -----------------------------------------------------------------------------------------------------------


def test_lanes_of_others_and_of_other_operators_do_not_count() -> None:
    assert divide("a", range(2, 6), ended(("a", 0, 3), ("b", 3, 6), ("a", 5, 9))) == Division(
        range(2, 6), frozenset({2, 5}), over=False
    )
    assert divide("a", range(2, 6), ended(("a", 0, 4), ("a", 4, 6))).over
    assert not divide("a", range(0), ()).over
    assert divide("a", range(0), ended(("a", 3, 3))).over


@pytest.mark.parametrize(
    ("over", "hull"), [((), range(2, 6)), ((2,), range(3, 6)), ((3, 5), range(2, 5)), ((2, 3, 4, 5), range(2, 6))]
)
def test_an_operator_is_built_for_the_lanes_from_the_first_to_the_last_that_goes_on(
    over: Iterable[int], hull: range
) -> None:
    assert Division(range(2, 6), frozenset(over), over=False).hull == hull


def test_lanes_are_told_as_ranges() -> None:
    assert ended_lanes("a", {4, 1, 2, 0}) == list(ended(("a", 0, 3), ("a", 4, 5)))
    assert ended_lanes("a", ()) == []


def test_state_is_divided_by_lane_and_what_belongs_to_none_goes_on() -> None:
    table = pa.table({LANE: pa.array([0, 1, -1, 2], pa.int32())})
    goes_on, rest = Division(range(3), frozenset({1, 2}), over=False).of_state(table)
    assert [each.column(LANE).to_pylist() for each in (goes_on, rest) if each is not None] == [[0, -1], [1, 2]]
    assert Division(range(3), frozenset(), over=False).of_state(table) == (table, None)
    assert Division(range(3), frozenset({0, 1, 2}), over=False).of_state(table.slice(0, 2))[0] is None


# --- tasks -----------------------------------------------------------------------------------------------------------


def test_cut_says_which_operators_have_finished() -> None:
    owner = Owner(flow_of(2), SOURCE).trigger(1, at_round=0).run()
    assert owner.snapshots[1].ended == ()
    assert owner.trigger(2).run().snapshots[2].ended == ended(("parts", 0, 2))


def restored_at_the_end(finished: bool = False) -> tuple[Owner, Owner]:
    first = Owner(flow_of(2), SOURCE).run().trigger(1).run()
    taken = first.snapshots[1]
    return first, Owner(flow_of(2), SOURCE, Restored(taken.tables, taken.ended, finished))


def test_operator_that_had_finished_passes_the_end_on_and_keeps_its_state() -> None:
    first, again = restored_at_the_end()
    assert trailers(first) == [0, 1]
    again.trigger(2, at_round=-1).run()
    assert trailers(again.run()) == []
    assert again.elements()[-2:] == [EndOfRound(FINAL_ROUND), EndOfData()]
    before, after = first.snapshots[1], again.snapshots[2]
    assert after.tables["parts"] == before.tables["parts"]
    assert after.ended == before.ended, "also of a cut before the end has come again"


def test_nothing_is_built_of_a_task_that_is_deployed_as_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = restored_at_the_end()
    monkeypatch.setattr(Trailer, "build", lambda *built: pytest.fail("an operator is built"))
    sources = {"numbers": first.snapshots[1].tables["numbers"]}
    again = Owner(flow_of(2), SOURCE, Restored(sources, finished=True)).run().trigger(2).run()
    assert again.elements()[0:2] == [EndOfRound(FINAL_ROUND), EndOfData()]
    assert again.said == ["data ended"]
    taken = again.snapshots[2]
    assert (taken.finished_on_restore, taken.data_ended, taken.tables) == (True, True, {})
    assert taken.ended == ended(("parts", 0, 2))


def test_at_another_parallelism_an_operator_finishes_for_the_lanes_that_had_not() -> None:
    """One subtask of two had come to its end, the other one had not; their lanes go to one."""
    plan, tables, over = flow_of(2), {"numbers": [], "parts": []}, []
    for subtask, at_round in ((0, None), (1, 0)):
        owner = Owner(plan, TaskId("numbers", subtask))
        owner = owner.trigger(1, at_round=at_round).run() if subtask else owner.run().trigger(1).run()
        over += owner.snapshots[1].ended
        for operator, table in owner.snapshots[1].tables.items():
            tables[operator].append(table)
    assert over == [EndedLanes("parts", 0, 2)]
    state = {operator: pa.concat_tables(parts) for operator, parts in tables.items()}
    alone = Owner(flow_of(1), SOURCE, Restored(state, tuple(over))).run()
    assert trailers(alone) == [2, 3]
    taken = alone.trigger(2).run().snapshots[2]
    assert sorted(taken.tables["parts"].column(LANE).to_pylist()) == [0, 1, 2, 3]
    assert taken.ended == ended(("parts", 0, 4))


def test_what_is_emitted_at_the_end_for_a_lane_that_had_ended_is_dropped() -> None:

    flow = flow_of(1)
    stage = flow.stages["numbers"]
    division = Division(stage.lanes_of(0), frozenset({1, 2}), over=False)
    assert division.hull == range(4)
    state = {LANE: pa.array([1, 2], pa.int32()), "rows": pa.array([1, 3], pa.int64())}
    restored = Restored({"parts": pa.table(state)}, ended(("parts", 1, 3)))
    owner = Owner(flow, SOURCE, restored).run()
    assert trailers(owner) == [0, 3]


def test_rows_for_an_operator_that_had_finished_are_an_error() -> None:
    running = EndedOperator(None)
    with pytest.raises(ConfigurationError, match="had finished at the checkpoint"):
        exhaust(running.process(0, batch(0, 0, 1), Collected(rows(1).schema)))
