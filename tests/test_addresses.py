"""What a user's address means, wherever it is given: to a function or on the command line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.actors.claims.place import place_in
from penstock.actors.claims.start import find_snapshot
from penstock.actors.storage.stores import open_store
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.files.paths import absolute, local_path
from penstock.jobs.cli import app
from penstock.jobs.verify_order import verify_order

TABLE = pa.table({"k": [1, 2]})


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_addresses_mean_what_they_say(tmp_path: Path) -> None:
    assert absolute("state") == str(tmp_path / "state")
    assert absolute(Path("state")) == str(tmp_path / "state")
    assert absolute("~/state") == str(tmp_path / "home" / "state")
    assert absolute("file:///data/a%23b") == "/data/a#b"
    assert absolute("FILE://localhost/data") == "/data"
    assert absolute("s3://bucket/state") == "s3://bucket/state"
    assert {absolute(f"{scheme}://Bucket/State") for scheme in ("S3", "s3a", "S3A")} == {"s3://Bucket/State"}
    assert {absolute(f"{scheme}://b/State?x=Y") for scheme in ("GS", "gcs", "gs")} == {"gs://b/State?x=Y"}
    assert absolute("./s3:/b") == str(tmp_path / "s3:" / "b")


@pytest.mark.parametrize(
    "given",
    ["", "a\0b", "file://scratch/state", "file:state", "file:///a#b", "file:///a?b", "~nobody-of-this-name/state",
     "s3:/bucket/state", Path("s3://bucket/state"), "gs:", b"state", "x" * 256, "ä" * 128, "x/" * 2048],
)  # fmt: skip
def test_what_is_neither_a_path_nor_a_url_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError):
        absolute(given)


def test_a_remote_address_is_refused_where_a_local_one_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="the report gs://b/x is on a file system"):
        local_path("gs://b/x", "the report")


def flow() -> ps.Flow:
    made = ps.Flow("addresses")
    made.from_tables([TABLE]).feed(2)
    return made


FOLDERS: dict[str, Callable[[Any], Any]] = {
    "Checkpoints": ps.Checkpoints,
    "run_local": lambda url: ps.run_local(flow(), checkpoints=url),
    "run": lambda url: ps.run(flow(), checkpoints=url),
    "replay": lambda url: ps.replay(flow(), step=0, checkpoints=url),
    "place_in": place_in,
    "open_store": open_store,
    "verify_order": lambda url: verify_order(url, url),
}
"""Wherever a checkpoint folder is given."""


@pytest.mark.parametrize(
    "given",
    [
        "hdfs://host/state",
        "abfs://b/x",
        "file://scratch/state",
        Path("s3://b/state"),
        "s3://k:s@b/state",
        "gs://b/x?a=b",
    ],
)
@pytest.mark.parametrize("where", FOLDERS)
def test_a_checkpoint_folder_where_no_log_can_be_is_refused_everywhere(where: str, given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"file system|names the host|is no URL|more than a place|are unknown"):
        FOLDERS[where](given)
    assert os.listdir() == []


@pytest.mark.parametrize("address", ["file://{}/home/state", "~/state"])
def test_checkpoints_lie_where_the_address_says(address: str, tmp_path: Path) -> None:
    with ps.run_local(flow(), checkpoints=ps.Checkpoints(address.format(tmp_path))) as job:
        job.wait_until(lambda status: status.state == "running", 60)
    assert (tmp_path / "home" / "state" / "addresses" / "log").is_dir()
    assert os.listdir() == ["home"]


def test_a_savepoint_and_a_snapshot_are_found_by_the_same_addresses() -> None:
    made = ps.Flow("saved")
    made.from_split_sets(TABLE.schema, name="in").collect("rows")
    job = ps.run_local(made, checkpoints="file://" + os.path.abspath("state"))
    saved = job.stop(savepoint="~/saved")
    assert saved.path == os.path.expanduser("~/saved")
    assert find_snapshot("~/saved", job.plan).root == find_snapshot(f"file://{saved.path}", job.plan).root
    with pytest.raises(ConfigurationError, match="is no URL"):
        find_snapshot(Path("s3://b/saved"), job.plan)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "flights", "--local", "--output", "hdfs://b/out"],
        ["run", "flights", "--local", "--output", "out", "--checkpoints", "hdfs://b/state"],
        ["verify-order", "hdfs://b/one", "two"],
        ["replay", "addresses:flow", "--step", "0", "--checkpoints", "hdfs://b/state"],
        ["replay", "addresses:flow", "--step", "0", "--output", "gs://b/batch.arrow"],
        ["replay", "s3://b/script.py:flow", "--step", "0"],
    ],
)
def test_the_command_line_refuses_what_the_functions_refuse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("addresses.py").write_text(
        "import penstock as ps\nimport pyarrow as pa\nflow = ps.Flow('addresses')\n"
        "flow.from_tables([pa.table({'k': [1, 2]})]).feed(2)\n"
    )
    monkeypatch.syspath_prepend(os.getcwd())
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 2, told.output
    assert "is on a file system" in told.output
    assert os.listdir() == ["addresses.py"] or "__pycache__" in os.listdir()
    assert not [name for name in os.listdir() if name.startswith(("s3", "gs", "out"))]
