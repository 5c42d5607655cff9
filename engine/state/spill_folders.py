"""Folders for spilled rows, in the system's place for temporary files.

Rules:

1. A folder belongs to the process that made it, which holds a lock on it until it ends, however it ends.
2. Whoever makes a folder removes those that nobody has locked: their processes were killed. A lock, not a process id:
   containers that share the place number their processes anew.
3. A folder that is removed so before its maker could lock it is made again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "penstock-spill-"


class SpillFolder:
    """A new folder at ``path``, locked until ``remove``. Raises OSError."""

    def __init__(self) -> None:
        _remove_orphans()
        self._lock: int | None = None
        while self._lock is None:
            self.path = tempfile.mkdtemp(prefix=PREFIX)
            self._lock = _locked(self.path)

    def remove(self) -> None:
        """The folder and what is in it; may be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked(folder: str) -> int | None:
    """A lock on the folder; None if it is gone already (rule 3)."""
    with suppress(FileNotFoundError):
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_SH)  # waits, if at all, for somebody who removes it
        if os.path.exists(folder):
            return lock
        os.close(lock)
    return None


def _remove_orphans() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # locked, another user's, or removed by somebody else meanwhile
            _remove_if_orphan(folder)


def _remove_if_orphan(folder: Path) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
