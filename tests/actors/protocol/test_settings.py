"""What users may write for checkpoints, and what they are told when it is wrong."""

from __future__ import annotations

import pytest

from penstock.actors.hosting.supervisor import MISSES
from penstock.actors.job.runtime import Runtime
from penstock.actors.protocol.settings import Checkpoints, seconds
from penstock.coordinator.model.restarts import ExponentialDelay, FailureRate, FixedDelay
from penstock.coordinator.model.retention import RetentionPolicy
from penstock.engine.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("given", "expected"),
    [("500ms", 0.5), ("5s", 5.0), ("1m", 60.0), ("2h", 7200.0), (" 1.5 s ", 1.5), (3, 3.0), (0.25, 0.25)],
)
def test_duration_is_understood_as_seconds(given: str | float, expected: float) -> None:
    assert seconds(given, "every") == expected


@pytest.mark.parametrize("given", ["5", "5 sec", "", "-1s", "s", None, True])
def test_text_that_is_no_duration_is_refused_with_examples(given: object) -> None:
    with pytest.raises(ConfigurationError, match=r"every=.* is no duration[\s\S]*\"5s\""):
        seconds(given, "every")  # type: ignore[arg-type]


def test_settings_reach_the_coordinator() -> None:
    found = Checkpoints("state", every="250ms", min_pause="1s", timeout="1m", retained=3, max_restarts=2)
    settings = found.for_coordinator()
    assert (settings.interval, settings.min_pause, settings.timeout) == (0.25, 1.0, 60.0)
    assert (settings.retained, settings.max_restarts) == (3, 2)
    more = Checkpoints("state", retention="on_failure", tolerable_failures=2).for_coordinator()
    assert more.tolerable_failures == 2
    assert more.retention is RetentionPolicy.ON_FAILURE


@pytest.mark.parametrize(
    ("given", "overtakes", "first_aligned"),
    [
        ({}, True, 0.0),
        ({"alignment": "unaligned"}, True, 0.0),
        ({"alignment": "aligned"}, False, 0.0),
        ({"alignment_timeout": "2s"}, True, 2.0),
        ({"alignment": "aligned", "alignment_timeout": "2s"}, True, 2.0),
    ],
)
def test_tasks_cut_where_they_stand_unless_they_are_told_to_align_first(
    given: dict[str, str], overtakes: bool, first_aligned: float
) -> None:
    settings = Checkpoints("state", **given).for_coordinator()  # type: ignore[arg-type]
    assert (settings.unaligned, settings.alignment_timeout) == (overtakes, first_aligned)


def test_how_restarts_are_counted_is_said_by_a_word() -> None:
    rate = Checkpoints("state", restart="rate", max_restarts=3, restart_interval="5m", restart_delay="2s")
    assert rate.for_coordinator().restart_policy == FailureRate(3, interval=300.0, delay=2.0)
    fixed = Checkpoints("state", restart="fixed", max_restarts=1, restart_delay="2s")
    assert fixed.for_coordinator().restart_policy == FixedDelay(1, delay=2.0)
    usual = Checkpoints("state", restart_interval="2m").for_coordinator().restart_policy
    assert isinstance(usual, ExponentialDelay)
    assert (usual.attempts, usual.reset_after) == (10, 120.0)


def test_no_interval_means_no_periodic_checkpoints() -> None:
    assert Checkpoints("state", every=None).for_coordinator().interval is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"every": 0}, "interval must be above 0"),
        ({"retained": 0}, "retained must be at least 1"),
        ({"retention": "sometimes"}, "retention='sometimes' does not fit"),
        ({"folder": ""}, "is no path"),
        ({"timeout": "soon"}, "timeout='soon' is no duration"),
    ],
)
def test_wrong_setting_is_refused_where_it_is_given(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Checkpoints(**{"folder": "state", **wrong})  # type: ignore[arg-type]


def test_heartbeat_is_divided_into_questions() -> None:
    runtime = Runtime(heartbeat="30s", spares=2)
    assert runtime.period == 30.0 / MISSES
    assert runtime.lease_seconds == 120.0


def test_compression_holds_for_all_edges_or_for_those_named() -> None:
    assert Runtime().codecs(["a", "b"]) == {}
    assert Runtime(compression="lz4").codecs(["a", "b"]) == {"a": "lz4", "b": "lz4"}
    assert Runtime(compression={"a": "zstd"}).codecs(["a", "b"]) == {"a": "zstd"}


def test_without_a_heartbeat_there_is_no_lease() -> None:
    assert (Runtime(heartbeat=None).period, Runtime(heartbeat=None).lease_seconds) == (None, None)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"warm": -1}, "warm=-1 is no number of processes"),
        ({"spares": -1}, "spares=-1 is no number of processes"),
        ({"spares": 1.5}, "spares=1.5 does not fit"),
        ({"heartbeat": 0}, "heartbeat=0 is too short"),
        ({"reconnect": "0s"}, "reconnect='0s' is too short"),
        ({"heartbeat": "1m", "lease": "90s"}, "lease='90s' is shorter than twice the heartbeat of '1m'"),
        ({"poison_limit": 0}, "poison_limit=0 is no number of times"),
        ({"compression": "gzip"}, "compression='gzip' does not fit"),
        ({"compression": {"gather-1": "lzo"}}, "compression={'gather-1': 'lzo'} does not fit"),
        ({"heartbeat": "soon"}, "heartbeat='soon' is no duration"),
    ],
)
def test_mistaken_runtime_is_refused_where_it_is_made(given: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Runtime(**given)  # type: ignore[arg-type]
