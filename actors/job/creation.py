"""A job whose coordinator cannot be made: mostly because a flow's functions are from modules that workers do not have.

Ray does not start such an actor again. The script learns it when it asks for the job; whoever reads a feed asks nobody
and would wait for ever, so a notice tells the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.exceptions import ActorDiedError

from ...engine.core.errors import PenstockError, SetupError
from ..cluster.calls import short_reason, when_done
from ..protocol.messages import Address
from .job_face import cannot_be_asked

REMEDY = (
    "its workers must have the modules of the functions in its flow: install them on every machine, or send them along "
    'with ray job submit --working-dir=., or ray.init(runtime_env={"working_dir": "."})'
)


def coordinator_died(job: str, error: ActorDiedError) -> PenstockError:
    """What to tell whoever asks a coordinator that is gone."""
    if not error.actor_init_failed:
        return cannot_be_asked(job, f"its coordinator is gone: {short_reason(error)}")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return SetupError(f"job {job!r} could not be started: {lines[-1]}", REMEDY, detail=str(error))


def watch_creation(job: str, coordinator: Address, failed: Callable[[PenstockError], None]) -> None:
    """Call ``failed``, on a thread of Ray's, if the coordinator cannot be made."""

    def ended(_: Any, error: BaseException | None) -> None:
        if isinstance(error, ActorDiedError) and error.actor_init_failed:
            failed(coordinator_died(job, error))

    when_done(coordinator.process.remote(), ended)
