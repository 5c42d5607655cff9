"""Starts the actors of a planned job on the cluster that this process is connected to.

Rules:

1. The script that starts a job owns its actors, so that they end with it. The coordinator's name is the job's lock.
2. Without ``checkpoints`` the job keeps its state in a temporary folder of this machine, which goes when the job is
   over, or with the script.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from typing import Any

import ray

from ..coordinator.settings import Settings
from ..engine.errors import ConfigurationError
from ..engine.identity import TaskId
from ..engine.plan import JobPlan
from .calls import sealed
from .coordinator_actor import CoordinatorOptions, coordinator_actor_class
from .driver_actor import DriverOptions, coordinator_name, driver_actor_class
from .environment import NAMESPACE
from .job import Job
from .resuming import Place


def start_job(plan: JobPlan, place: Place | None) -> Job:
    """Start the job, whose checkpoints go to ``place``. Raises ConfigurationError if its name is taken."""
    _refuse_taken_name(plan.name)
    place = place or _temporary_place()
    try:
        return _start(plan, place)
    except BaseException:
        place.release()
        raise


def _temporary_place() -> Place:
    if len([node for node in ray.nodes() if node["Alive"]]) > 1:
        raise ConfigurationError(
            "this cluster has several machines, and no checkpoint folder was given that all of them see",
            'pass checkpoints=ps.Checkpoints("/shared/folder")',
        )
    folder = tempfile.mkdtemp(prefix="penstock-")

    def release() -> None:
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(release)  # for scripts that neither wait for the job nor shut it down
    return Place(folder, Settings(interval=None), release)


def _refuse_taken_name(job: str) -> None:
    try:
        ray.get_actor(coordinator_name(job), namespace=NAMESPACE)
    except ValueError:
        return
    raise _taken(job)


def _taken(job: str) -> ConfigurationError:
    return ConfigurationError(
        f"a job named {job!r} is running on this cluster",
        "wait for it, cancel it, or run this one under another name: run(flow, name=…)",
    )


def _start(plan: JobPlan, place: Place) -> Job:
    shared = ray.put(plan)
    driver = driver_actor_class()
    token = secrets.token_bytes(32)
    drivers: dict[TaskId, Any] = {
        task: driver.remote(sealed(DriverOptions(task, place.folder, shared, token))) for task in plan.tasks()
    }
    validate = os.environ.get("PENSTOCK_VALIDATE") == "1"
    options = sealed(CoordinatorOptions(place.folder, place.settings, shared, drivers, validate))
    coordinator = coordinator_actor_class().options(name=coordinator_name(plan.name), namespace=NAMESPACE)
    try:
        actor = coordinator.remote(options)
    except ValueError as error:
        for each in drivers.values():
            ray.kill(each)
        raise _taken(plan.name) from error
    return Job(plan, place, actor, drivers)
