"""How many rows of a lane stand together in the order: what a flow says, what the plan chooses, what a job keeps."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.plan.rounds import EARLIER_ROUND_ROWS
from penstock.engine.planner.pipelines import LEAST_PACED, ROUND_QUOTA, plan_job

PATIENCE = 30.0
TABLES = [pa.table({"n": range(1_000 * at, 1_000 * at + 40)}) for at in range(8)]


def flow_of(*rates: float, lanes: int = 8, **options) -> ps.Flow:
    flow = ps.Flow("f", lanes=lanes, **options)
    streams = [flow.from_tables(TABLES, name=f"s{at}", rate=rate) for at, rate in enumerate(rates)]
    first = streams[0] if len(streams) == 1 else streams[0].union(*streams[1:])
    first.gather().write_parquet("out")
    return flow


def quotas(flow: ps.Flow, **options) -> list[int | None]:
    return [source.quota for source in plan_job(flow, **options).sources.values()]


def test_lane_reads_as_many_rows_a_round_as_the_flow_says() -> None:
    assert quotas(flow_of(0.0, 0.0, round_rows=77)) == [77, 77]
    assert quotas(flow_of(0.0)) == [ROUND_QUOTA]
    assert "a round reads 77 rows a lane" in flow_of(0.0, round_rows=77).explain()


@pytest.mark.parametrize(
    ("rate", "lanes", "rows"),
    [(20_000, 8, 1_250), (20_000, 32, LEAST_PACED), (10, 8, LEAST_PACED), (10**6, 1, ROUND_QUOTA)],
)
def test_round_of_a_source_with_a_rate_takes_half_a_second(rate: float, lanes: int, rows: int) -> None:
    assert quotas(flow_of(rate, lanes=lanes), parallelism=1) == [rows]


def test_slowest_source_says_how_long_rounds_are_unless_the_flow_does() -> None:
    assert quotas(flow_of(20_000, 0.0, 80_000)) == [1_250] * 3
    assert quotas(flow_of(20_000, round_rows=9)) == [9]


def test_rate_of_a_run_does_not_change_the_order() -> None:
    assert quotas(flow_of(0.0), rate=20_000.0) == quotas(flow_of(0.0))
    assert quotas(flow_of(20_000), rate=1.0) == quotas(flow_of(20_000))


def test_flow_that_says_nothing_has_the_identity_that_it_had() -> None:
    plain, paced, said = flow_of(0.0), flow_of(20_000), flow_of(0.0, round_rows=77)
    assert plain.fingerprint() == paced.fingerprint() == plain.with_rounds_of(5).fingerprint()
    assert len({plain.fingerprint(), said.fingerprint(), flow_of(0.0, round_rows=78).fingerprint()}) == 3


def test_flow_goes_on_with_the_rounds_that_its_checkpoint_was_taken_with() -> None:
    paced, said = flow_of(20_000), flow_of(20_000, round_rows=9)
    assert quotas(paced.with_rounds_of(0)) == [EARLIER_ROUND_ROWS], "versions that did not say"
    assert quotas(paced.with_rounds_of(55)) == [55]
    assert said.with_rounds_of(55) is said, "what the flow says itself holds"


@pytest.mark.parametrize("wrong", [0, -1, "many", 1.5, True])
def test_rows_of_a_round_are_a_number_from_one_on(wrong: object) -> None:
    with pytest.raises(ps.errors.FlowError, match="round_rows"):
        ps.Flow("f", round_rows=wrong)


def slow(output: Path, rate: float) -> ps.Flow:
    flow = ps.Flow("f", lanes=4)
    flow.from_tables(TABLES, rate=rate).gather().write_parquet(output)
    return flow


def test_job_keeps_the_rounds_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.planner.pipelines.LEAST_PACED", 7)
    with ps.run_local(
        slow(tmp_path / "out", 100.0), checkpoints=ps.Checkpoints(tmp_path / "state", every="50ms")
    ) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
    job = ps.run_local(slow(tmp_path / "out", 0.0), parallelism=3, checkpoints=tmp_path / "state").wait(PATIENCE)
    assert job.plan.round_rows == 12
    ps.run_local(slow(tmp_path / "whole", 100_000.0).with_rounds_of(12)).wait(PATIENCE)
    assert rows_in(tmp_path / "out") == rows_in(tmp_path / "whole")


def rows_in(folder: Path) -> list[int]:
    return [n for path in sorted(folder.rglob("*.parquet")) for n in pq.read_table(path)["n"].to_pylist()]
