"""Whole jobs whose tasks cut wherever they stand: each row once, also when they go on at another parallelism."""

import threading
import time
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from test_local_run import numbers

import penstock as ps
from penstock.engine.core.errors import ConfigurationError

ROWS = sorted(value for number in range(12) for value in range(number * 1000, number * 1000 + 50))


def flow(output, rate=0.0, order="arrival") -> ps.Flow:
    """Two exchanges, with rows that leave in the middle and groups that leave at the end."""
    made = ps.Flow("unaligned", lanes=4, order=order)
    rows = made.from_tables(numbers(), name="numbers", rate=rate).partition_by("value").filter("value >= 0")
    rows.rebalance().write_parquet(output / "rows", name="rows")
    groups = rows.partition_by("key").aggregate(["key"], n="count", total=("value", "sum"))
    groups.gather().write_parquet(output / "sums", name="sums")
    return made


def rows(folder) -> list[int]:
    return ds.dataset(folder).to_table()["value"].to_pylist()


def check(output) -> None:
    assert sorted(rows(output / "rows")) == ROWS
    sums = ds.dataset(output / "sums").to_table().sort_by("key").to_pydict()
    assert sums["n"] == [50] * 12
    assert sum(sums["total"]) == sum(ROWS)


@pytest.mark.parametrize("alignment", [{"alignment": "unaligned"}, {"alignment_timeout": "1ms"}], ids=["0", "1ms"])
@pytest.mark.parametrize("again", [1, 2, 4])
@pytest.mark.parametrize("order", ["arrival", "deterministic"])
def test_stopped_job_goes_on_at_another_parallelism(tmp_path, order, again, alignment) -> None:
    checkpoints = ps.Checkpoints(tmp_path / "state", every="20ms", **alignment)
    with ps.run_local(flow(tmp_path, rate=1000.0, order=order), parallelism=2, checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, timeout=60)
    resumed = ps.run_local(flow(tmp_path, order=order), parallelism=again, checkpoints=checkpoints).wait(60)
    assert resumed.status().restored_from is not None
    check(tmp_path)
    assert resumed.audit().clean


@pytest.mark.parametrize("aligned", [False, True])
def test_checkpoints_say_that_they_are_unaligned_and_savepoints_as_they_are_asked_for(tmp_path, aligned) -> None:
    checkpoints = ps.Checkpoints(tmp_path / "state", every="20ms", alignment="unaligned")
    with ps.run_local(flow(tmp_path, rate=1000.0), parallelism=2, checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, timeout=60)
        job.savepoint(timeout=60, aligned=aligned)
        history = {record.kind: record for record in job.checkpoints().history}
    unaligned = {kind: sum(vertex.unaligned for vertex in record.vertices) for kind, record in history.items()}
    assert unaligned["checkpoint"] > 0
    assert (unaligned["savepoint"] == 0) is aligned


def test_job_goes_on_from_the_savepoint_that_another_one_stopped_with_in_the_middle(tmp_path) -> None:
    checkpoints = ps.Checkpoints(tmp_path / "state", every="20ms", alignment="unaligned")
    job = ps.run_local(flow(tmp_path, rate=1000.0), parallelism=2, checkpoints=checkpoints)
    job.wait_until(lambda status: status.checkpoints_completed >= 1, timeout=60)
    saved = job.stop(timeout=60)
    ps.run_local(flow(tmp_path), parallelism=3, checkpoints=tmp_path / "other", from_snapshot=saved.path).wait(60)
    check(tmp_path)


@pytest.mark.parametrize("wrong", [{"alignment": "loose"}, {"alignment_timeout": 0}, {"alignment_timeout": "soon"}])
def test_setting_that_means_nothing_is_refused_on_the_users_own_line(tmp_path, wrong) -> None:
    with pytest.raises(ConfigurationError, match="alignment"):
        ps.Checkpoints(tmp_path, **wrong)


SHOWN: dict[str, list[int]] = {}
"""What the sink below has committed, by committable."""
CALLS: list[tuple[int, int]] = []
"""The number of each batch that it was given, and the rows."""


@dataclass(frozen=True)
class Slow:
    """A user's sink that waits at each call, and for each row. ``at_once``: the most rows of a call, if it says so."""

    seconds: float
    for_a_row: float = 0.0
    at_once: int | None = 100
    place: str = "nowhere"
    kind: str = "slow"
    guarantee: str = "exactly once"

    @property
    def traits(self) -> ps.Traits:
        return ps.Traits(rows_at_once=self.at_once)

    def output_schema(self, inputs: Any) -> pa.Schema:
        return inputs[0]

    def build(self, context: Any, inputs: Any, restored: Any) -> Any:
        return RunningSlow(self, context, restored)

    def describe(self) -> str:
        return "show rows"

    def check(self, job: str, resuming: bool = False) -> None:
        pass

    def visible_rows(self, job: str) -> int:
        return sum(map(len, SHOWN.values()))

    def committer(self, job: str) -> Any:
        return Showing()


