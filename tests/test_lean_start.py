"""pyarrow imports no pandas for our sake: what it makes of values is the same as after pandas is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import importlib.util, math, sys
{before}
import penstock as ps
ps.Flow, ps.run_local
import pyarrow as pa
assert ("pandas" in sys.modules) is {loaded}
assert pa.array([1.0, math.nan]).null_count == 0
if {frames}:
    assert pa.table({{"x": [1.0]}}).to_pandas()["x"].tolist() == [1.0]
assert importlib.util.find_spec("pandas") is not None  # as libraries do that can go without
import pandas as pd
import pandas.testing
assert pa.array(pd.Series([1.0, math.nan])).null_count == 1, "pyarrow does not know a Series"
assert pa.table({{"x": pd.Series(["a", None])}})["x"].null_count == 1
assert pa.RecordBatch.from_pandas(pd.DataFrame({{"x": [1]}})).num_rows == 1
assert type(pd.__spec__.loader) is type(pd.__loader__) is type(pandas.testing.__loader__)
print("same")
"""


@pytest.mark.parametrize("before", ["", "import pandas"], ids=["later", "before"])
@pytest.mark.parametrize("frames", [False, True], ids=["series", "frames"])
def test_pyarrow_knows_pandas_as_soon_as_somebody_imports_it(before: str, frames: bool) -> None:
    script = SCRIPT.format(before=before, loaded=bool(before), frames=frames)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "same\n", done.stderr


JOB = """
import sys, tempfile
import penstock as ps
from pyarrow import parquet
import pyarrow as pa
flow = ps.Flow("a-job", lanes=2)
folder = tempfile.mkdtemp()
parquet.write_table(pa.table({"x": [1, 2, 3], "t": ["a", "b", None]}), folder + "/x.parquet")
flow.read_parquet(folder).filter("x > 1 and t is null").with_columns(y="x + 1").collect("rows")
assert ps.run_local(flow).wait().result("rows").column("y").to_pylist() == [4]
print("pandas" in sys.modules)
"""


def test_a_job_in_one_process_imports_no_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", JOB], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "False\n", done.stderr


MEMORY = """
import os
{before}
import penstock as ps
ps.Flow
print(os.environ.get("{name}"))
"""


@pytest.mark.parametrize(("name", "known"), [("MIMALLOC_ALLOW_THP", "0"), ("MIMALLOC_PURGE_DELAY", "500")])
@pytest.mark.parametrize("said", [None, "1"], ids=["ours", "user's"])
def test_memory_comes_in_small_pages_that_stay_a_while_unless_the_user_has_said_otherwise(
    name: str, known: str, said: str | None
) -> None:
    before = f"os.environ[{name!r}] = {said!r}" if said else ""
    env = {each: value for each, value in os.environ.items() if each != name}
    script = [sys.executable, "-c", MEMORY.format(before=before, name=name)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.stdout == f"{said or known}\n", done.stderr


def test_pages_are_small_before_pyarrow_is_loaded() -> None:
    """Later is too late: mimalloc looks once."""
    script = "import sys, penstock.engine; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "False\n", done.stderr


def test_process_of_a_task_imports_nothing_of_the_coordinator_nor_of_feeds() -> None:
    """Whoever waits for the successor of a dead process waits for its imports: these were half of ours."""
    script = """
import sys, penstock.actors.job.driver_actor
import penstock.actors.job.coordinator_actor  # Ray loads it with the coordinator's handle
heavy = ("coordinator.machine", "coordinator.checkpoint", "actors.hosting.coordinator_host", "actors.audit",
         "actors.claims", "actors.feed", "actors.spark", "engine.feed.server", "engine.flow",
         "engine.operators.aggregate", "engine.operators.join", "engine.operators.sequence", "engine.planner.pipelines",
         "jobs")
heavy = ("pyspark", "pandas", *(f"penstock.{name}" for name in heavy))
print([name for name in sys.modules if name.startswith(heavy)])
"""
    lean = f"from penstock.actors.process.lean_start import start_lean; start_lean()\n{script}"
    done = subprocess.run([sys.executable, "-c", lean], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr
