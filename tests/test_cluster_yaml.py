"""The cluster file, checked with Ray's own code: filled with Ray's defaults, then against Ray's schema."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

pytestmark = pytest.mark.ray

Config: TypeAlias = dict[str, Any]

CHECKOUT = Path(__file__).parent.parent
LISTS = ("setup_commands", "head_start_ray_commands", "worker_start_ray_commands")


@pytest.fixture(scope="module")
def config() -> Config:
    return yaml.safe_load((CHECKOUT / "cluster.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def prepare() -> Callable[[Config], Config]:
    """Ray's own way from the file to what the launcher uses; raises where the file is not valid."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    def prepare_and_validate(config: Config) -> Config:
        prepared = prepare_config(copy.deepcopy(config))
        validate_config(prepared)
        return prepared

    return prepare_and_validate


def test_cluster_file_passes_the_validation_of_ray(config: Config, prepare: Callable[[Config], Config]) -> None:
    prepared = prepare(config)
    assert prepared["cluster_name"] == "penstock"
    assert prepared["max_workers"] == len(config["provider"]["worker_ips"])


def test_validation_of_ray_refuses_a_misspelt_key(config: Config, prepare: Callable[[Config], Config]) -> None:
    from jsonschema import ValidationError

    with pytest.raises(ValidationError, match="setup_command"):
        prepare(config | {"setup_command": []})


@pytest.mark.parametrize("node", ["head", "worker"])
@pytest.mark.parametrize("needed", ["openjdk-17-jre", "pip install", "penstock[spark", "penstock-wheel/penstock-*.whl"])
def test_every_node_installs_java_and_penstock(
    config: Config, prepare: Callable[[Config], Config], node: str, needed: str
) -> None:
    assert needed in "\n".join(prepare(config)[f"{node}_setup_commands"])


@pytest.mark.parametrize("node", ["head", "worker"])
def test_every_node_starts_ray_with_a_token_that_was_copied_to_it(config: Config, node: str) -> None:
    starts = [command for command in config[f"{node}_start_ray_commands"] if "ray start" in command]
    assert len(starts) == 1
    assert "RAY_AUTH_MODE=token" in starts[0]
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"


def test_dashboard_listens_on_the_loopback_interface(config: Config) -> None:
    assert "--dashboard-host=127.0.0.1" in config["head_start_ray_commands"][-1]


@pytest.mark.parametrize("commands", LISTS)
def test_commands_are_correct_shell(config: Config, commands: str) -> None:
    for command in config[commands]:
        checked = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, ""), command
