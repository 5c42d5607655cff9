"""Stages whose scripts ended before any log spoke of them: found by the next run, which removes them.

Rules:

1. Whoever stages keeps a file beside its run's folder locked for as long as the process lives. So a run whose file is
   not locked belongs to nobody who may still start a job with it.
2. Such a run is removed unless the job's log speaks of its rows, whether it was completed or not. It is not used: the
   script may have been changed since, and nothing tells whether its frame would still give these rows.
3. Runs without such a file, and folders whose file system knows no locks, are left alone.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

_held: list[IO[str]] = []
"""Locked until this process ends."""


def hold_run(above: str, run: str) -> None:
    """The run in the folder ``above`` is this process's."""
    place = _file_of(Path(above), run)
    begun = place.with_suffix(".begun")
    file = open(begun, "w")  # noqa: SIM115 rule 1
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    begun.rename(place)  # not before it is locked, or another run would take it for one that is left behind
    _held.append(file)


def forget_run(above: str, run: str) -> None:
    """The run has failed, and left nothing."""
    with suppress(OSError):
        _file_of(Path(above), run).unlink()


def remove_left_behind(above: str, is_needed: Callable[[str], bool]) -> None:
    """Remove the runs that nobody needs; ``is_needed``: whether the log speaks of this one."""
    for path in Path(above).glob(".*.alive"):
        run = path.name.removeprefix(".").removesuffix(".alive")
        with suppress(OSError), open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_needed(run):
                Path(above, f"{run}.json").unlink(missing_ok=True)  # which is what makes a stage exist
                shutil.rmtree(Path(above, run), ignore_errors=True)
                path.unlink()


def _file_of(above: Path, run: str) -> Path:
    return above / f".{run}.alive"
