"""The scripts of the README, and of the pages that it leads to, run as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.jobs import flights_data

CHECKOUT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/running.md", "docs/training.md")


def scripts() -> list[str]:
    text = "".join((CHECKOUT / page).read_text() for page in PAGES)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def script() -> str:
    """The first one, a whole program."""
    return scripts()[0]


def late_flights(folder: Path, text: str) -> str:
    """What the program prints; its rows are looked at."""
    flights_data.unpack(folder)
    (folder / "late.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "late.py"], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    late = ds.dataset(folder / "late-flights").to_table()
    assert late.num_rows == 26_581
    assert late.schema.names == ["origin", "dest", "carrier", "hours"]
    return done.stdout


def test_split_sets_of_a_warm_plan_come_out_one_after_the_other(tmp_path, monkeypatch, capsys):
    [snippet] = [found for found in scripts() if "PlanTask" in found]
    columns = {"carrier": ["AA", "UA", "AA"], "dep_delay": [10, 20, 30]}
    (tmp_path / "history").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "history" / "one.parquet")
    monkeypatch.chdir(tmp_path)
    tables = [pa.table(columns), pa.table({"carrier": ["UA"], "dep_delay": [-5]}), pa.table(columns).slice(1, 1)]
    exec(snippet, {"ps": penstock, "tables": tables})
    assert capsys.readouterr().out.splitlines() == [
        "[{'carrier': 'AA', 'mean': 20.0}, {'carrier': 'UA', 'mean': 20.0}]",
        "[{'carrier': 'UA', 'mean': 20.0}]",
    ]


def test_stopped_job_goes_on_from_its_savepoint(tmp_path, monkeypatch):
    [snippet] = [found for found in scripts() if "from_snapshot" in found]
    monkeypatch.chdir(tmp_path)
    flow = penstock.Flow("stopped", lanes=2)
    tables = [pa.table({"x": range(at, at + 10)}) for at in range(0, 400, 10)]
    flow.from_tables(tables, rate=1000).write_parquet("out")
    job = penstock.run_local(flow, checkpoints="state")
    job.wait_until(lambda status: status.state == "running", 60)
    names = {"ps": penstock, "flow": flow, "job": job}
    exec(snippet.replace("ps.run(", "ps.run_local("), names)
    names["job"].wait(60)
    assert job.status().state == "stopped"
    assert sorted(ds.dataset("out").to_table()["x"].to_pylist()) == list(range(400))


def test_training_loop_reads_the_feed_and_binds_its_models(tmp_path, monkeypatch):
    [snippet] = [found for found in scripts() if "reader.commit" in found]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events").mkdir()
    pq.write_table(pa.table({"value": range(1100)}), tmp_path / "events" / "one.parquet")
    names = {"ps": penstock}
    exec(snippet.replace("ps.run(", "ps.run_local("), names)
    assert names["reader"].step == 5
    assert names["job"].status().state == "finished"
    assert names["feed"].resume("models/4").start == 4


def test_script_has_about_ten_lines():
    assert len([line for line in script().splitlines() if line.strip()]) <= 10


def test_script_writes_the_late_flights(tmp_path):
    assert "gaps 0, repeats 0" in late_flights(tmp_path, script())


@pytest.mark.ray
def test_script_runs_on_ray_too(tmp_path):
    on_ray = script().replace("ps.run_local(", "ps.run(")
    assert on_ray != script()
    assert "gaps 0, repeats 0" in late_flights(tmp_path, on_ray)
