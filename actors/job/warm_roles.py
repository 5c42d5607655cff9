"""Which processes of a job begin in those that wait: the script's first, then the cluster's."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ...engine.plan.plan import JobPlan
from ..protocol.messages import WorkerSlot
from .cluster_pool import BORROWED, borrow
from .runtime import Runtime
from .warming import SCRIPTS, warm_environment

_log = logging.getLogger(__name__)


def warm_options(plan: JobPlan, slots: Sequence[WorkerSlot], runtime: Runtime, *, detached: bool) -> dict[Any, Any]:
    """Ray's options that give a process that waits to the coordinator (None) and the slots, as far as there are. A
    detached job takes none of the script's."""
    roles: list[WorkerSlot | None] = [None, *(slot for slot in slots if not _has_gpus(plan, slot))]
    if runtime.warm == 0:
        return {}
    own = 0 if detached else SCRIPTS.take(len(roles))
    given = {role: {"runtime_env": warm_environment()} for role in roles[:own]}
    if own < len(roles):
        pool, lent = borrow(len(roles) - own)
        given |= {role: {"runtime_env": warm_environment(pool)} for role in roles[own : own + lent]}
    if given:
        _log.info("job %s: %d of %d processes were warm", plan.name, len(given), len(slots) + 1)
    return given


def start_is_over() -> None:
    """A job runs, is over, or was refused: what it was given and has not used waits for others."""
    SCRIPTS.settled()
    BORROWED.give_back()


def _has_gpus(plan: JobPlan, slot: WorkerSlot) -> bool:
    stage = plan.stages.get(slot.vertex)
    return stage is not None and stage.resources.gpus > 0
