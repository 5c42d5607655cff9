"""What may go wrong in a simulated cluster, how often, and the settings that let it happen within a few seconds."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.coordinator.model.settings import Settings

SETTINGS = Settings(
    interval=0.05,
    after_restart=0.01,
    timeout=0.6,
    tolerable_failures=100_000,
    max_restarts=100_000,
    restart_delay=0.005,
    max_restart_delay=0.02,
    resend=0.1,
    retry_pause=0.005,
    ending_timeout=0.5,
    max_drift=1,
)


@dataclass(frozen=True)
class Faults:
    """Chances per message, or per ``BAD_MOMENT``; ``patience`` faults at most."""

    patience: int = 12
    drop: float = 0.03
    double: float = 0.03
    kill_task: float = 0.1
    kill_coordinator: float = 0.05
    second_coordinator: float = 0.025
    cancel: float = 0.015
    snapshot: float = 0.01
    commit: float = 0.01
    store: float = 0.06
    stall: float = 0.05
    full_disk: float = 0.1
    savepoint: float = 0.1
    ask_checkpoint: float = 0.05
    ask_savepoint: float = 0.1
    ask_stop: float = 0.035
    ask_pin: float = 0.05
    kill_rank: float = 0.1
    slow_rank: float = 0.05


FAULTS = Faults()
NO_FAULTS = Faults(patience=0)
