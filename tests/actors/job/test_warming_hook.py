"""A script whose runtime environment names a hook of its own: what Ray would not call is not put in its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.actors.job import warming
from penstock.actors.job.warm_up import HOOK


class Script:
    """Ray's context in a script with these variables in its runtime environment."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._variables = variables

    def get_runtime_env_string(self) -> str:
        return json.dumps({"env_vars": self._variables})


@pytest.mark.parametrize(("variables", "kept"), [({"A": "1"}, 2), ({HOOK: "setup.of_the_user"}, 0)])
def test_a_script_with_a_hook_of_its_own_has_no_pool(
    variables: dict[str, str], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[int] = []
    monkeypatch.setattr("ray.get_runtime_context", lambda: Script(variables))
    monkeypatch.setattr(warming, "connection", lambda: None)
    monkeypatch.setattr(warming, "AtExit", lambda *_: None)
    scripts: Any = warming.Warming()
    monkeypatch.setattr(scripts, "_wake", lambda: None)
    monkeypatch.setattr(scripts._pool, "want", wanted.append)
    assert scripts.keep(2) == kept
    assert wanted == [kept]
