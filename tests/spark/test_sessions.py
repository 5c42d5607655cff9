"""What a user's own session on Ray lacks, by its settings; without a session."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.actors.spark.sessions import JAVA_OPTIONS, closed_packages, worker_lacks
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.flow.flow import Flow

DRIVER, MASTER = "spark.driver.extraJavaOptions", "spark.ray.raydp_app_master.extraJavaOptions"


def test_settings_of_our_own_sessions_open_what_is_needed() -> None:
    assert closed_packages("17", dict.fromkeys((DRIVER, MASTER), JAVA_OPTIONS)) == {}


@pytest.mark.parametrize("java", ["1.8", "11"])
def test_java_that_closes_nothing_needs_no_settings(java: str) -> None:
    assert closed_packages(java, {}) == {}


def test_setting_that_opens_too_little_is_named_with_what_it_lacks() -> None:
    some = "-Dx=1 --add-opens java.base/java.lang=ALL-UNNAMED"
    assert closed_packages("17", {DRIVER: JAVA_OPTIONS, MASTER: some}) == {
        MASTER: ["java.io", "java.math", "java.net", "java.text", "java.util", "java.util.concurrent"]
    }
    assert list(closed_packages("17", {DRIVER: None})) == [DRIVER, MASTER]


def python_that(folder: Path, script: str) -> str:
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_python_of_this_process_lacks_nothing_and_one_that_is_elsewhere_cannot_be_judged(tmp_path: Path) -> None:
    assert worker_lacks(sys.executable) == ""
    assert worker_lacks(str(tmp_path / "none")) == ""


def test_python_without_our_packages_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    script = "echo \"ModuleNotFoundError: No module named 'pyspark'\" >&2; exit 1"
    assert worker_lacks(python_that(tmp_path, script)) == "ModuleNotFoundError: No module named 'pyspark'"


def test_python_of_another_version_is_told_apart(tmp_path: Path) -> None:
    assert worker_lacks(python_that(tmp_path, "echo 3.8")).startswith("it is Python 3.8, and this process runs 3.")


class ConnectClient:
    """Spark Connect's client of a server that answers, or does not."""

    def __init__(self, up: bool) -> None:
        self._up = up

    def schema(self, _plan: object) -> Any:
        from pyspark.sql.types import LongType, StructField, StructType

        return StructType([StructField("id", LongType())])

    def _analyze(self, method: str, **_: object) -> Any:
        if not self._up:
            raise ConnectionError("failed to connect to all addresses")
        return SimpleNamespace(is_streaming=False)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:The distutils package:DeprecationWarning")
@pytest.mark.parametrize(
    ("up", "words"),
    [(True, "belongs to one of Spark Connect"), (False, "the server of Spark Connect must be running")],
)
def test_frame_of_spark_connect_is_not_leased_and_its_server_is_named_when_it_is_gone(up: bool, words: str) -> None:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import Range

    session: Any = SimpleNamespace(client=ConnectClient(up))
    frame = DataFrame.withPlan(Range(0, 3, 1, 1), session)
    with pytest.raises(ConfigurationError, match=words) as caught:
        Flow("connected").from_spark(frame, handoff="lease")
    assert caught.value.remedy
