"""What users may write for checkpoints, and what they are told when it is wrong."""

from __future__ import annotations

import pytest

from penstock.actors.settings import Checkpoints, seconds
from penstock.engine.errors import ConfigurationError


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


def test_no_interval_means_no_periodic_checkpoints() -> None:
    assert Checkpoints("state", every=None).for_coordinator().interval is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"every": 0}, "interval must be above 0"),
        ({"retained": 0}, "retained must be at least 1"),
        ({"folder": ""}, "the checkpoint folder is empty"),
        ({"timeout": "soon"}, "timeout='soon' is no duration"),
    ],
)
def test_wrong_setting_is_refused_where_it_is_given(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Checkpoints(**{"folder": "state", **wrong})  # type: ignore[arg-type]
