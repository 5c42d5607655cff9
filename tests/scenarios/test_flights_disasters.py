"""The flights job on Ray loses a process at a seeded point, and its outputs equal the undisturbed run's.

The input is staged once as Arrow files, so Spark is not started. A point is a share of the rows read, so it does not
depend on how fast the machine is; which process dies there is drawn by the same seed.
"""

import random

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.engine.sources.ipc import IpcSource
from penstock.jobs import flights_local
from penstock.jobs.flights import DAILY_KEY, FEATURES_KEY, FlightsConfig, build
from penstock.jobs.flights_reference import compare
from support.sweeps import seeds

pytestmark = pytest.mark.ray

RATE = 120_000.0
"""Rows per second: a run lasts about three seconds, long enough to be disturbed anywhere."""

OUTPUTS = {"features": FEATURES_KEY, "daily": DAILY_KEY}


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """Folders of flights and weather, one file a split, and the planes."""
    folder = tmp_path_factory.mktemp("staged")
    flights, weather, planes = flights_local.tables()
    for name, splits in (("flights", flights), ("weather", weather)):
        (folder / name).mkdir()
        for number, table in enumerate(splits):
            with pa.ipc.new_file(folder / name / f"{number:05}.arrow", table.schema) as writer:
                writer.write_table(table)
    return folder, planes


def make_flow(staged, output) -> ps.Flow:
    folder, planes = staged
    sources = [IpcSource(folder / name) for name in ("flights", "weather")]
    return build(*sources, planes, output, FlightsConfig(rate=RATE))


@pytest.fixture(scope="module")
def undisturbed(staged, tmp_path_factory):
    """The outputs of a run that nothing happens to."""
    output = tmp_path_factory.mktemp("undisturbed")
    ps.run_local(make_flow(staged, output), parallelism=2, rate=0.0).wait()
    return {name: ds.dataset(output / name).to_table() for name in OUTPUTS}


def rows_read(job) -> int:
    return sum(source.rows for found in job.statistics().values() for source in found.sources)


def wait_for_rows(job, share: float) -> None:
    """Wait until the sources have read this share of all rows (or the job is over)."""
    total = sum(source.rows for source in job.plan.sources.values())
    while rows_read(job) < share * total and job.status().state == "running":
        pass


def check(job, output, undisturbed) -> None:
    for name, key in OUTPUTS.items():
        comparison = compare(ds.dataset(output / name).to_table(), undisturbed[name], key)
        assert comparison.is_equal, comparison.describe()
    audit = job.audit()
    assert audit.clean, str(audit)


@pytest.mark.parametrize("seed", seeds(2, of=10))
@pytest.mark.parametrize("victim", ["driver", "coordinator"])
def test_outputs_are_equal_when_a_process_is_killed_at_a_seeded_point(
    cluster, staged, undisturbed, tmp_path, victim, seed
):
    rng = random.Random(f"{victim} {seed}")
    share = rng.uniform(0.0, 0.95)
    checkpoints = ps.Checkpoints(tmp_path / "state", every=rng.choice(["100ms", "500ms", "1s"]))
    name = f"flights-{victim}-{seed}"
    with ps.run(make_flow(staged, tmp_path), name=name, parallelism=2, checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.state == "running", timeout=120)
        wait_for_rows(job, share)
        if victim == "driver":
            job.kill_task(rng.choice(job.tasks()))
        else:
            job.kill_coordinator()
        job.wait(timeout=180)
        status = job.status()
        check(job, tmp_path, undisturbed)
    assert status.restarts >= 1 or status.generation >= 2, "the disaster came too late to be one"
