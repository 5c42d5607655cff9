"""Where a job keeps its checkpoints, and whether it starts or goes on: what is there before anything runs. No Ray."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast, get_args

from ...coordinator.model.events import Failure
from ...coordinator.model.manifest import LogEntry, Manifest, closing_entry
from ...coordinator.model.settings import Settings
from ...engine.core.errors import ConfigurationError
from ...engine.core.shown import hides_credentials
from ...engine.files.durable import goes_with_process, was_removed
from ...engine.files.store_options import StorageOptions
from ..protocol.settings import Checkpoints
from ..protocol.translate import error_of
from ..storage.log import read_log_in
from ..storage.memory_store import drop_log
from ..storage.stores import checkpoint_folder
from .presence import in_words

Resume: TypeAlias = Literal["auto", "never", "must", "restart"]
"""Whether a job goes on from the last checkpoint in its folder: if there is one, never, or always; or begins anew where
it is over (``restart``)."""


RUN_AGAIN = (
    'to run it again from its beginning, pass resume="restart", and let its sinks write with mode="overwrite"; or '
    "choose another checkpoint folder and other outputs"
)

ALIVE = ".alive"
"""A file in a temporary place that its process keeps locked."""


@hides_credentials
@dataclass(frozen=True, slots=True)
class Place:
    """Where a job keeps its checkpoints. ``release`` is called when the job is over. ``stays``: the folder does.
    ``local_copies``: whether processes keep copies of the states that they write there."""

    folder: str
    settings: Settings
    release: Callable[[], None]
    stays: bool = True
    local_copies: bool = False
    storage_options: StorageOptions | None = field(default=None, repr=False, compare=False)
    may_be_over: bool = False
    """Whether its log may be closed: then the job has finished, and says so."""


def place_in(checkpoints: Checkpoints | str | os.PathLike[str]) -> Place:
    """The user's folder, which stays."""
    asked = checkpoints if isinstance(checkpoints, Checkpoints) else Checkpoints(checkpoints)
    folder = checkpoint_folder(asked.folder)
    copies = "://" in folder if asked.local_copies is None else asked.local_copies
    return Place(
        folder,
        asked.for_coordinator(),
        lambda: None,
        True,
        copies,
        cast("StorageOptions | None", asked.storage_options),
    )


def is_left_behind(folder: str) -> bool:
    """Whether this is a temporary place whose process has ended without a chance to remove it."""
    try:
        with open(f"{folder}/{ALIVE}") as alive:
            fcntl.flock(alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return False
    return True


def temporary_place() -> Place:
    """For a job of this process that keeps nothing: a folder that goes with it, whatever else happens."""
    folder = tempfile.mkdtemp(prefix="penstock-")
    alive = open(f"{folder}/{ALIVE}", "w")  # noqa: SIM115 held until the job is over, or its process
    fcntl.flock(alive, fcntl.LOCK_EX)
    goes_with_process(folder)

    def release() -> None:
        atexit.unregister(release)
        drop_log(folder)
        shutil.rmtree(folder, ignore_errors=True)
        was_removed(folder)
        alive.close()

    atexit.register(release)  # also to a thread that does not end
    return Place(folder, Settings(interval=None, ended_branches=False), release, stays=False)


def check_resume(folder: str, job: str, resume: str, may_be_over: bool = False) -> bool:
    """Whether the job goes on from a checkpoint in its log. Raises ConfigurationError if the log is closed, unless it
    ``may_be_over``; if there is one and ``resume`` is "never"; or if it holds no checkpoint and ``resume`` is
    "must"."""
    if resume not in get_args(Resume):
        raise ConfigurationError(f"resume={resume!r} is unknown", 'give "auto", "never", "must" or "restart"')
    found = read_log_in(folder, job)
    if found and resume == "never":
        refused = Failure(
            f"the checkpoint folder {folder} holds checkpoints of job {job!r}",
            retry=False,
            remedy='pass resume="auto" to go on from them, or choose another folder',
            kind="ConfigurationError",
        )
        raise error_of(in_words(refused, found, folder))
    if closing_entry(found) is not None:
        if may_be_over:
            return True
        raise ConfigurationError(f"job {job!r} is over: its log in {folder} is closed", _way_on(found))
    goes_on = any(isinstance(entry, Manifest) for entry in found)
    if resume == "must" and not goes_on:
        raise ConfigurationError(
            f"the checkpoint folder {folder} holds no checkpoint of job {job!r} to go on from",
            "check the folder's path and that this machine sees it, and the job's name (a flow's, or name=); or pass "
            'resume="auto" to begin where there is none',
        )
    return goes_on


def _way_on(entries: Sequence[LogEntry]) -> str:
    last = next((entry for entry in reversed(entries) if isinstance(entry, Manifest)), None)
    if last is not None and last.savepoint:
        go_on = f"it was stopped: to go on, pass from_snapshot={last.savepoint!r} and another checkpoint folder"
        return f"{go_on}; {RUN_AGAIN}"
    return RUN_AGAIN
