"""What a session that starts waits for, and what it says of those that are there; without a session."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest

from penstock.actors import spark_bridge
from penstock.engine.core.errors import SetupError


class Cluster:
    """A cluster on which things are free only from the third look on."""

    def __init__(self) -> None:
        self.looks = 0

    def shortage(self) -> str:
        self.looks += 1
        return "no CPU is free" if self.looks < 2 else ""

    def actors(self) -> list[str]:
        return ["penstock_SPARK_MASTER"] if self.looks < 3 else []


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    monkeypatch.setattr(spark_bridge, "AFTERMATH_POLL_SECONDS", 0.0)
    monkeypatch.setattr(spark_bridge, "_raydps", found.actors)
    return found


def test_session_after_another_waits_for_its_names_and_its_room(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_bridge, "_ended_at", [time.monotonic()])
    assert spark_bridge._room_for(cluster.shortage) == ""
    assert cluster.looks == 3


def test_first_session_waits_for_nobody(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_bridge, "_ended_at", [time.monotonic() - spark_bridge.AFTERMATH_SECONDS - 1])
    assert spark_bridge._room_for(cluster.shortage) == "no CPU is free"
    assert cluster.looks == 1


def test_session_beside_one_of_the_scripts_own_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SimpleNamespace(_active_spark_context=SimpleNamespace(master="local[1]"))
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(SparkContext=plain))
    with pytest.raises(SetupError, match=r"has a Spark session already, on 'local\[1\]'"):
        spark_bridge.start()
