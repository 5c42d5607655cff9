"""Asks Ray what the cluster has, and lets a job in or not (``fitting`` says why)."""

from __future__ import annotations

import logging
import time
from typing import Any

import ray

from ...engine.plan.plan import JobPlan
from ..cluster.fitting import NotFreeError, asked_by, check_fits
from ..protocol.messages import WorkerSlot
from .runtime import Runtime

FREE_SECONDS = 10.0
"""How long resources may take to be free that a job which has just ended has held."""
_POLL_SECONDS = 0.2

_log = logging.getLogger(__name__)


def admit(plan: JobPlan, runtime: Runtime) -> None:
    """Raises ConfigurationError if the job asks for what the cluster does not have, or not free."""
    if runtime.wait_for_resources or not asked_by(plan):
        return
    until = time.monotonic() + FREE_SECONDS
    while True:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        try:
            warnings = check_fits(plan, nodes, ray.available_resources())
        except NotFreeError:
            if time.monotonic() >= until:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            break
    for warning in warnings:
        _log.warning("job %s: %s", plan.name, warning)


def options_of(plan: JobPlan, slot: WorkerSlot) -> dict[str, Any]:
    """The options of Ray's for the actor of a slot; nothing for a spare one."""
    stage = plan.stages.get(slot.vertex)
    if stage is None or not stage.resources:
        return {}
    asked = stage.resources
    return {"num_cpus": asked.cpus, "num_gpus": asked.gpus, "resources": asked.custom}
