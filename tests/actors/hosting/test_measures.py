"""What a job tells a metrics system: totals become growth, restarts repeat nothing, and the page has the same table."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from penstock.actors.hosting import measures
from penstock.actors.hosting.logs import EVENTS, FIELDS
from penstock.actors.hosting.measures import METRICS, JobFigures, Kind, Meter, Sample, TaskFigures, feed_samples
from penstock.coordinator.model.events import SnapshotTiming
from penstock.coordinator.model.statistics import (
    CheckpointStatistics,
    Counts,
    JobStatus,
    Overview,
    Spread,
    TaskCheckpoint,
    VertexCheckpoint,
)
from penstock.engine.core.identity import CheckpointId, TaskId
from penstock.engine.feed.status import FeedStatus, RankStatus
from penstock.engine.scheduler.protocol import WaitReason
from support.instruments import InstrumentsInMemory
from support.ray_jobs import ROWS_PER_SPLIT, SPLITS, gather_flow

ROWS = SPLITS * ROWS_PER_SPLIT
PAGE = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
TAGS = ("job", "stage", "0")


@pytest.fixture
def seen() -> InstrumentsInMemory:
    return InstrumentsInMemory()


def test_feed_tells_how_far_its_ranks_are_and_how_long_they_have_waited(seen: InstrumentsInMemory) -> None:
    meter = Meter(seen)
    for generation, waited in ((1, 2.0), (1, 3.5), (2, 0.5)):
        ranks = (RankStatus(generation, 0, 7, 9, waited, 12.5, 640), RankStatus(generation, 1, 6, 6, 0.0, 11.5, 0))
        meter.report(feed_samples("job", FeedStatus("fed", 100, 30, 800, ranks=ranks)))
    assert list(seen.counters.values()) == [4.0]
    assert sorted(seen.gauges.values()) == [0, 0, 2, 6, 7, 11.5, 12.5, 30, 640, 800]


# ------------------------------------------------------------------ the meter


def test_counter_tells_what_has_come_since_the_last_look(seen: InstrumentsInMemory) -> None:
    meter = Meter(seen)
    for total in (5, 5, 12):
        meter.report([Sample(measures.SPILLED, total, TAGS, "1.1")])
    assert list(seen.counters.values()) == [12]


def test_counter_goes_on_when_another_attempt_counts_from_nothing(seen: InstrumentsInMemory) -> None:
    meter = Meter(seen)
    meter.report([Sample(measures.SPILLED, 10, TAGS, "1.1")])
    meter.report([Sample(measures.SPILLED, 15, TAGS, "1.2")])  # more than before, and all of it new
    meter.report([Sample(measures.SPILLED, 16, TAGS, "1.2")])
    assert list(seen.counters.values()) == [26]


def test_gauge_that_is_not_told_any_more_goes_to_nothing(seen: InstrumentsInMemory) -> None:
    meter = Meter(seen)
    meter.report([Sample(measures.HELD, 7, TAGS), Sample(measures.HELD, 8, ("job", "stage", "1"))])
    meter.report([Sample(measures.HELD, 9, TAGS)])
    assert [*seen.shown(measures.HELD, subtask="0"), *seen.shown(measures.HELD, subtask="1")] == [9, 0]


# ------------------------------------------------------------------ tasks


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ps.Job:
    """At a pace, so that somebody waits for rows."""
    return ps.run_local(gather_flow(tmp_path_factory.mktemp("out"), rate=20_000.0), parallelism=2).wait(60)


def test_figures_of_tasks_are_those_of_their_statistics(job: ps.Job, seen: InstrumentsInMemory) -> None:
    meter, figures = Meter(seen), TaskFigures(job.plan)
    statistics = job.statistics()
    assert len(statistics) == 3
    meter.report(sample for found in statistics.values() for sample in figures.samples(found))
    (edge,) = job.plan.exchanges
    kept = ROWS - 100
    assert [seen.counted(measures.EDGE_ROWS, edge=edge.id, direction=way) for way in ("out", "in")] == [kept, kept]
    sent, taken = (seen.counted(measures.EDGE_BYTES, edge=edge.id, direction=way) for way in ("out", "in"))
    assert sent == taken > kept * 16
    batches = seen.counted(measures.EDGE_BATCHES, edge=edge.id, direction="in")
    assert 0 < batches <= SPLITS
    assert seen.shown(measures.EDGE_QUEUED, edge=edge.id) == [0, 0, 0]
    assert sum(seen.shown(measures.SOURCE_ROWS)) == ROWS
    assert seen.shown(measures.SOURCE_LEFT) == [0, 0]
    assert seen.counted(measures.OPERATOR_ROWS, operator="filter-1", direction="in") == ROWS
    assert seen.counted(measures.OPERATOR_ROWS, operator="filter-1", direction="out") == kept
    assert seen.counted(measures.BUSY) > 0
    assert seen.counted(measures.WAITING, reason="input") > 0
    assert {tags["job"] for tags in (dict(found) for _, found in seen.counters)} == {"gather"}


def test_statistics_of_a_job_are_also_by_stage(job: ps.Job) -> None:
    read, gather = job.statistics().stages.values()
    assert (read.subtasks, read.rows_read, read.rows_out) == (2, ROWS, ROWS - 100)
    assert (gather.subtasks, gather.rows_in, gather.bytes_in) == (1, ROWS - 100, read.bytes_out)


def test_lag_of_a_subtask_is_what_its_own_splits_still_hold(job: ps.Job, seen: InstrumentsInMemory) -> None:
    found = next(each for each in job.statistics().values() if each.sources)
    assert found.sources[0].rows == ROWS // 2
    samples = {sample.metric: sample.value for sample in TaskFigures(job.plan).samples(found)}
    assert (samples[measures.SOURCE_ROWS], samples[measures.SOURCE_LEFT]) == (ROWS // 2, 0)


def test_edges_inside_a_task_are_counted_too() -> None:
    flow = ps.Flow("inner")
    rows = flow.from_tables([pa.table({"n": [3, 1, 2]})])
    rows.sort("n").filter(ps.field("n") > 1).collect("top")
    job = ps.run_local(flow, parallelism=1).wait(60)
    edges = [each for found in job.statistics().values() for each in found.edges if "->" in each.edge]
    assert [(each.direction, each.rows, each.batches, each.queued) for each in edges] == [
        ("out", 3, 1, 0),
        ("in", 3, 1, 0),
    ]


# ------------------------------------------------------------------ the job


def checkpoint(number: int, status: str = "completed") -> CheckpointStatistics:
    """Took 4 s; its slowest task aligned for 1 s and wrote for half a second."""
    timing = SnapshotTiming(alignment=1.0, asynchronous=0.5)
    slowest = TaskCheckpoint(TaskId("stage", 0), 104.0, 4.0, 1000, timing)
    spread = Spread(0.0, 0.5, 1.0)
    vertex = VertexCheckpoint("stage", 1, 1, 1000, 600, Spread(), spread, Spread(), (slowest,))
    return CheckpointStatistics(
        checkpoint=CheckpointId(1, number),
        kind="checkpoint",
        cause="",
        status=status,
        triggered_at=100.0,
        latest_ack_at=104.0,
        duration=4.0,
        ended_at=105.0,
        acknowledged=1,
        total=1,
        bytes=1000,
        new_bytes=600,
        processed_bytes=0,
        persisted_bytes=0,
        vertices=(vertex,),
    )


def status(restarts: int, generation: int = 1) -> JobStatus:
    return JobStatus("job", "running", generation, restarts, 1, 0, None, None, {}, None, None, "")


def test_checkpoints_are_told_once_each(seen: InstrumentsInMemory) -> None:
    meter, figures = Meter(seen), JobFigures("job")
    first, second, pending = checkpoint(1), checkpoint(2), checkpoint(3, "in progress")
    shown = Overview(Counts(completed=1, failed=2), first, history=(pending, first))
    meter.report(figures.samples(status(1), shown, 110.0))
    meter.report(figures.samples(status(3), Overview(Counts(completed=2), second, history=(second, first)), 111.0))
    durations = {name: values for (name, _), values in seen.histograms.items()}
    assert durations == {
        measures.DURATION.name: [4.0, 4.0],
        measures.ALIGNMENT.name: [1.0, 1.0],
        measures.START_DELAY.name: [2.5, 2.5],
    }
    assert [seen.counted(metric) for metric in (measures.COMPLETED, measures.FAILED, measures.RESTARTS)] == [2, 2, 3]
    assert [*seen.shown(measures.AGE), *seen.shown(measures.SIZE), *seen.shown(measures.WRITTEN)] == [11, 1000, 600]
    assert seen.shown(measures.RUNNING) == [1]


def test_a_job_without_checkpoints_has_no_age(seen: InstrumentsInMemory) -> None:
    Meter(seen).report(JobFigures("job").samples(status(0), Overview(), 5.0))
    assert seen.shown(measures.AGE) == []


# ------------------------------------------------------------------ the page


def test_page_lists_every_metric_as_the_code_has_it() -> None:
    rows = re.findall(r"^\| `(penstock_\w+)` \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    assert rows == [(m.name, m.kind.value, m.unit, ", ".join(m.tags), m.meaning) for m in METRICS]
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert [m for m in vars(measures).values() if isinstance(m, measures.Metric)] == list(METRICS)


def test_page_lists_every_event_and_field_of_the_logs() -> None:
    listed = dict(re.findall(r"^\| `([a-z_]+)` \| ([^|]+?) \|$", PAGE, re.MULTILINE))
    assert {name: listed.get(name) for name in EVENTS} == EVENTS
    (fields,) = re.findall(r"`traceback`: ((?:`\w+`,?\s+)+`\w+`);", PAGE)
    assert tuple(re.findall(r"\w+", fields)) == FIELDS


def test_page_says_what_every_reason_for_waiting_means() -> None:
    reasons = {reason.value for reason in WaitReason}
    listed = set(re.findall(r"`waits for (\w+)", PAGE))
    assert reasons - listed == {"memory"}, "nothing waits for memory: who is over budget spills"
    assert listed <= reasons
    (told,) = re.findall(r"`reason` is what a driver waits for: ([\s\S]+?)\.\n", PAGE)
    assert reasons <= set(re.findall(r"`(\w+)`", told))


def test_names_say_their_unit() -> None:
    for metric in METRICS:
        assert metric.unit != "seconds" or metric.name.endswith("_seconds")
        assert metric.unit != "bytes" or metric.name.endswith("_bytes")
        assert metric.kind is not Kind.HISTOGRAM or metric.unit == "seconds"
