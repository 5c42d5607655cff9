"""Which joins by key get their right side broadcast, and that nothing but the order of a new job depends on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import dataset

import penstock as ps
from penstock.engine.planner import broadcasting
from penstock.engine.planner.pipelines import plan_job

PATIENCE = 60
Build = Callable[[ps.Stream, ps.Stream], ps.Stream]


def table(rows: int, names: str, seed: int, keys: int = 40) -> pa.Table:
    draw = random.Random(seed)
    found = {
        names[0]: pa.array([draw.choice([None, *range(keys)]) for _ in range(rows)], pa.int64()),
        names[1]: pa.array([draw.randrange(keys) for _ in range(rows)], pa.int64()),
        names[2]: pa.array([f"{names} {draw.randrange(9)}" for _ in range(rows)], pa.string()),
    }
    return pa.table(found)


def pieces(whole: pa.Table, count: int) -> list[pa.Table]:
    step = max(1, -(-whole.num_rows // count))
    return [whole.slice(at, step) for at in range(0, whole.num_rows, step)]


def flow_of(build: Build, large: int = 70_000, small: int = 500, **options: object) -> ps.Flow:
    flow = ps.Flow("f", lanes=4, **options)
    left = flow.from_tables(pieces(table(large, "kvx", 1), 6), name="large")
    build(left, flow.from_tables(pieces(table(small, "jwy", 2), 3), name="small")).gather().collect("rows")
    return flow


def joined(left: ps.Stream, right: ps.Stream, how: str = "inner", **options: object) -> ps.Stream:
    return left.hash_join(right, ["k"], right_on=["j"], how=how, exchange="key", **options)


def chosen(build: Build, **options: int) -> tuple[str, ...]:
    plans = [plan_job(flow_of(build, **options), parallelism) for parallelism in (1, 2)]
    assert plans[0].broadcasts == plans[1].broadcasts
    return plans[0].broadcasts


@pytest.mark.parametrize("how", ["inner", "left", "left semi", "anti"])
def test_small_right_side_is_broadcast_if_it_gives_no_rows_of_its_own(how: str) -> None:
    assert chosen(lambda left, right: joined(left, right, how)) == ("hash-join-1",)


@pytest.mark.parametrize("how", ["right", "full", "right semi"])
def test_right_side_that_gives_rows_of_its_own_is_not(how: str) -> None:
    assert chosen(lambda left, right: joined(left, right, how)) == ()


def test_neither_a_large_right_side_is_nor_one_beside_few_left_rows() -> None:
    assert chosen(joined, small=20_000) == ()
    assert chosen(joined, large=1_000, small=10) == ()
    assert chosen(lambda left, right: joined(left.filter("v = 3"), right)) == ()


def test_explain_says_which_side_is_broadcast_and_how_large_both_may_be() -> None:
    lines = flow_of(joined).explain().splitlines()
    told = "right side in every subtask; reads its right side first; the right side is broadcast by its size"
    assert any(line.endswith(f"{told}; about 70,000 left and 500 right rows") for line in lines)


def test_size_that_is_not_known_chooses_nothing() -> None:
    assert chosen(lambda left, right: joined(left.flow.from_tables(table(70_000, "kvx", 1), rate=9.0), right)) == ()
    assert plan_job(flow_of(joined), order="arrival").broadcasts == ()


COUNTED_ON: dict[str, Build] = {
    "groups": lambda left, right: joined(left, right).aggregate(["k"], n="count"),
    "a function": lambda left, right: joined(left, right).map_batches(lambda rows: rows.select(["k"]), KEYS),
    "another join": lambda left, right: joined(
        joined(left, right).project("k", "v"), left.flow.from_tables(table(70_000, "jzy", 3))
    ),
    "one stream": lambda left, right: joined(left, left.project(j="k", w="v").filter("w = 3")),
    "a fork": lambda left, right: forked(joined(left, right)),
}
KEYS = pa.schema([("k", pa.int64())])


def forked(stream: ps.Stream) -> ps.Stream:
    stream.aggregate(["k"], n="count").gather().collect("groups")
    return stream


@pytest.mark.parametrize("build", COUNTED_ON.values(), ids=COUNTED_ON)
def test_join_stays_as_it_is_where_somebody_counts_on_its_parts(build: Build) -> None:
    assert chosen(build) == ()


def test_left_side_goes_through_joins_in_a_row_without_an_exchange() -> None:
    def build(left: ps.Stream, right: ps.Stream) -> ps.Stream:
        two = left.flow.from_tables(table(500, "jwy", 3))
        once = joined(left, right).project("k", "v", "w").with_columns(w="w + 1")
        return once.hash_join(two, ["v"], right_on=["j"], how="left semi", exchange="key").aggregate(
            ["w"], exchange="key", n="count"
        )

    plan = plan_job(flow_of(build))
    assert plan.broadcasts == ("hash-join-1", "hash-join-2")
    kinds = {exchange.id: exchange.config.kind for exchange in plan.exchanges}
    assert kinds == {
        "partition-by-1": "forward",
        "partition-by-2": "broadcast",
        "partition-by-4": "broadcast",
        "partition-by-5": "partition by",
        "gather-1": "gather",
    }


# ------------------------------------------------------------------ rows and their order


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasting, "WORTH", 0)
    monkeypatch.setattr(broadcasting, "TIMES", 0)


class Random:
    """Flows of joins by key, filters, projections and groups, by seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.flow = ps.Flow("f", lanes=self.draw.choice([3, 4, 8]))
        self.tables = 0

    def source(self) -> ps.Stream:
        self.tables += 1
        rows = self.draw.choice([0, 1, 30, 300])
        whole = table(rows, "kvx", self.draw.randrange(1 << 30), keys=12)
        return self.flow.from_tables(pieces(whole, self.draw.randrange(1, 6)) or whole)

    def stream(self, depth: int) -> ps.Stream:
        if depth == 0:
            return self.stepped(self.source())
        left, right = self.stream(depth - 1), self.stream(self.draw.randrange(depth))
        how = self.draw.choice(["inner", "left", "left semi", "anti", "inner", "left semi", "full"])
        filter = self.draw.choice([None, None, "v <= w"])
        right = right.project(j=self.draw.choice(["k", "v"]), w="v", y="x")
        made = left.hash_join(
            right, [self.draw.choice(["k", "v"])], right_on=["j"], how=how, filter=filter, exchange="key"
        )
        return self.stepped(made.project("k", "v", "x") if how != "full" else made.project("v", "x", k="j"))

    def stepped(self, stream: ps.Stream) -> ps.Stream:
        match self.draw.randrange(6):
            case 0:
                return stream.filter("v % 3 <> 1")
            case 1:
                return stream.with_columns(v="coalesce(v, 0) % 7")
            case 2:
                return stream.aggregate(["k", "v"], exchange="key", x=("x", "min"))
            case 3:
                return stream.aggregate(["v"], exchange="key", k=("k", "max"), x=("x", "min")).project("k", "v", "x")
            case 4:
                return stream.distinct(exchange="key")
            case _:
                return stream

    def made(self) -> ps.Flow:
        self.stream(self.draw.randrange(1, 4)).gather().collect("rows")
        return self.flow


