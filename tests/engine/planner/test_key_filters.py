"""Readers leave out rows that joins drop: where that is planned, and that nothing but what is read depends on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import penstock as ps
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.runtime import key_meetings
from penstock.engine.runtime.key_meetings import KeyMeeting, KeyMeetings

LARGE = pa.table(
    {
        "k": [n % 50 for n in range(1_000)],
        "v": pa.array(range(1_000), pa.int64()),
        "x": [n / 7 for n in range(1_000)],
        "t": [f"text {n % 5}" for n in range(1_000)],
    }
)
SMALL = pa.table({"k": pa.array([3, 7, 7, None], pa.int64()), "w": [1, 2, 3, 4]})

Build = Callable[[ps.Stream, ps.Stream], ps.Stream]

REACHED: dict[str, Build] = {
    "a source": lambda large, small: large.hash_join(small, ["k"]),
    "semi": lambda large, small: large.hash_join(small, ["k"], how="left semi"),
    "right": lambda large, small: large.hash_join(small, ["k"], how="right"),
    "any condition": lambda large, small: large.filter("v // (k + 1) > 2").hash_join(small, ["k"]),
    "renamed": lambda large, small: large.project("v", key="k").hash_join(small, ["key"], right_on=["k"]),
    "behind an exchange": lambda large, small: large.gather().filter("t = 'text 3'").hash_join(small, ["k"]),
    "by key": lambda large, small: large.hash_join(small, ["k"], exchange="key"),
    "behind another join": lambda large, small: large.hash_join(
        large.flow.from_tables(SMALL.slice(1)), ["k"], how="left"
    ).hash_join(small.project("k", u="w"), ["k"]),
    "groups": lambda large, small: large.aggregate(["k"], n="count", x=("x", "sum")).hash_join(small, ["k"]),
}

NOT_REACHED: dict[str, Build] = {
    "a condition that may fail": lambda large, small: large.gather().filter("v // (k + 1) > 2").hash_join(small, ["k"]),
    "a function": lambda large, small: large.map_batches(lambda rows: rows, LARGE.schema).hash_join(small, ["k"]),
    "a limit": lambda large, small: large.gather().limit(100).hash_join(small, ["k"]),
    "turns": lambda large, small: large.rebalance().hash_join(small, ["k"], exchange="key"),
    "left": lambda large, small: large.hash_join(small, ["k"], how="left"),
    "anti": lambda large, small: large.hash_join(small, ["k"], how="anti"),
    "a sum that may not fit": lambda large, small: large.aggregate(["k"], s=("v", "sum")).hash_join(small, ["k"]),
    "a computed key": lambda large, small: large.project("v", k="k + 0").hash_join(small, ["k"]),
}


def flow_of(build: Build) -> ps.Flow:
    flow = ps.Flow("keys", lanes=4)
    large = flow.from_tables([LARGE.slice(at, 100) for at in range(0, 1_000, 100)], name="large")
    build(large, flow.from_tables(SMALL, name="small")).collect("rows")
    return flow


@pytest.mark.parametrize("name", REACHED)
def test_join_tells_the_reader_of_its_source_and_the_rows_are_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = flow_of(REACHED[name])
    assert "large" in {each.source for each in plan_job(flow).key_filters}
    told: list[KeyMeeting] = []
    publish = KeyMeeting.hear
    monkeypatch.setattr(KeyMeeting, "hear", lambda self, *rest: told.append(self) or publish(self, *rest))
    found = [ps.run_local(flow, parallelism=parallelism).result("rows") for parallelism in (1, 2)]
    passed = [each.filter for each in told if each.planned.source == "large"]
    assert passed
    assert all(each.passed < each.seen for each in passed if each.seen)
    assert any(each.seen for each in passed)
    monkeypatch.setattr("penstock.engine.planner.pipelines.plan_key_filters", lambda *_: ())
    whole = ps.run_local(flow).result("rows")
    assert found == [whole, whole]


def test_sources_of_a_join_that_stands_in_one_task_with_them_are_told() -> None:
    flow = flow_of(REACHED["a source"])
    with ps.run_local(flow, parallelism=1) as job:
        assert "large: 4 % of 1,000 rows pass the keys that hash-join-1 has told" in job.wait().statistics().left_out


@pytest.mark.parametrize("name", NOT_REACHED)
def test_reader_is_told_nothing_where_it_would_show(name: str) -> None:
    assert "large" not in {each.source for each in plan_job(flow_of(NOT_REACHED[name])).key_filters}


def test_reader_is_told_nothing_if_others_read_the_rows() -> None:
    flow = ps.Flow("keys")
    large, small = flow.from_tables(LARGE, name="large"), flow.from_tables(SMALL)
    large.hash_join(small, ["k"]).collect("rows")
    large.aggregate([], n="count").collect("count")
    assert "large" not in {each.source for each in plan_job(flow).key_filters}


def test_error_on_the_way_does_not_depend_on_what_is_told() -> None:
    flow = flow_of(lambda large, small: large.gather().with_columns(q="v // (k - 9)").hash_join(small, ["k"]))
    with pytest.raises(ps.errors.PenstockError, match="divide by zero"):
        ps.run_local(flow).result("rows")


def test_meeting_is_over_when_all_have_told_or_one_gives_up() -> None:
    planned = next(each for each in plan_job(flow_of(REACHED["by key"]), 2).key_filters if each.source == "large")
    tasks = [TaskId("join", number) for number in range(2)]
    joins = [(task, Attempt(1, 1)) for task in tasks]
    meeting = KeyMeetings().of(planned, joins)
    woken: list[bool] = []
    meeting.wake(lambda: woken.append(meeting.is_over))
    assert meeting.is_awaited()
    meeting.listener(joins[0][0]).publish(0, [pa.array([3])])
    assert (woken, meeting.filter.picked(0, [pa.array([3, 7, 9])])) == ([], None)
    meeting.listener(joins[1][0]).publish(0, [pa.array([7])])
    picked = meeting.filter.picked(0, [pa.array([3, 7, 90])])
    assert picked is not None
    assert (woken, picked.tolist(), meeting.is_awaited()) == ([True], [0, 1], False)
    late = KeyMeetings().of(planned, joins)
    late.listener(joins[0][0]).give_up()
    assert not late.is_awaited()
    assert not KeyMeetings().of(replace(planned, waits=False), joins).is_awaited()


def test_keys_of_several_subtasks_that_are_too_many_for_one_array_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = next(each for each in plan_job(flow_of(REACHED["by key"]), 2).key_filters if each.source == "large")
    joins = [(TaskId("join", number), Attempt(1, 1)) for number in range(2)]
    for most, tells in ((32, True), (31, False)):
        monkeypatch.setattr(key_meetings, "MOST_BYTES", most)
        meeting = KeyMeetings().of(planned, joins)
        for task, _ in joins:
            meeting.listener(task).publish(0, [pa.array(["0123456789ab"])])
        assert not meeting.is_awaited()
        assert (meeting.filter.test(0) is not None) == tells


def test_explain_says_who_tells_whom_what_is_read_first_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = flow_of(REACHED["a source"])
    monkeypatch.setattr("penstock.engine.planner.explain.page_library", object)
    lines = flow.explain(1).splitlines()
    assert any(line.startswith("  large: ") and "hash-join-1 tells which k it needs" in line for line in lines)
    assert any(
        "hash-join-1: hash join" in line
        and line.endswith("; reads its right side first; about 1,000 left and 4 right rows")
        for line in lines
    )
    assert not any("kernels" in line for line in lines)
    monkeypatch.setattr("penstock.engine.planner.explain.page_library", lambda: None)
    assert flow.explain(1).splitlines()[2].startswith("  compiled kernels are missing here")


@pytest.mark.parametrize("parallelism", [1, 2])
def test_decimals_that_a_reader_has_in_other_bits_than_the_join_are_alike(tmp_path: Path, parallelism: int) -> None:
    for name, rows in (("left", 3_000), ("right", 30)):
        column = pa.array(range(rows), pa.int64()).cast(pa.decimal128(21, 2)).cast(pa.decimal128(15, 2))
        parquet.write_table(pa.table({name: column}), tmp_path / f"{name}.parquet")
    flow = ps.Flow("decimals", lanes=4)
    left, right = (flow.read_parquet(tmp_path / f"{name}.parquet") for name in ("left", "right"))
    left.filter("left >= 2").hash_join(right.distinct(), ["left"], right_on=["right"]).collect("rows")
    assert ps.run_local(flow, parallelism=parallelism).result("rows").num_rows == 28
