"""The files of docs/deploy: manifest, image, runtime environment; they fit each other, the package, and KubeRay."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).parent.parent
DEPLOY = CHECKOUT / "docs" / "deploy"
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
RAY = next(each for each in PROJECT["optional-dependencies"]["ray"] if each.startswith("ray")).rpartition("==")[2]
SPEC = {
    "activeDeadlineSeconds", "backoffLimit", "clusterSelector", "deletionStrategy", "entrypoint", "entrypointNumCpus",
    "entrypointNumGpus", "entrypointResources", "jobId", "managedBy", "metadata", "rayClusterSpec", "runtimeEnvYAML",
    "shutdownAfterJobFinishes", "submissionMode", "submitterConfig", "submitterPodTemplate", "suspend",
    "ttlSecondsAfterFinished",
}  # fmt: skip
"""The fields of RayJobSpec in ray.io/v1."""
GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template", "numOfHosts"}


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "rayjob.yaml").read_text())}


@pytest.fixture(scope="module")
def spec(documents: dict[str, Any]) -> dict[str, Any]:
    return documents["RayJob"]["spec"]


def pods(spec: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = spec["rayClusterSpec"]
    return [each["template"]["spec"] for each in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_manifest_is_a_ray_job_of_known_fields(documents: dict[str, Any], spec: dict[str, Any]) -> None:
    job = documents["RayJob"]
    assert (job["apiVersion"], bool(job["metadata"]["name"])) == ("ray.io/v1", True)
    assert set(spec) <= SPEC
    assert {"entrypoint", "rayClusterSpec"} <= set(spec)
    for group in spec["rayClusterSpec"]["workerGroupSpecs"]:
        assert set(group) <= GROUP
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_lost_cluster_is_started_again_and_goes_on_from_the_folder_that_all_pods_see(
    documents: dict[str, Any], spec: dict[str, Any]
) -> None:
    assert spec["backoffLimit"] > 0
    places = re.findall(r"--(?:output|checkpoints) /(\w+)/\S+", spec["entrypoint"])
    assert len(places) == 2
    (folder,) = set(places)
    claim = documents["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pods(spec):
        volume = next(each for each in pod["volumes"] if "persistentVolumeClaim" in each)
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        assert mounts[volume["name"]] == f"/{folder}"
        assert mounts["memory"] == "/dev/shm"


def test_versions_are_those_of_the_package(spec: dict[str, Any]) -> None:
    assert spec["rayClusterSpec"]["rayVersion"] == RAY
    image = (DEPLOY / "Dockerfile").read_text()
    assert f"FROM rayproject/ray:{RAY}-py311" in image
    assert {pod["containers"][0]["image"] for pod in pods(spec)} == {re.search(r"-t (\S+)", image)[1]}
    assert PROJECT["version"] in re.search(r"-t (\S+)", image)[1]


def test_runtime_environments_name_the_wheel_and_pin_what_the_package_pins(spec: dict[str, Any]) -> None:
    assert set(yaml.safe_load(spec["runtimeEnvYAML"])) <= {"env_vars", "pip", "py_modules", "working_dir"}
    found = yaml.safe_load((DEPLOY / "runtime-env.yaml").read_text())
    assert found["py_modules"] == [f"dist/penstock-{PROJECT['version']}-py3-none-linux_x86_64.whl"]
    wanted = [*PROJECT["dependencies"], *chain.from_iterable(PROJECT["optional-dependencies"].values())]
    exact = {each.partition("==")[0]: each.partition(";")[0] for each in wanted if "==" in each.partition(";")[0]}
    for each in found["pip"]:
        name = re.match(r"[\w-]+", each)[0]
        assert each == exact.get(name, each), each
        assert any(one.startswith(name) for one in wanted), each


def test_entry_point_is_one_of_the_command_line(spec: dict[str, Any]) -> None:
    from typer.testing import CliRunner

    from penstock.jobs.cli import app

    words = spec["entrypoint"].split()
    assert words[:4] == ["python", "-m", "penstock.jobs", "run"]
    shown = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).output
    for option in (each for each in words if each.startswith("--")):
        assert option in shown
