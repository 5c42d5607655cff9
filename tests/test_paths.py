"""Paths: one rule for when they are resolved, and names that are not UTF-8."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.files.paths import absolute


def test_a_name_that_is_not_utf8_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    with open(folder + b"/rows.parquet", "wb") as file:
        pq.write_table(pa.table({"a": [1]}), file)
    with pytest.raises(ConfigurationError, match=r"holds a name that is not UTF-8: b'.*\\xff'"):
        ps.Flow("named").read_parquet(str(tmp_path))
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigurationError, match=r"the path b'.*\\xff/rows.parquet' is not UTF-8"):
        absolute("rows.parquet")


def test_a_relative_checkpoint_folder_is_resolved_when_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ps.Checkpoints("state")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    flow = ps.Flow("relative")
    flow.from_tables(pa.table({"a": [1]})).collect("out")
    ps.run_local(flow, checkpoints=asked).wait(30)
    assert asked.folder == str(tmp_path / "state")
    assert (tmp_path / "state" / "relative").is_dir()
    assert not (tmp_path / "elsewhere" / "state").exists()


def test_a_removed_checkpoint_folder_is_told_as_removed(tmp_path: Path) -> None:
    flow = ps.Flow("removed")
    flow.from_tables(pa.table({"a": [1]})).collect("out")
    with ps.run_local(flow, checkpoints=tmp_path / "state") as job:
        job.wait_until(lambda status: status.is_over, 30)
        shutil.rmtree(tmp_path / "state")
        with pytest.raises(ConfigurationError, match=r"are no longer in .*/state: they were removed, not by the job"):
            job.audit()
