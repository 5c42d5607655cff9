"""With ``audit="content"`` the rows of sources are proven, too: from their splits to the first operator, and, where no
operator between changes them, on to what is visible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

import penstock as ps
from penstock.actors.audit.audit import Audit, last_state
from penstock.actors.client.job import Job
from penstock.engine.core.elements import Batch
from penstock.engine.core.errors import AuditError
from penstock.engine.operators.sequence.union import RunningUnion
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.sources import split_queue
from support.random_tables import random_table

ROWS, SPLITS = 12, 64
SCHEMA = pa.schema([("n", pa.int64())])


def often(folder: Path, **options: Any) -> ps.Checkpoints:
    return ps.Checkpoints(folder, every="20ms", retention="always", **options)


def interrupted(flow: ps.Flow, checkpoints: ps.Checkpoints, parallelism: int, audit: str = "content") -> None:
    with ps.run_local(flow, parallelism=parallelism, checkpoints=checkpoints, audit=audit) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, 60)


def grades(audit: Audit) -> dict[str, str]:
    return {id: str(grade) for id, grade in audit.grades.items()}


def told(audit: Audit, id: str) -> str:
    return next(line for line in str(audit).splitlines() if f" {id}: " in line)


# ---------------------------------------------------------------- what is exact is proven


def unchanged(tmp_path: Path, data: list[pa.Table], rate: float = 0.0, order: Any = "deterministic") -> ps.Flow:
    """Rows that come to the sinks as they were: through exchanges, a union, a sort; and behind a projection."""
    flow = ps.Flow("unchanged", lanes=4, order=order)
    rows = flow.from_tables(data, name="rows", rate=rate)
    more = flow.from_tables(data[:5], name="more")
    rows.write_parquet(tmp_path / "plain", name="plain")
    rows.union(more).partition_by("int64").write_parquet(tmp_path / "moved", name="moved")
    rows.union(rows).union(more).gather().write_parquet(tmp_path / "twice", name="twice")
    rows.project("int64").write_parquet(tmp_path / "other", name="other")
    return flow


@pytest.mark.parametrize(
    ("seed", "options"), [(0, {}), (1, {"alignment": "unaligned"}), (2, {}), (3, {"alignment_timeout": "1ms"})]
)
def test_rows_are_proven_from_splits_to_readers_whatever_interrupts_the_job(
    tmp_path: Path, seed: int, options: dict[str, Any]
) -> None:
    random = Random(seed)
    data = [random_table(random, ROWS) for _ in range(SPLITS)]
    order = "arrival" if options else "deterministic"
    for _ in range(2):
        slow = unchanged(tmp_path, data, 300.0, order)
        interrupted(slow, often(tmp_path / "state", **options), random.choice([1, 2, 3]))
    flow = unchanged(tmp_path, data, 0.0, order)
    job = ps.run_local(flow, parallelism=seed % 3 + 1, checkpoints=tmp_path / "state", audit="content")
    audit = job.wait(60).audit()
    assert job.status().restored_from is not None
    assert set(grades(audit).values()) == {"proven"}
    assert f"proven ({ROWS * SPLITS:,} rows read again)" in told(audit, "rows")
    for sink in ("plain", "moved", "twice"):
        assert told(audit, sink).endswith("rows read back), from its sources on")
    assert "from its input on: " in told(audit, "other")
    assert "makes other rows of its input" in told(audit, "other")


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_files_that_did_not_tell_their_length_and_are_stored_in_other_units_are_proven(
    tmp_path: Path, parallelism: int
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(1, 5):
        text = "".join(f"{n},2024-01-01 00:00:{n % 60:02}\n" for n in range(number, number * 100))
        (tmp_path / "in" / f"{number}.csv").write_text("n,at\n" + text)
    flow = ps.Flow("files")
    rows = flow.read_csv(str(tmp_path / "in"), name="rows")
    rows.write_parquet(tmp_path / "out", name="out")
    assert rows.schema.field("at").type == pa.timestamp("s")
    audit = ps.run_local(flow, parallelism=parallelism, checkpoints=tmp_path / "s", audit="content").wait(60).audit()
    assert grades(audit) == {"rows": "proven", "out": "proven"}
    assert audit.sinks[0].from_sources


def test_pruned_columns_are_read_again_as_they_were_read(tmp_path: Path) -> None:
    table = pa.table({"n": range(1000), "x": range(1000)})
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=100)
    flow = ps.Flow("pruned")
    flow.read_parquet(str(tmp_path / "in.parquet"), name="rows").filter("n >= 750").project("n").collect("found")
    job = ps.run_local(flow, audit="content")
    assert job.plan.sources["rows"].schema.names == ["n"]
    assert grades(job.wait(60).audit()) == {"rows": "proven", "found": "proven"}


def test_every_epoch_is_proven() -> None:
    flow = ps.Flow("epochs", lanes=2)
    flow.from_tables([pa.table({"n": range(at, at + 10)}) for at in range(5)], name="rows").feed(10, epochs=3)
    job = ps.run_local(flow, parallelism=2, audit="content")
    with job.feed().reader(timeout=60) as reader:
        assert sum(records.num_rows for _ in range(3) for records in reader) == 150
    audit = job.wait(60).audit()
    assert audit.sources[0].rows == 150
    assert audit.sources[0].grade == "proven"


def test_stopped_job_is_compared_as_far_as_it_has_read(tmp_path: Path) -> None:
    data = [random_table(Random(7), ROWS) for _ in range(SPLITS)]
    job = ps.run_local(unchanged(tmp_path, data, 600.0), checkpoints=often(tmp_path / "state"), audit="content")
    job.wait_until(lambda status: status.checkpoints_completed >= 2, 60)
    job.stop(timeout=60)
    audit = job.wait(60).audit()
    assert all(source.same for source in audit.sources)
    assert set(grades(audit).values()) == {"unknown", "proven"}
    assert "the job is stopped: rows may be on their way" in told(audit, "plain")


# ---------------------------------------------------------------- what is not exact fails the job


@dataclass(frozen=True)
class Numbers:
    """A split of a source of one's own."""

    number: int

    @property
    def id(self) -> str:
        return f"part-{self.number}"

    @property
    def rows(self) -> int | None:
        return ROWS

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        for at in range(start, ROWS):
            yield pa.record_batch({"n": pa.array([self.number * ROWS + at])}, SCHEMA)


