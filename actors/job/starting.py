"""Starts the actors of a planned job on the cluster that this process is connected to.

Rules:

1. The script that starts a job owns its actors, so that they end with it, unless the job is detached: then nobody owns
   them, and they end by themselves (``shutdown``). The coordinator's name is the job's lock.
2. Without ``checkpoints`` the job keeps its state in a temporary folder of this machine, which goes when the job is
   over, or with the script.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from ...coordinator.log.recovery import find_run
from ...coordinator.restore.stored_state import Snapshot
from ...engine.core.errors import ConfigurationError
from ...engine.plan.plan import JobPlan
from ..claims.place import Place, temporary_place
from ..claims.presence import this_claimant
from ..client.backend import Ownership
from ..client.job import Job
from ..cluster.calls import sealed
from ..cluster.environment import NAMESPACE
from ..cluster.fitting import NotFreeError, asked_by, check_fits
from ..feed.discovery import EndNotice, FeedDiscovery, run_of
from ..protocol.messages import JobDescriptor, WorkerSlot, spare_slot
from ..protocol.translate import failure_of
from ..transport.dialling import Secrets
from ..transport.tls import make_certificate
from .coordinator_actor import CoordinatorOptions, coordinator_actor_class
from .driver_actor import coordinator_name, driver_actor_class
from .options import DriverOptions, share_plan
from .ray_backend import RayBackend, watch_creation
from .runtime import DEFAULT_RUNTIME, Runtime
from .warm_roles import warm_options

_ANSWER_SECONDS = 10.0


def start_job(
    plan: JobPlan,
    place: Place | None,
    runtime: Runtime = DEFAULT_RUNTIME,
    snapshot: Snapshot | None = None,
    *,
    detached: bool = False,
    take_over: bool = False,
) -> Job:
    """Start the job, whose checkpoints go to ``place``. Raises ConfigurationError if its name is taken."""
    _refuse_taken_name(plan.name)
    admit(plan, runtime)
    place = place or _temporary_place()
    try:
        return _start(plan, place, runtime, snapshot, detached, take_over)
    except BaseException:
        place.release()
        raise


def _temporary_place() -> Place:
    if len([node for node in ray.nodes() if node["Alive"]]) > 1:
        raise ConfigurationError(
            "this cluster has several machines, and no checkpoint folder was given that all of them see",
            'pass checkpoints=ps.Checkpoints("/shared/folder")',
        )
    return temporary_place()


def _refuse_taken_name(job: str) -> None:
    try:
        coordinator = ray.get_actor(coordinator_name(job), namespace=NAMESPACE)
    except ValueError:
        return
    if not _has_ended(coordinator):
        raise _taken(job)
    ray.kill(coordinator)
    with suppress(RayActorError):  # the name is free when the actor is known to be dead
        ray.get(coordinator.process.remote(), timeout=_ANSWER_SECONDS)


def _has_ended(coordinator: Any) -> bool:
    """Whether it is that of a detached job that is over, and only stays to say so."""
    try:
        return ray.get(coordinator.final_statistics.remote(0.0), timeout=_ANSWER_SECONDS) is not None
    except (RayError, GetTimeoutError):
        return False


def _taken(job: str) -> ConfigurationError:
    whose = ""
    with suppress(ValueError, RayError, GetTimeoutError):  # it may have ended meanwhile
        coordinator = ray.get_actor(coordinator_name(job), namespace=NAMESPACE)
        whose = f": {find_run(ray.get(coordinator.claimant.remote(), timeout=_ANSWER_SECONDS))}"
    return ConfigurationError(
        f"a job named {job!r} is running on this cluster{whose}",
        "wait for it, cancel it, or run this one under another name: run(flow, name=…)",
    )


def _start(
    plan: JobPlan, place: Place, runtime: Runtime, snapshot: Snapshot | None, detached: bool, take_over: bool
) -> Job:
    shared = share_plan(plan, detached=detached)
    life = {"lifetime": "detached"} if detached else {}
    strategy = "SPREAD" if runtime.spread else "DEFAULT"
    driver = driver_actor_class()
    token = secrets.token_bytes(32)
    certificate = make_certificate(plan.name) if runtime.tls else None
    slots = [*plan.tasks(), *(spare_slot(number) for number in range(runtime.spares))]
    warm = warm_options(plan, slots, runtime, detached=detached)
    drivers: dict[WorkerSlot, Any] = {
        slot: driver.options(
            scheduling_strategy=strategy, **life, **options_of(plan, slot), **warm.get(slot, {})
        ).remote(
            sealed(DriverOptions(slot, place.folder, shared, token, runtime, certificate, detached, place.local_copies))
        )
        for slot in slots
    }
    options = CoordinatorOptions(
        place.folder,
        place.settings,
        shared,
        drivers,
        os.environ.get("PENSTOCK_VALIDATE") == "1",
        runtime.period,
        snapshot,
        detached,
        place.stays,
        runtime.lease_seconds or 0.0,
        runtime.poison,
        runtime.reporting,
        runtime.notice_seconds,
        take_over,
        Secrets(token, certificate),
        None if detached else this_claimant(),
    )
    known_as = {"name": coordinator_name(plan.name), "namespace": NAMESPACE}
    coordinator = coordinator_actor_class().options(**known_as, **life, **warm.get(None, {}))
    try:
        actor = coordinator.remote(sealed(options))
    except ValueError as error:
        for each in drivers.values():
            ray.kill(each)
        shared.forget()
        raise _taken(plan.name) from error
    if plan.feeds:
        notices = FeedDiscovery(place.folder, plan.name, run_of(token))
        watch_creation(
            plan.name, actor, lambda error: notices.publish_end(EndNotice(notices.run, False, failure_of(error)))
        )
    descriptor = JobDescriptor(plan, place.folder, place.settings, drivers, detached, place.stays, options.secrets)
    return Job(plan, place, RayBackend(descriptor, actor, Ownership.DETACHED if detached else Ownership.OWNER))


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
    found = {"num_cpus": asked.cpus, "num_gpus": asked.gpus, "resources": asked.custom}
    return found | ({"memory": asked.memory} if asked.memory else {})
