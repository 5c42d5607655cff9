"""What the actor that hosts a task is told when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...engine.core.shown import hides_credentials
from ..protocol.messages import WorkerSlot
from ..transport.tls import Certificate
from .plans import SharedPlan
from .runtime import DEFAULT_RUNTIME, Runtime


@hides_credentials
@dataclass(frozen=True, slots=True)
class DriverOptions:
    """What a driver actor needs to know. ``folder``: where the job's checkpoints lie."""

    slot: WorkerSlot
    folder: str
    plan: SharedPlan
    token: bytes = field(repr=False)
    """Known to the processes of this job alone: who does not know it is not let in."""
    runtime: Runtime = DEFAULT_RUNTIME
    certificate: Certificate | None = field(default=None, repr=False)
    """Streams between machines are encrypted with it."""
    detached: bool = False
    """Nobody owns the actor: when its lease is over it leaves for good."""
