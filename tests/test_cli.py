"""The command line, as users type it."""

import json
import subprocess
import sys

import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.jobs import flights_local
from penstock.jobs.flights import build


def penstock(*arguments: str, cwd=None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.jobs", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


def test_help_names_the_commands_and_imports_neither_ray_nor_spark():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from penstock.jobs.cli import app\n"
        "result = CliRunner().invoke(app, ['--help'])\n"
        "assert result.exit_code == 0, result.output\n"
        "assert 'explain' in result.output and 'run' in result.output\n"
        "assert not {'ray', 'pyspark', 'raydp'} & set(sys.modules), 'a heavy module was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_jobs_are_listed():
    assert "flights:" in penstock("jobs").stdout


def test_explain_prints_pipelines_edges_lanes_and_guarantees():
    found = penstock("explain", "flights").stdout
    for words in (
        "stage flights: 2 subtasks",
        "4 lanes",
        "pipeline join-weather: source flights + source weather",
        "one-file: flights → one-file, all to all",
        "features: parquet sink, exactly once",
        "daily: parquet sink, exactly once",
    ):
        assert words in found, found


SCRIPT = """
import pyarrow as pa
import penstock as ps

def build(out: str, rows: int = 10):
    flow = ps.Flow("mine")
    flow.from_tables([pa.table({"n": range(rows)})]).filter("n > 3").write_parquet(out, mode="overwrite")
    return flow

flow = build("out")
fed = ps.Flow("fed")
fed.from_tables([pa.table({"n": range(3)})]).feed(2)

if __name__ == "__main__":
    raise SystemExit("run as the main program")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    return tmp_path


def test_flow_of_a_script_is_run_with_the_arguments_of_its_function(folder):
    done = penstock("run", "mine.py:build", "--local", "--with", "out=here", "--with", "rows=100", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "audit of job mine (finished)" in done.stdout
    assert ds.dataset(folder / "here").count_rows() == 96
    told = penstock("explain", "mine:build", "--with", "out=there", cwd=folder)
    assert "parquet-sink-1" in told.stdout
    assert not (folder / "there").exists()


PLAIN = """
import penstock as ps

flow = ps.Flow("plain")
flow.read_csv("orders.csv", name="orders").write_csv("out", name="kept")
"""


def test_sources_and_sinks_of_a_flow_are_elsewhere_where_that_is_said(folder):
    (folder / "plain.py").write_text(PLAIN)
    (folder / "orders.csv").write_text("id,item\n1,pen\n")
    (folder / "more").mkdir()
    (folder / "more" / "today.csv").write_text("id,item\n2,ink\n3,pad\n")
    (folder / "others.csv").write_text("id,price\n2,0.5\n")
    run = ("run", "plain.py:flow", "--local")
    done = penstock(*run, "--path", "orders=more", "--path", "kept=there", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert ds.dataset(folder / "there", format="csv").to_table()["item"].to_pylist() == ["ink", "pad"]
    assert not (folder / "out").exists()
    told = penstock("explain", "plain.py:flow", "--path", "orders=more", cwd=folder)
    assert "kept: csv sink" in told.stdout
    for wrong, words in (
        (
            "orders=others.csv",
            "the columns id int64, price double, and the flow was made for id int64, item string",
        ),
        ("orders=nowhere.csv", "nowhere.csv"),
        ("order=more", "those that have one: orders, kept"),
        ("orders", "write --path NAME=PATH"),
    ):
        refused = penstock(*run, "--path", wrong, cwd=folder)
        assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_job_that_is_over_is_run_again_where_that_is_asked_for(folder):
    again = ("run", "mine.py:build", "--local", "--checkpoints", "state", "--with", "out=here")
    assert penstock(*again, cwd=folder).returncode == 0
    refused = penstock(*again, "--with", "rows=50", cwd=folder)
    assert (refused.returncode, "job 'mine' is over" in refused.stderr) == (2, True)
    done = penstock(*again, "--with", "rows=50", "--restart", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert ds.dataset(folder / "here").count_rows() == 46


OPTIONAL = """
import penstock as ps
import pyarrow as pa

def build(rows: int | None = None, whole: bool | None = None, out: str = "out") -> ps.Flow:
    assert whole in (None, True), whole
    flow = ps.Flow("optional")
    flow.from_tables(pa.table({"n": range(rows or 3)})).write_parquet(out)
    return flow
"""


def test_arguments_that_may_be_none_are_what_else_they_may_be(tmp_path):
    (tmp_path / "may.py").write_text(OPTIONAL)
    done = penstock("run", "may.py:build", "--local", "--with", "rows=5", "--with", "whole=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ds.dataset(tmp_path / "out").count_rows() == 5
    done = penstock("explain", "may.py:build", "--with", "rows=x", cwd=tmp_path)
    assert (done.returncode, "--with rows=x is no int" in done.stderr) == (2, True)


@pytest.mark.parametrize("command", [("run", "--local"), ("explain",)])
def test_a_script_that_ends_itself_is_an_error(tmp_path, command):
    (tmp_path / "ends.py").write_text("import penstock as ps\nflow = ps.Flow('x')\nraise SystemExit(0)\n")
    done = penstock(command[0], "ends.py:flow", *command[1:], cwd=tmp_path)
    assert (done.returncode, "ends.py:flow ended itself, with sys.exit(0)" in done.stderr) == (2, True)


UNGUARDED = """
import penstock as ps
import pyarrow as pa
flow = ps.Flow("nightly")
flow.from_tables(pa.table({"n": [1, 2, 3]})).write_parquet("out", mode="overwrite")
ps.%s(flow, checkpoints="state", resume="restart").wait()
"""


@pytest.mark.parametrize("command", [("run", "--local"), ("explain",)])
@pytest.mark.parametrize("runner", ["run", "run_local"])
def test_a_script_without_a_guard_is_refused_before_it_has_begun_anything(tmp_path, runner, command):
    (tmp_path / "bare.py").write_text(UNGUARDED % runner)
    done = penstock(command[0], "bare.py:flow", *command[1:], cwd=tmp_path)
    assert (done.returncode, 'if __name__ == "__main__"' in done.stderr) == (2, True)
    assert "bare.py starts a job of flow 'nightly' when it is imported" in done.stderr
    assert [each.name for each in tmp_path.iterdir() if each.name != "__pycache__"] == ["bare.py"]


def test_flow_of_a_script_runs_on_ray(folder):
    done = penstock("run", "mine.py:flow", "--checkpoints", "state", "--parallelism", "1", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert ds.dataset(folder / "out").count_rows() == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "mine.py:build", "--local"), "mine.py:build(out: str, rows: int = 10) cannot be called: missing"),
        (("run", "mine.py:build", "--with", "out=o", "--with", "rows=x"), "--with rows=x is no int"),
        (("run", "mine.py:build", "--with", "out"), "write --with NAME=VALUE"),
        (("run", "mine.py:flow", "--with", "out=o"), "is no function"),
        (("run", "mine.py:fed"), "flow 'fed' ends in a feed"),
        (("run", "mine.py:flow", "--restart"), "say where it was: --checkpoints FOLDER"),
        (("run", "flights", "--restart"), "--restart is of flows"),
        (("run", "mine.py:flow", "--scale", "3"), "--scale is of ready-made jobs"),
        (("run", "flights", "--with", "a=b"), "'flights' is a ready-made job"),
    ],
)
def test_what_a_flow_cannot_be_run_with_is_told(folder, arguments, words):
    done = penstock(*arguments, cwd=folder)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_version_is_told():
    assert penstock("--version").stdout == f"penstock {ps.__version__}\n"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """One embedded run of the flights job: how it ended, and its folder of outputs."""
    output = tmp_path_factory.mktemp("embedded") / "out"
    return penstock("run", "flights", "--local", "--output", str(output), "--every", "200ms"), output


def test_embedded_run_writes_outputs_and_a_clean_audit(embedded):
    done, output = embedded
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "gaps 0, repeats 0" in done.stdout
    assert "336,776 rows in 128 splits" in done.stdout
    audit = json.loads((output / "audit.json").read_text())
    assert (audit["gaps"], audit["repeats"]) == (0, 0)
    assert ds.dataset(output / "features").count_rows() == 655_867
    assert ds.dataset(output / "daily").count_rows() == 3 * 365


@pytest.mark.slow
def test_scale_repeats_the_flights_over_shifted_years(tmp_path):
    done = penstock("run", "flights", "--local", "--scale", "2", "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    daily = ds.dataset(tmp_path / "out" / "daily").to_table()
    assert daily.num_rows == 2 * 3 * 365
    years = sorted({day.year for day in daily.column("day").to_pylist()})
    assert years == [2013, 2017]
    assert ds.dataset(tmp_path / "out" / "features").count_rows() == 2 * 655_867


def test_run_without_a_terminal_prints_plain_progress_lines(embedded):
    done, _ = embedded
    assert "\x1b" not in done.stdout
    assert any("rows" in line and "restarts 0" in line for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "fligths", "--local"), "choose one of: flights"),
        (("run", "flights", "--local", "--kill"), "no processes to end"),
        (("run", "flights", "--local", "--every", "soon"), "is no duration"),
        (("run", "flights", "--local", "--parallelism", "99"), "4 lanes"),
    ],
)
def test_mistake_is_told_in_a_sentence_with_a_remedy(tmp_path, arguments, words):
    done = penstock(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "remedy:" in done.stderr
    assert "Traceback" not in done.stderr
    assert "has read" not in done.stdout, "nothing is read before"


def test_run_into_the_outputs_of_an_earlier_run_is_refused_and_leaves_them_alone(embedded):
    done, output = embedded
    assert done.returncode == 0
    before = sorted((path, path.stat().st_mtime_ns) for path in output.glob("*/part-*"))
    assert before
    again = penstock("run", "flights", "--local", "--output", str(output))
    assert again.returncode == 2
    assert "remedy:" in again.stderr
    assert sorted((path, path.stat().st_mtime_ns) for path in output.glob("*/part-*")) == before


def test_embedded_flights_give_the_same_rows_at_any_parallelism(tmp_path):
    flights, weather, planes = flights_local.tables(splits=16)
    tables = []
    for parallelism in (1, 3):
        output = tmp_path / str(parallelism)
        ps.run_local(build(flights, weather, planes, output), parallelism=parallelism).wait()
        tables.append([ds.dataset(output / "daily").to_table(), ds.dataset(output / "features").to_table()])
    assert tables[0][0] == tables[1][0], "behind the gather even the sequence is the same"
    key = [("flight_id", "ascending"), ("phase", "ascending")]
    assert tables[0][1].sort_by(key) == tables[1][1].sort_by(key)
