"""Whatever way a job ends, nothing of it is left: no process, thread, named actor, or temporary file, and no noise.

The ways: success, an error, cancel, a script that just ends, one whose user function never returns, and Ctrl-C. Each in
a script of its own, on both runners; on Ray the cluster is the one of the other tests, and goes on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import Household, wait_end

TESTS = str(Path(__file__).parent.parent)
PATIENCE = 120.0

SCRIPT = """
import sys
import threading
import time
from pathlib import Path

import pyarrow.dataset as ds

import penstock as ps
from support.ray_jobs import expected, fails_at, gather_flow

OUT, ADDRESS, WAYS = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]


def stuck(batch):
    time.sleep(3600)
    return batch


def flow_for(way):
    if way in ("error", "stuck"):
        flow = ps.Flow(way, lanes=4)
        rows, function = expected(), fails_at(100) if way == "error" else stuck
        flow.from_tables([rows]).map_batches(function, schema=rows.schema).write_parquet(OUT / way)
        return flow
    return gather_flow(OUT / way, rate=0.0 if way == "success" else 300.0, name=way)


def start(way):
    flow = flow_for(way)
    job = ps.run(flow, address=ADDRESS) if ADDRESS else ps.run_local(flow)
    if ADDRESS:
        print("processes", job.coordinator_process(), *[each.pid for each in job.identities().values()], flush=True)
    else:
        print("embedded", flush=True)
    return job


def end(way):
    job = start(way)
    if way == "success":
        assert job.wait(120).status().state == "finished"
    elif way == "error":
        try:
            job.wait(120)
        except ps.errors.UserCodeError as error:
            print("raised", error.message, flush=True)
    else:
        job.wait_until(lambda status: status.state == "running", 120)
        if way == "cancel":
            job.cancel()
            assert job.wait(120).status().state == "cancelled"
        print("running", flush=True)
    if way == "interrupt":
        job.wait()
    if way in ("success", "error", "cancel"):
        assert [each.name for each in threading.enumerate() if each.name.startswith("penstock")] == []


if __name__ == "__main__":
    for way in WAYS:
        end(way)
    print("the end", flush=True)
"""


LEFT = ("left", "stuck")
"""Jobs that the script does not wait for."""


@pytest.fixture
def household(tmp_path: Path) -> Iterator[Household]:
    with Household(tmp_path) as household:
        yield household


def check(household: Household, tmp_path: Path, address: str, *ways: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (temporary := tmp_path / "temporary").mkdir()
    out = tmp_path / "out"
    path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
    program = household.python(
        "script.py", str(out), address, *ways, cwd=tmp_path, PYTHONPATH=path, TMPDIR=str(temporary)
    )
    interrupted = "interrupt" in ways
    processes = [program.wait_line("processes|embedded") for _ in ways]
    if interrupted:
        program.wait_line("running")
        program.interrupt()
    done = program.wait()
    assert done.returncode == (130 if interrupted else 0), str(done)
    left = [
        f"penstock: job {way!r} was not over when its script ended, and ends with it" for way in ways if way in LEFT
    ]
    told = [line.partition(":")[0] + ":" + line.split(":")[1] for line in done.stderr.splitlines()]
    assert told == (["penstock: interrupted"] if interrupted else left), str(done)
    assert ("raised" in done.stdout) == ("error" in ways), str(done)
    for pid in re.findall(r"\d+", " ".join(processes)):
        wait_end(int(pid), PATIENCE)
    assert household.wait_gone(PATIENCE) == []
    assert list(temporary.iterdir()) == []
    for way in ways:
        kept = {each.name for each in (out / way).iterdir()} - {"_penstock"}
        assert all(name.endswith(".parquet") and name[0] not in "._" for name in kept), (way, kept)
        assert bool(kept) == (way == "success"), (way, kept)


@pytest.mark.parametrize("way", ["success", "error", "cancel", "left", "stuck", "interrupt"])
def test_nothing_is_left_of_an_embedded_job(household: Household, tmp_path: Path, way: str) -> None:
    check(household, tmp_path, "", way)


@pytest.mark.ray
@pytest.mark.parametrize("ways", [("success", "error", "cancel", "left"), ("stuck", "interrupt")])
def test_nothing_is_left_of_a_job_on_ray(
    cluster: str, household: Household, tmp_path: Path, ways: tuple[str, ...]
) -> None:
    from ray.util import list_named_actors

    check(household, tmp_path, cluster, *ways)
    named = {each["name"] for each in list_named_actors(all_namespaces=True)}
    assert not named & {f"coordinator:{way}" for way in ways}