class RunningSlow(ps.Stateless):
    def __init__(self, config: Slow, context: Any, restored: Any) -> None:
        self.config, self.operator, self.counts = config, context.operator, ps.LaneCounts(restored)
        self.values: list[int] = []
        self.flushed: dict[Any, list[ps.Committable]] = {}

    def process(self, port: int, batch: ps.Batch, out: Any) -> None:
        time.sleep(self.config.seconds + self.config.for_a_row * batch.records.num_rows)
        CALLS.append((batch.tag.sequence, batch.records.num_rows))
        self.counts.take(batch.tag.lane, batch.records)
        self.values += batch.records["value"].to_pylist()

    def snapshot(self) -> pa.Table | None:
        return self.counts.snapshot()

    def flush(self, checkpoint: Any) -> None:
        if self.values:
            payload = {"id": uuid4().hex, "values": ",".join(map(str, self.values))}
            self.flushed[checkpoint] = [ps.Committable(self.operator, len(self.values), payload)]
            self.values = []

    def prepare(self, checkpoint: Any) -> list[ps.Committable]:
        return self.flushed.pop(checkpoint, [])


class Showing:
    def commit(self, permit: Any) -> None:
        for each in permit.committables:
            SHOWN.setdefault(each.payload["id"], [int(value) for value in each.payload["values"].split(",")])

    def clean(self, keep: Any, claims: Any = ()) -> None:
        pass


def test_checkpoint_comes_within_a_batch_of_a_sink_that_takes_few_rows_at_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "SHOWN", {})
    monkeypatch.setitem(globals(), "CALLS", [])

    def flow() -> ps.Flow:
        made = ps.Flow("slow-sink", lanes=1)
        made.from_tables([pa.table({"value": range(5_000)})], name="rows").write_to(Slow(0.02), name="slow")
        return made

    checkpoints = ps.Checkpoints(tmp_path / "state", every="20ms")
    with ps.run_local(flow(), checkpoints=checkpoints) as job:
        job.wait_until(lambda status: len(SHOWN) >= 3, timeout=60)
    shown = [value for values in SHOWN.values() for value in values]
    assert 0 < len(shown) < 5_000
    assert shown == list(range(len(shown)))
    job = ps.run_local(flow(), checkpoints=checkpoints).wait(60)
    assert job.status().restored_from is not None
    assert [value for values in SHOWN.values() for value in values] == list(range(5_000))
    assert {rows for _, rows in CALLS} == {100}
    assert {number for number, _ in CALLS} == set(range(50)), "a part has the same number in every attempt"
    assert job.audit().clean


def test_checkpoint_waits_for_a_part_of_a_batch_of_a_users_sink_that_says_nothing(tmp_path, monkeypatch) -> None:
    """It takes 20 s for its only batch; the first part has a second."""
    monkeypatch.setitem(globals(), "SHOWN", {})
    monkeypatch.setitem(globals(), "CALLS", [])

    def flow(for_a_row: float) -> ps.Flow:
        made = ps.Flow("slow-rows", lanes=1)
        made.from_tables([pa.table({"value": range(20_000)})], name="rows").write_to(Slow(0.0, for_a_row, None))
        return made

    checkpoints = ps.Checkpoints(tmp_path / "state", every="20ms")
    with ps.run_local(flow(0.001), checkpoints=checkpoints) as job:
        job.wait_until(lambda status: len(SHOWN) >= 3, timeout=60)
    numbers = [number for number, _ in CALLS]
    assert numbers == sorted(set(numbers)), "no two parts have the same number"
    shown = [value for values in SHOWN.values() for value in values]
    assert shown == list(range(len(shown)))
    assert 0 < len(shown) < 20_000
    job = ps.run_local(flow(0.0), checkpoints=checkpoints).wait(60)
    assert job.status().restored_from is not None
    assert [value for values in SHOWN.values() for value in values] == list(range(20_000))
    assert job.audit().clean


def test_a_users_sink_that_wants_whole_batches_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "SHOWN", {})
    monkeypatch.setitem(globals(), "CALLS", [])
    flow = ps.Flow("whole", lanes=1)
    flow.from_tables([pa.table({"value": range(20_000)})], name="rows").write_to(Slow(0.0, at_once=65_536))
    ps.run_local(flow, checkpoints=tmp_path / "state").wait(60)
    assert CALLS == [(0, 20_000)]


GATE = threading.Event()


@dataclass(frozen=True)
class Held:
    """A user's operator that waits in its call."""

    kind: str = "held"

    def output_schema(self, inputs: Any) -> pa.Schema:
        return inputs[0]

    def build(self, context: Any, inputs: Any, restored: Any) -> Any:
        return RunningHeld()

    def describe(self) -> str:
        return "wait"


class RunningHeld(ps.Stateless):
    def process(self, port: int, batch: ps.Batch, out: Any) -> None:
        GATE.wait(60)
        out.emit(batch)


def test_who_waits_for_a_call_of_a_users_operator_is_told_of_rows_at_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "GATE", threading.Event())
    flow = ps.Flow("held", lanes=1)
    flow.from_tables([pa.table({"value": range(10)})], name="rows").apply(Held()).collect("values")
    with ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path / "state", every="20ms")) as job:
        until = time.monotonic() + 60
        while not any("rows_at_once" in line for line in job.why()) and time.monotonic() < until:
            time.sleep(0.01)
        told = job.why()
        GATE.set()
        job.wait(60)
    assert any("has been at a piece" in line and "rows_at_once" in line for line in told), told
