"""What starts a checkpoint, and how what was asked for turned out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ...engine.core.identity import CheckpointId
from .events import Failure
from .kinds import CheckpointKind, StopMode


class Cause(Enum):
    """Why a checkpoint starts."""

    PERIODIC = "the interval is over"
    FINAL = "a branch has ended"
    USER = "a user asked for a checkpoint"
    SAVEPOINT = "a user asked for a savepoint"
    STOP = "a user stops the job with a savepoint"


_KINDS = {Cause.SAVEPOINT: CheckpointKind.SAVEPOINT, Cause.STOP: CheckpointKind.STOP_WITH_SAVEPOINT}


@dataclass(frozen=True, slots=True)
class Request:
    """One wish. ``name``, ``target`` and ``stop`` belong to savepoints: the asker's name, the folder, how to stop."""

    cause: Cause
    name: str = ""
    target: str = ""
    stop: StopMode | None = None

    @property
    def kind(self) -> CheckpointKind:
        return _KINDS.get(self.cause, CheckpointKind.CHECKPOINT)


PERIODIC = Request(Cause.PERIODIC)
FINAL = Request(Cause.FINAL)
USER = Request(Cause.USER)


@dataclass(frozen=True, slots=True)
class SavepointResult:
    """How a savepoint that was asked for as ``request`` turned out: either ``location`` or ``failure`` is None."""

    request: str
    kind: str
    checkpoint: CheckpointId | None
    location: str | None
    failure: Failure | None
