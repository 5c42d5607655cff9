"""Jobs that other scripts have started: which there are, and a hand on one of them."""

from __future__ import annotations

from dataclasses import dataclass

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util import list_named_actors

from ...coordinator.model.statistics import JobStatus
from ...engine.core.errors import ConfigurationError
from ..claims.resuming import Place
from ..cluster.environment import NAMESPACE
from ..protocol.messages import JobCard
from .driver_actor import COORDINATOR, coordinator_name
from .job import Job, Tie

ANSWER_SECONDS = 10.0
"""How long a coordinator may take to answer somebody who only looks around: it may be on its way back."""


@dataclass(frozen=True, slots=True)
class JobEntry:
    """One job of the cluster. ``status`` None: its coordinator does not answer now."""

    name: str
    detached: bool
    status: JobStatus | None


def attach_job(name: str) -> Job:
    """The job of this name on the cluster that this process is connected to. Raises ConfigurationError."""
    try:
        coordinator = ray.get_actor(coordinator_name(name), namespace=NAMESPACE)
    except ValueError:
        running = ", ".join(job_names()) or "none"
        raise ConfigurationError(
            f"no job named {name!r} runs on this cluster", f"running here: {running}; or give another address"
        ) from None
    card: JobCard = ray.get(coordinator.card.remote())
    tie = Tie.DETACHED if card.detached else Tie.GUEST
    place = Place(card.folder, card.settings, lambda: None, card.folder_stays)
    return Job(card.plan, place, coordinator, card.drivers, tie, card.secrets)


def job_names() -> list[str]:
    """The names of all jobs on the cluster, in order."""
    found = [actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE]
    return sorted(name.removeprefix(COORDINATOR) for name in found if name.startswith(COORDINATOR))


def list_job_entries() -> list[JobEntry]:
    """All jobs on the cluster, by name; those that end meanwhile are left out."""
    entries = [_entry(name) for name in job_names()]
    return [entry for entry in entries if entry is not None]


def _entry(name: str) -> JobEntry | None:
    try:
        coordinator = ray.get_actor(coordinator_name(name), namespace=NAMESPACE)
        found, detached = ray.get(
            [coordinator.wait_status.remote(None, 0.0), coordinator.is_detached.remote()], timeout=ANSWER_SECONDS
        )
    except ValueError:
        return None
    except (RayError, GetTimeoutError):
        return JobEntry(name, False, None)
    return JobEntry(name, detached, found.status)
