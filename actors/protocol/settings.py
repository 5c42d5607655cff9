"""``Checkpoints``: what a user says about checkpoints and restarts. No Ray: the embedded runner uses it too.

Durations are seconds as a number, or text: ``"500ms"``, ``"5s"``, ``"1m"``, ``"2h"``. Everything is checked when the
object is made, so that a mistake shows on the user's own line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ...coordinator.model.restarts import FailureRate, FixedDelay, RestartPolicy
from ...coordinator.model.retention import RetentionPolicy
from ...coordinator.model.settings import Settings
from ...engine.core.arguments import checked
from ...engine.core.errors import ConfigurationError
from ...engine.core.shown import hides_credentials
from ...engine.files.object_store import storage_options
from ..storage.stores import checkpoint_folder

Duration: TypeAlias = str | float

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

Alignment: TypeAlias = Literal["aligned", "unaligned"]
Restart: TypeAlias = Literal["exponential", "rate", "fixed"]
Retention: TypeAlias = Literal["always", "on_cancellation", "on_failure", "never"]
_RETENTION = {policy.name.lower(): policy for policy in RetentionPolicy}


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


@hides_credentials
@checked(ConfigurationError)
@dataclass(frozen=True)
class Checkpoints:
    """Where checkpoints go and how often they are taken."""

    folder: str | os.PathLike[str]
    """A folder that every machine of the cluster sees; it holds the checkpoints of many jobs, by name. A relative path
    starts at the working folder of this moment, as those of a flow do."""
    every: Duration | None = "1s"
    """From one checkpoint's start to the next one's. None: only when asked for, and at the end."""
    min_pause: Duration = 0.0
    """Least time between the end of one checkpoint and the start of the next."""
    timeout: Duration = "10m"
    """A checkpoint that is not complete after this long is aborted and counts as failed."""
    alignment: Alignment = "unaligned"
    """"unaligned": every task cuts where it stands. Barriers overtake the batches that wait, which then belong to the
    checkpoint, and a job goes on in the middle of what it was doing. No checkpoint waits for more than one piece of
    each operator. "aligned": barriers keep their place among the batches, behind a round on which all sources agree.
    Such a checkpoint holds nothing in flight, and is complete when everything before it has been processed."""
    alignment_timeout: Duration | None = None
    """Whatever ``alignment`` says: a checkpoint is aligned for so long at most. Then it is given up, which does not
    count as failed, and the tasks cut where they stand. None: there is no attempt, or, with "aligned", no end of it."""
    retained: int = 2
    """Completed checkpoints kept while the job runs. Pinned ones are kept as well."""
    retention: Retention = "always"
    """After which ends of the job the kept ones stay: after all, only if it failed or was cancelled, only if it failed,
    or never. Without them there is nothing to audit by, and nothing to go on from. Savepoints always stay."""
    tolerable_failures: int = 0
    """This many checkpoints in a row may fail; one more fails the job."""
    max_restarts: int = 10
    """Restarts allowed, counted as ``restart`` says; one failure more fails the job."""
    restart_delay: Duration = 0.05
    """Before the first restart. Losses within it are one restart, as of a machine with several processes."""
    restart: Restart = "exponential"
    """"exponential": restarts in a row are counted, each waits twice as long as the one before, up to 10 s; a
    ``restart_interval`` without a failure forgives them all. "rate": failures within ``restart_interval`` are counted.
    "fixed": all there ever were are counted. The last two wait ``restart_delay`` each time."""
    restart_interval: Duration = "1m"
    """See ``restart``."""
    local_copies: bool | None = None
    """Whether each machine keeps copies of the states that were written there for the newest checkpoint, so that a
    restart there does not read them from the folder. None: if the folder is in an object store. Worth while for a
    shared folder that is slow, too."""
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    """Who asks the bucket of the folder, and where: ``access_key_id``, ``secret_access_key``, ``session_token``,
    ``region``, ``endpoint``, ``allow_http``, …, as obstore names them. They hold for all of the bucket and reach every
    process of the job, and are written down nowhere. None: the environment says it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", checkpoint_folder(self.folder))
        object.__setattr__(self, "storage_options", storage_options([str(self.folder)], self.storage_options))
        self.for_coordinator()

    @property
    def overtaking_after(self) -> float | None:
        """Seconds of alignment after which barriers overtake batches; None: never. Raises ConfigurationError."""
        if self.alignment not in ("aligned", "unaligned"):
            raise ConfigurationError(f"alignment={self.alignment!r} is unknown", 'give "aligned" or "unaligned"')
        if self.alignment_timeout is None:
            return 0.0 if self.alignment == "unaligned" else None
        timeout = seconds(self.alignment_timeout, "alignment_timeout")
        if timeout <= 0:
            message = f"alignment_timeout={self.alignment_timeout!r} is no time to wait"
            raise ConfigurationError(message, 'give more than 0 seconds, or alignment="unaligned" alone')
        return timeout

    def for_coordinator(self) -> Settings:
        """The same as the coordinator's settings. Raises ConfigurationError."""
        if self.retention not in _RETENTION:
            known = ", ".join(f'"{name}"' for name in _RETENTION)
            raise ConfigurationError(f"retention={self.retention!r} is unknown", f"give one of {known}")
        try:
            delay = seconds(self.restart_delay, "restart_delay")
            interval = seconds(self.restart_interval, "restart_interval")
            return Settings(
                interval=None if self.every is None else seconds(self.every, "every"),
                min_pause=seconds(self.min_pause, "min_pause"),
                timeout=seconds(self.timeout, "timeout"),
                unaligned=self.overtaking_after is not None,
                alignment_timeout=self.overtaking_after or 0.0,
                retained=self.retained,
                retention=_RETENTION[self.retention],
                tolerable_failures=self.tolerable_failures,
                max_restarts=self.max_restarts,
                restart_delay=delay,
                quiet_period=interval,
                restart=self._restart_policy(delay, interval),
            )
        except ValueError as error:
            raise ConfigurationError(str(error), "correct the settings given to Checkpoints(…)") from error

    def _restart_policy(self, delay: float, interval: float) -> RestartPolicy | None:
        """None: what the single settings describe."""
        if self.restart == "rate":
            return FailureRate(self.max_restarts, interval, delay)
        return FixedDelay(self.max_restarts, delay) if self.restart == "fixed" else None
