"""What a user can set about checkpoints and restarts, and the defaults.

Seconds everywhere. All checks are made here, once, so that no part has to doubt a setting.
"""

from __future__ import annotations

from dataclasses import dataclass

from .restarts import ExponentialDelay, RestartPolicy
from .retention import RetentionPolicy


@dataclass(frozen=True)
class Settings:
    """The coordinator's settings; see each field."""

    interval: float | None = 1.0
    """From one periodic checkpoint's start to the next one's. None: only requested and final checkpoints."""
    ended_branches: bool = True
    """Whether a branch that has ended gets a checkpoint at once. False: only the end of all data gets one, for a job
    that keeps its checkpoints for nobody."""
    after_restart: float = 0.1
    """From when a job runs again to its first periodic checkpoint, where the interval is longer: with it, rows become
    visible again."""
    min_pause: float = 0.0
    """Least time between the end of one checkpoint and the start of the next periodic or final one."""
    timeout: float = 600.0
    """A checkpoint that is not complete after this long is aborted and counts as failed."""
    unaligned: bool = False
    """Whether barriers may overtake data."""
    alignment_timeout: float = 0.0
    """With ``unaligned``: seconds that a checkpoint whose barriers stand in order is waited for. 0: there is none."""
    tolerable_failures: int = 0
    """This many checkpoints in a row may fail; one more fails the job."""
    retained: int = 2
    """Completed checkpoints kept."""
    retention: RetentionPolicy = RetentionPolicy.ALWAYS
    """At which ends of the job the kept ones are deleted. ``ALWAYS`` deletes none."""
    moves: bool = False
    """Whether the job is to go on in another shape than the one it is deployed in. It takes one checkpoint with nothing
    in flight, and ends there."""
    max_drift: int = 8
    """A source of a deterministic flow that is so many rounds ahead of another one at a checkpoint waits for it.
    0: none ever does, and checkpoints may take longer and longer."""
    history: int = 10
    """Checkpoints remembered in the statistics."""
    max_restarts: int = 10
    """Restarts allowed until a quiet period forgives them; one failure more fails the job."""
    restart_delay: float = 0.05
    """Before the first restart; each further one waits ``restart_factor`` times longer. With a spare process it is the
    longest part of a recovery, and yet longer than between the deaths that one lost machine is noticed by."""
    restart_factor: float = 2.0
    max_restart_delay: float = 10.0
    quiet_period: float = 60.0
    """Running this long without a failure forgives all restarts."""
    restart: RestartPolicy | None = None
    """Another way to count and to wait, instead of the five settings above."""
    resend: float = 5.0
    """An order that had no answer for this long is given again."""
    retry_pause: float = 0.1
    """Least time after a failed checkpoint before the next one, so that a full disk is not asked in a hot loop."""
    ending_timeout: float = 30.0
    """A job that fails or is cancelled waits this long for its last commits; the log keeps what is left of them."""

    def __post_init__(self) -> None:
        if self.interval is not None and self.interval <= 0:
            raise ValueError(f"the checkpoint interval must be above 0 or None, not {self.interval}")
        for name in ("timeout", "resend", "restart_factor", "quiet_period", "ending_timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        pauses = ("after_restart", "min_pause", "restart_delay", "max_restart_delay", "retry_pause")
        for name in (*pauses, "alignment_timeout"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        for name, least in (
            ("tolerable_failures", 0),
            ("retained", 1),
            ("max_restarts", 0),
            ("history", 1),
            ("max_drift", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")

    @property
    def restart_policy(self) -> RestartPolicy:
        """The policy that was set, or the one that the single settings describe."""
        return self.restart or ExponentialDelay(
            initial=self.restart_delay,
            maximum=self.max_restart_delay,
            factor=self.restart_factor,
            reset_after=self.quiet_period,
            attempts=self.max_restarts,
        )