class OneTooEarly(Numbers):
    """Opened amid its rows it begins one row too early, and ends one too early."""

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        for records in super().open(max(0, start - 1)):
            if not start or records["n"][0].as_py() != self.number * ROWS + ROWS - 1:
                yield records


@dataclass(frozen=True)
class Source:
    split: type[Numbers] = Numbers
    reads_once: bool = False
    kind = "numbers"
    schema = SCHEMA

    def splits(self) -> list[Numbers]:
        return [self.split(number) for number in range(SPLITS)]

    def describe(self) -> str:
        return "numbers"


def numbers(tmp_path: Path, source: Source, rate: float = 0.0) -> ps.Flow:
    flow = ps.Flow("numbers", lanes=4)
    flow.from_source(source, name="rows", rate=rate).gather().write_parquet(tmp_path / "out", name="out")
    return flow


def stands_amid_a_split(flow: ps.Flow, folder: Path) -> bool:
    """Whether the job's last checkpoint does."""
    cursors = last_state(plan_job(flow), str(folder)) if folder.exists() else {}
    return bool(cursors) and any(cursors["rows"]["row"].to_pylist())


@pytest.mark.parametrize(("split", "grade"), [(OneTooEarly, "wrong"), (Numbers, "proven")])
def test_row_that_is_read_again_after_a_restore_fails_the_job(
    tmp_path: Path, split: type[Numbers], grade: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 5)
    source = Source(split)
    while not stands_amid_a_split(numbers(tmp_path, source), tmp_path / "state"):
        interrupted(numbers(tmp_path, source, 100.0), often(tmp_path / "state"), 2)
    state = tmp_path / "state"
    with ps.run_local(numbers(tmp_path, source), parallelism=3, checkpoints=state, audit="content") as job:
        job.wait_until(lambda status: status.is_over, 60)
        audit = job.audit()
        assert audit.sources[0].grade == grade, str(audit)
        assert audit.gaps == audit.repeats == 0, "counts do not see it"
        if grade == "wrong":
            with pytest.raises(AuditError, match="rows were lost, repeated or altered on their way, at rows") as caught:
                job.wait()
            assert "other rows than in part-" in str(caught.value)


