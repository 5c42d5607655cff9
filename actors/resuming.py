"""Whether a job starts or goes on: what its checkpoint folder says before anything runs. No Ray."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from ..coordinator.settings import Settings
from ..engine.errors import ConfigurationError
from .settings import Checkpoints
from .storage.log import read_log
from .storage.opening import open_store


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job keeps its checkpoints. ``release`` is called when the job is over."""

    folder: str
    settings: Settings
    release: Callable[[], None]


def place_in(checkpoints: Checkpoints | str | os.PathLike[str]) -> Place:
    """The user's folder, which stays."""
    asked = checkpoints if isinstance(checkpoints, Checkpoints) else Checkpoints(checkpoints)
    return Place(os.path.abspath(os.fspath(asked.folder)), asked.for_coordinator(), lambda: None)


def check_resume(folder: str, job: str, resume: str) -> bool:
    """Whether the job goes on from a log. Raises ConfigurationError if there is one and ``resume`` is "never"."""
    if resume not in ("auto", "never"):
        raise ConfigurationError(f"resume={resume!r} is unknown", 'give "auto" or "never"')
    found = bool(read_log(open_store(folder), job))
    if found and resume == "never":
        raise ConfigurationError(
            f"the checkpoint folder {folder} holds checkpoints of job {job!r}",
            'pass resume="auto" to go on from them, or choose another folder',
        )
    return found
