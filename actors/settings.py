"""``Checkpoints``: what a user says about checkpoints and restarts. No Ray: the embedded runner uses it too.

Durations are seconds as a number, or text: ``"500ms"``, ``"5s"``, ``"1m"``, ``"2h"``. Everything is checked when the
object is made, so that a mistake shows on the user's own line.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TypeAlias

from ..coordinator.settings import Settings
from ..engine.errors import ConfigurationError

Duration: TypeAlias = str | float

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(duration: Duration, what: str) -> float:
    """A duration in seconds. ``what`` names it in the error."""
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return float(duration)
    found = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    if found is None:
        raise ConfigurationError(
            f"{what}={duration!r} is no duration", 'give seconds, or text such as "500ms", "5s", "1m" or "2h"'
        )
    return float(found[1]) * _SECONDS[found[2]]


@dataclass(frozen=True)
class Checkpoints:
    """Where checkpoints go and how often they are taken."""

    folder: str | os.PathLike[str]
    """A folder that every machine of the cluster sees; it holds the checkpoints of many jobs, by name."""
    every: Duration | None = "1s"
    """From one checkpoint's start to the next one's. None: only when asked for, and at the end."""
    min_pause: Duration = 0.0
    """Least time between the end of one checkpoint and the start of the next."""
    timeout: Duration = "10m"
    """A checkpoint that is not complete after this long is given up and counts as failed."""
    retained: int = 2
    """Completed checkpoints kept."""
    tolerable_failures: int = 0
    """This many checkpoints in a row may fail; one more fails the job."""
    max_restarts: int = 10
    """Restarts allowed in a row; one failure more fails the job."""
    restart_delay: Duration = 0.2
    """Before the first restart; each further one in a row waits twice as long."""

    def __post_init__(self) -> None:
        if not os.fspath(self.folder):
            raise ConfigurationError("the checkpoint folder is empty", 'name a folder: Checkpoints("state/")')
        self.for_coordinator()

    def for_coordinator(self) -> Settings:
        """The same as the coordinator's settings. Raises ConfigurationError."""
        try:
            return Settings(
                interval=None if self.every is None else seconds(self.every, "every"),
                min_pause=seconds(self.min_pause, "min_pause"),
                timeout=seconds(self.timeout, "timeout"),
                retained=self.retained,
                tolerable_failures=self.tolerable_failures,
                max_restarts=self.max_restarts,
                restart_delay=seconds(self.restart_delay, "restart_delay"),
            )
        except ValueError as error:
            raise ConfigurationError(str(error), "correct the settings given to Checkpoints(…)") from error
