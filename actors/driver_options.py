"""What the actor that hosts a task is told when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..engine.shown import hides_credentials
from .messages import Seat
from .plans import SharedPlan
from .runtime import DEFAULT_RUNTIME, Runtime
from .transport.tls import Certificate


@hides_credentials
@dataclass(frozen=True, slots=True)
class DriverOptions:
    """What a driver actor needs to know. ``folder``: where the job's checkpoints lie."""

    seat: Seat
    folder: str
    plan: SharedPlan
    token: bytes = field(repr=False)
    """Known to the processes of this job alone: who does not know it is not let in."""
    runtime: Runtime = DEFAULT_RUNTIME
    certificate: Certificate | None = field(default=None, repr=False)
    """Streams between machines are encrypted with it."""
    detached: bool = False
    """Nobody owns the actor: when its lease is over it leaves for good."""
