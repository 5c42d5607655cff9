"""Figures of a job at Ray's Prometheus endpoint, and its log lines, read back from where Ray keeps them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest

from penstock.actors.hosting import measures
from penstock.actors.hosting.measures import METRICS, Kind, Metric
from penstock.actors.job.launch import run
from penstock.actors.job.runtime import Runtime
from penstock.actors.protocol.settings import Checkpoints
from penstock.engine.expressions.expressions import field
from penstock.engine.flow.flow import Flow

pytestmark = pytest.mark.ray

PATIENCE = 120.0
JOB = "told"
RARE = {measures.SPILLED, measures.RESTARTS, measures.FAILED, measures.QUEUED}
"""Counters that stay at nothing in a short, sound job, so Ray has never heard of them."""

OF_FEEDS = {metric for metric in METRICS if metric.name.startswith(("penstock_feed_", "penstock_rank_"))}
"""Those of flows that end in a feed, which this one does not (tests/actors/hosting/test_measures.py has them)."""


def slow_flow(out: Path) -> Flow:
    """Runs for four minutes, if it is let; a round takes less than a second."""
    flow = Flow(JOB, lanes=4)
    tables = [pa.table({"n": pa.array(range(10 * split, 10 * split + 10))}) for split in range(1200)]
    flow.from_tables(tables, rate=50.0).filter(field("n") >= 0).gather().write_parquet(out)
    return flow


def scrape() -> list[tuple[str, dict[str, str], float]]:
    """What the node's endpoint shows of the job: name, tags, value."""
    import ray

    (node,) = ray.nodes()
    with urlopen(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    samples = re.findall(r"^ray_(penstock_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE)
    found = [(name, dict(re.findall(r'(\w+)="(.*?)"', tags)), float(value)) for name, tags, value in samples]
    return [each for each in found if each[1]["job"] == JOB]


def exported(metric: Metric) -> str:
    """A name under which the endpoint shows the metric."""
    return metric.name + {Kind.COUNTER: "_total", Kind.HISTOGRAM: "_count", Kind.GAUGE: ""}[metric.kind]


def logged() -> Iterator[dict[str, Any]]:
    """The job's lines in the log files of the cluster's workers."""
    import ray

    (node,) = ray.nodes()
    for path in (Path(node["RayletSocketName"]).parents[1] / "logs").glob("worker-*.err"):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith('{"time"') and f'"{JOB}"' in line:
                yield json.loads(line)


def test_figures_are_at_rays_endpoint_and_events_in_its_logs(cluster: str, tmp_path: Path) -> None:
    places = Checkpoints(tmp_path / "state", every="500ms")
    flow = slow_flow(tmp_path / "out")
    with run(flow, parallelism=2, checkpoints=places, runtime=Runtime(metrics="200ms")) as job:
        deadline = time.monotonic() + PATIENCE
        wanted = {exported(metric) for metric in METRICS if metric not in RARE | OF_FEEDS}
        shown = scrape()
        while missing := wanted - {name for name, _, _ in shown}:
            assert time.monotonic() < deadline, f"never shown: {sorted(missing)}"
            with suppress(TimeoutError):  # between two scrapes; Ray exports every few seconds
                job.wait_until(lambda status: status.is_over, 0.5)
            shown = scrape()
        known = job.statistics()
        (edge,) = job.plan.exchanges
        sent = [
            (tags, value)
            for name, tags, value in shown
            if name == exported(measures.EDGE_ROWS) and tags["direction"] == "out"
        ]
        assert {(tags["stage"], tags["edge"]) for tags, _ in sent} == {(edge.source, edge.id)}
        now = sum(each.rows for found in known.values() for each in found.edges if each.direction == "out")
        assert 0 < sum(value for _, value in sent) <= now
        job.kill_task(job.tasks()[0])
        job.wait_until(lambda status: status.restarts > 0 and status.state == "running", PATIENCE)
    lines = list(logged())
    events = {line["event"] for line in lines if "event" in line}
    assert {"task_deployed", "job_state", "checkpoint_completed", "task_lost", "job_restart"} <= events
    deployed = {(line["task"], line["attempt"]) for line in lines if line.get("event") == "task_deployed"}
    assert {task for task, _ in deployed} == {str(task) for task in job.tasks()}
    assert len({attempt for _, attempt in deployed}) > 1
