"""Resources on a real cluster: the actors hold what their stage asks for, and what is not there is refused at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import penstock as ps
from penstock.actors.cluster.fitting import NotFreeError
from penstock.engine.core.errors import ConfigurationError
from support.ray_jobs import tables, written

pytestmark = pytest.mark.ray

HEAD = "node:__internal_head__"
"""A resource that Ray's first node always has, one of it."""


def asking(out: Path, name: str, rate: float = 0.0, **asked: float) -> ps.Flow:
    flow = ps.Flow(name, lanes=4)
    flow.from_tables(tables(), name="rows", rate=rate).resources(resources=asked).gather().write_parquet(out)
    return flow


def test_actors_hold_what_their_stage_asks_for_and_the_rest_is_refused(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from penstock.actors.job import starting

    monkeypatch.setattr(starting, "FREE_SECONDS", 0.5)
    with pytest.raises(ConfigurationError, match=r"stage rows asks for 1 unicorn for each of its 2 subtasks") as found:
        ps.run(asking(tmp_path / "no", "no", unicorn=1))
    assert not isinstance(found.value, NotFreeError)
    with ps.run(asking(tmp_path / "out", "holding", rate=2000.0, **{HEAD: 0.5})) as job:
        job.wait_until(lambda status: status.state == "running", 60)
        until = time.monotonic() + 60
        while ray.available_resources().get(HEAD, 0.0) > 0 and time.monotonic() < until:
            time.sleep(0.1)
        assert ray.available_resources().get(HEAD, 0.0) == 0
        with pytest.raises(NotFreeError, match=r"free in the cluster are now 0"):
            ps.run(asking(tmp_path / "late", "late", **{HEAD: 0.5}))
        job.wait(120)
    monkeypatch.setattr(starting, "FREE_SECONDS", 60.0)
    ps.run(asking(tmp_path / "then", "then", **{HEAD: 0.5})).wait(120)  # what has just been held is awaited
    assert written(tmp_path / "then").num_rows == written(tmp_path / "out").num_rows > 0