def changed(records: pa.RecordBatch) -> pa.RecordBatch:
    values = records.column(0).to_pylist()
    return pa.record_batch([pa.array([values[0] + 1, *values[1:]], records.schema.types[0])], records.schema)


def table_flow(tmp_path: Path) -> ps.Flow:
    csv.write_csv(pa.table({"n": range(100)}), tmp_path / "in.csv")
    flow = ps.Flow("table")
    rows = flow.read_csv(str(tmp_path / "in.csv"), name="rows")
    rows.union(flow.from_tables([pa.table({"n": [7]})], name="more")).write_parquet(tmp_path / "out", name="out")
    return flow


def over(tmp_path: Path, audit: str) -> Job:
    job = ps.run_local(table_flow(tmp_path), checkpoints=tmp_path / "state", audit=audit)
    job.wait_until(lambda status: status.is_over, 60)
    return job


@pytest.mark.parametrize(("audit", "seen"), [("content", True), ("counts", False)])
def test_row_that_is_lost_behind_a_split_fails_the_job(
    tmp_path: Path, audit: str, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = split_queue.rows_of
    monkeypatch.setattr(split_queue, "rows_of", lambda split, start: (each.slice(1) for each in read(split, start)))
    monkeypatch.setattr("penstock.engine.sources.memory.MemorySplit.rows", None)
    job = over(tmp_path, audit)
    if not seen:
        assert "wrong" not in grades(job.wait().audit()).values()
        return
    with pytest.raises(AuditError, match="altered on their way, at rows, more"):
        job.wait()
    assert job.audit().sinks[0].grade == "proven", "it took what its sources handed on"


@pytest.mark.parametrize(("audit", "seen"), [("content", True), ("counts", False)])
def test_value_that_is_altered_before_the_first_operator_fails_the_job(
    tmp_path: Path, audit: str, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = split_queue.SplitQueue.take

    def altered(*given: Any, **options: Any) -> Any:
        found = take(*given, **options)
        return changed(found) if isinstance(found, pa.RecordBatch) else found

    monkeypatch.setattr(split_queue.SplitQueue, "take", altered)
    job = over(tmp_path, audit)
    if seen:
        with pytest.raises(AuditError, match="altered on their way, at rows, more"):
            job.wait()
    else:
        assert "wrong" not in grades(job.wait().audit()).values()


@pytest.mark.parametrize(("audit", "seen"), [("content", True), ("counts", False)])
def test_value_that_is_altered_between_source_and_sink_fails_the_job(
    tmp_path: Path, audit: str, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = RunningUnion.process

    def altered(self: RunningUnion, port: int, batch: Batch, out: Any) -> None:
        process(self, port, Batch(changed(batch.records), batch.tag), out)

    monkeypatch.setattr(RunningUnion, "process", altered)
    job = over(tmp_path, audit)
    if not seen:
        assert "wrong" not in grades(job.wait().audit()).values()
        return
    with pytest.raises(AuditError, match="altered on their way, at out") as caught:
        job.wait()
    assert "wrong (other rows than its sources handed on)" in str(caught.value)
    audit_found = caught.value.audit
    assert audit_found is not None
    assert not audit_found.clean
    assert grades(audit_found) == {"rows": "proven", "more": "proven", "out": "wrong"}


# ---------------------------------------------------------------- what cannot be known is told


def test_source_that_is_read_once_is_counted_and_its_sink_is_proven_from_there(tmp_path: Path) -> None:
    flow = numbers(tmp_path, Source(reads_once=True))
    audit = ps.run_local(flow, checkpoints=tmp_path / "state", audit="content").wait(60).audit()
    assert grades(audit) == {"rows": "counted", "out": "proven"}
    assert "counted (its rows can be read only once)" in str(audit)
    assert audit.sinks[0].from_sources


def test_inputs_that_are_gone_at_the_end_are_counted(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"n": range(100)}), tmp_path / "in.parquet")
    flow = ps.Flow("gone")
    flow.read_parquet(str(tmp_path / "in.parquet"), name="rows").write_parquet(tmp_path / "out", name="out")
    job = ps.run_local(flow, checkpoints=tmp_path / "state", audit="content")
    job.wait_until(lambda status: status.is_over, 60)
    (tmp_path / "in.parquet").unlink()
    audit = job.wait().audit()
    assert grades(audit) == {"rows": "counted", "out": "proven"}
    assert "its splits cannot be read again: " in str(audit)


def test_rows_that_nobody_needed_are_counted(tmp_path: Path) -> None:
    flow = ps.Flow("limited")
    flow.from_source(Source(), name="rows").limit(10).write_parquet(tmp_path / "out", name="out")
    audit = ps.run_local(flow, checkpoints=tmp_path / "state", audit="content").wait(60).audit()
    assert grades(audit) == {"rows": "counted", "out": "proven"}
    assert "counted (rows that nobody needed were left)" in str(audit)


def test_rows_that_were_handed_on_without_a_look_are_counted(tmp_path: Path) -> None:
    for audit in ("content", "counts"):
        interrupted(numbers(tmp_path, Source(), 300.0), often(tmp_path / "state"), 2, audit)
    job = ps.run_local(numbers(tmp_path, Source()), checkpoints=tmp_path / "state", audit="content")
    found = job.wait(60).audit()
    assert grades(found) == {"rows": "counted", "out": "counted"}
    assert "rows were handed on without a look at their content" in told(found, "rows")


def test_split_sets_are_unknown_and_their_sink_is_proven_from_there(tmp_path: Path) -> None:
    flow = ps.Flow("fed")
    flow.from_split_sets(SCHEMA, name="rows").write_parquet(tmp_path / "out", name="out")
    job = ps.run_local(flow, checkpoints=tmp_path / "state", audit="content")
    job.add_splits({"rows": [pa.table({"n": [1, 2, 3]})]})
    job.no_more_splits()
    audit = job.wait(60).audit()
    assert grades(audit) == {"rows": "unknown", "out": "proven"}
    assert audit.sinks[0].from_sources


def test_rows_of_another_flow_are_not_held_against_this_one(tmp_path: Path) -> None:
    def flow(source: str, rate: float = 0.0) -> ps.Flow:
        made = ps.Flow("changing", lanes=2)
        made.from_source(Source(), name=source, rate=rate).write_parquet(tmp_path / "out", name="out", mode="append")
        return made

    job = ps.run_local(flow("first", 300.0), checkpoints=often(tmp_path / "a"), audit="content")
    job.wait_until(lambda status: status.checkpoints_completed >= 2, 60)
    saved = job.stop(timeout=60, aligned=True)
    options = {"from_snapshot": saved.path, "allow_changes": True, "audit": "content"}
    audit = ps.run_local(flow("second"), checkpoints=tmp_path / "b", **options).wait(60).audit()
    assert grades(audit) == {"second": "proven", "out": "proven"}
    assert "from its input on: the job goes on from a snapshot, which may be of another flow" in str(audit)


def test_nothing_is_digested_or_read_again_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("nobody asked for it")

    monkeypatch.setattr("penstock.engine.integrity.row_digests.RowDigest.of", refuse)
    monkeypatch.setattr("penstock.actors.audit.audit.read_again", refuse)
    job = ps.run_local(numbers(tmp_path, Source()), checkpoints=tmp_path / "state")
    assert set(grades(job.wait(60).audit()).values()) == {"counted"}
    assert not [name for name in last_state(job.plan, job.folder)["rows"].column_names if "digest" in name]