def rows_of(flow: ps.Flow, parallelism: int) -> tuple[list[object], tuple[str, ...]]:
    job = ps.run_local(flow, parallelism=parallelism).wait(PATIENCE)
    return job.result("rows").to_pylist(), job.plan.broadcasts


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    found, broadcasts = zip(*(rows_of(Random(seed).made(), parallelism) for parallelism in (1, 2, 3)), strict=True)
    assert found[0] == found[1] == found[2], seed
    with monkeypatch.context() as never:
        never.setattr(broadcasting, "WORTH", 1 << 60)
        plain, none = rows_of(Random(seed).made(), 2)
    assert none == ()
    assert sorted(map(str, found[0])) == sorted(map(str, plain)), seed
    assert broadcasts[0] == broadcasts[1] == broadcasts[2]
    return len(broadcasts[0])


@pytest.mark.usefixtures("always")
def test_rows_are_the_same_and_their_order_at_any_parallelism(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(check(seed, monkeypatch) for seed in range(5)) > 2


@pytest.mark.sweep
@pytest.mark.usefixtures("always")
def test_rows_are_the_same_in_many_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(check(seed, monkeypatch) for seed in range(100, 160)) > 30


# ------------------------------------------------------------------ jobs that go on


def stopped(flow: ps.Flow, state: Path) -> None:
    with ps.run_local(flow, parallelism=2, checkpoints=ps.Checkpoints(state, every="50ms")) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 3, PATIENCE)


def slow(output: Path, rate: float) -> ps.Flow:
    flow = ps.Flow("f", lanes=4)
    left = flow.from_tables(pieces(table(1_200, "kvx", 1), 120), rate=4 * rate)
    joined(left, flow.from_tables(pieces(table(300, "jwy", 2), 120), rate=rate)).write_parquet(output)
    return flow


@pytest.mark.parametrize("began", [(), ("hash-join-1",)])
def test_job_goes_on_with_the_broadcasts_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: tuple[str, ...]
) -> None:
    stopped(slow(tmp_path / "out", 100.0).with_broadcasts(began), tmp_path / "state")
    if not began:  # by its sizes it would have some now
        monkeypatch.setattr(broadcasting, "WORTH", 0)
    job = ps.run_local(slow(tmp_path / "out", 0.0), parallelism=3, checkpoints=tmp_path / "state").wait(PATIENCE)
    assert job.plan.broadcasts == began
    whole = ps.run_local(slow(tmp_path / "whole", 0.0)).wait(PATIENCE)
    assert whole.plan.broadcasts == (() if began else ("hash-join-1",))
    assert rows_in(tmp_path / "out") == rows_in(tmp_path / "whole")


def rows_in(folder: Path) -> list[str]:
    return sorted(map(str, dataset.dataset(folder).to_table().to_pylist()))
