"""Copies of state files on the machine that wrote or fetched them, so that a restart there does not wait for the store.

They lie in the system's place for temporary files, in a folder of the job that its processes on a machine share:
``penstock-copies-<user>-<job's UUID>/<vertex>-<subtask>/<digest>``, one for each part of a state file.

Rules:

1. A copy is a hint. Who reads a part has its handle, and takes the copy only if that has its length and digest. One
   that is missing or has others is none: the store is asked, and it is counted.
2. What the local disk refuses fails nothing: there is no copy then.
3. A process keeps what a task has in the newest checkpoint that is known to be complete, and in later ones; the rest of
   that task's folder goes when the next one is complete: parts of aborted checkpoints, of lost attempts and of older
   processes (:class:`CopyBook`).
4. All copies of a job on a machine take ``MOST_BYTES``, and leave a tenth of the disk free. For a new one, those go
   first that this process does not need, the oldest first: they may be of tasks that have left the machine.
5. Nothing is synced: after a power cut rule 1 finds what is missing.
6. The folder is its user's alone. Each process holds a lock on it. The last one that ends removes it, and whoever makes
   one removes those that nobody holds: their processes were killed. Until then the next process of the job finds them.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, get_ident

import pyarrow as pa
from msgspec.structs import replace

from ...engine.core.identity import CheckpointId, StateHandle
from ...engine.files.paths import safe_name
from ...engine.integrity.checksums import digest
from ...engine.runtime.statistics import CopyStatistics

MOST_BYTES = 16 * 1024**3
_FREE_SHARE = 0.1
_PREFIX = "penstock-copies-"

_log = logging.getLogger(__name__)


class CopyBook:
    """Which copies of one task are wanted (rule 3). Pure; names are digests."""

    def __init__(self) -> None:
        #: of the newest complete checkpoint, or what the task was restored from
        self._base: frozenset[str] = frozenset()
        self._later: dict[CheckpointId, frozenset[str]] = {}

    def restored(self, names: Iterable[str]) -> None:
        """The task goes on from these."""
        self._base = frozenset(names)

    def named(self, checkpoint: CheckpointId, names: Iterable[str]) -> None:
        """The task has these in the checkpoint, whatever becomes of that."""
        self._later[checkpoint] = self._later.get(checkpoint, frozenset()).union(names)

    def completed(self, checkpoint: CheckpointId) -> bool:
        """The checkpoint is durable. Whether that is known of here, and makes others needless."""
        if checkpoint not in self._later:
            return False
        self._base = self._later[checkpoint]
        self._later = {each: names for each, names in self._later.items() if each > checkpoint}
        return True

    @property
    def wanted(self) -> frozenset[str]:
        """What must stay."""
        return self._base.union(*self._later.values())


@dataclass(frozen=True, slots=True)
class Found:
    """A copy that is there. ``written``: when, in any unit."""

    bytes: int
    written: float


def to_let_go(found: Mapping[str, Found], wanted: frozenset[str], size: int, room: int) -> list[str] | None:
    """Those copies that are not ``wanted`` and go, so that ``size`` more bytes fit into ``room`` (rule 4). None: they
    do not fit whatever goes."""
    over = sum(each.bytes for each in found.values()) + size - room
    going: list[str] = []
    for name in sorted(found.keys() - wanted, key=lambda name: found[name].written):
        if over <= 0:
            break
        over -= found[name].bytes
        going.append(name)
    return going if over <= 0 else None


class LocalCopies:
    """See the module's rules. ``job``: its UUID; ``place``: for temporary files. Safe to use from several threads."""

    def __init__(self, job: str, place: str | None = None, most: int = MOST_BYTES) -> None:
        self._place = Path(place or tempfile.gettempdir())
        self._folder = self._place / f"{_PREFIX}{os.getuid()}-{safe_name(job)}"
        self._most = most
        self._books: dict[str, CopyBook] = {}
        self._guard = Lock()
        self._held: int | None = None
        self._closed = False
        #: what was read, for statistics
        self.statistics = CopyStatistics()

    def keep(self, checkpoint: CheckpointId, handle: StateHandle, data: pa.Buffer) -> None:
        """Make a copy of a new part, if there is room."""
        self.named(checkpoint, [handle])
        self.fetched(handle, data)

    def fetched(self, handle: StateHandle, data: pa.Buffer) -> None:
        """The same of a part that the store had to be asked for: the next restart here finds it."""
        path = self._path(handle)
        with self._guard:
            try:
                if self._closed or not self._is_open() or path.exists() or not self._make_room(handle.bytes):
                    return
                path.parent.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                return _note(error)
        # two tasks of this process may have asked for the same part
        partial = path.with_name(_partial(f"{path.name}.{get_ident()}"))
        try:
            with open(partial, "wb") as file:
                file.write(data)
            os.replace(partial, path)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            _note(error)

    def named(self, checkpoint: CheckpointId, handles: Iterable[StateHandle]) -> None:
        """A task has these parts in the checkpoint, new or not."""
        with self._guard:
            for task, names in _by_task(handles).items():
                self._book(task).named(checkpoint, names)

    def restored(self, handles: Iterable[StateHandle]) -> None:
        """A task of this process goes on from these parts."""
        with self._guard:
            for task, names in _by_task(handles).items():
                self._book(task).restored(names)

    def completed(self, task: str, checkpoint: CheckpointId) -> None:
        """The checkpoint is durable: what the task, by the name of its folder, needs no more goes (rule 3)."""
        task = safe_name(task)
        with self._guard:
            book = self._book(task)
            if self._held is None or not book.completed(checkpoint):
                return
            with suppress(OSError):
                for each in os.scandir(self._folder / task):
                    if each.name not in book.wanted and not each.name.endswith(_partial("")):
                        os.unlink(each.path)

    def read(self, handle: StateHandle) -> pa.Buffer | None:
        """The part, sure to be what was written; None: there is no such copy here."""
        path = self._path(handle)
        try:
            with self._guard:
                usable = not self._closed and self._is_open()
            if not usable:
                return None
            with pa.OSFile(str(path)) as file:
                data = file.read_buffer()
        except OSError:
            self._count(missing=1)
            return None
        if data.size != handle.bytes or digest(data) != handle.digest:
            _log.warning("the local copy %s of %s is damaged: the store is asked", path, handle.location)
            with suppress(OSError):
                path.unlink()
            self._count(damaged=1)
            return None
        self._count(found=1, bytes=data.size)
        return data

    def close(self) -> None:
        """The job is over, for this process; the last one of the machine leaves nothing."""
        with self._guard:
            self._closed = True
            held, self._held = self._held, None
        if held is not None:
            _remove_unheld(self._folder, held)

    def _count(self, **more: int) -> None:
        with self._guard:
            known = self.statistics
            self.statistics = replace(known, **{name: getattr(known, name) + by for name, by in more.items()})

    # ------------------------------------------------------------------ the folder

    def _is_open(self) -> bool:
        if self._held is None:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._held = _hold(self._folder)
            for each in self._place.glob(f"{_PREFIX}{os.getuid()}-*"):
                if each != self._folder:
                    with suppress(OSError):
                        _remove_unheld(each, os.open(each, os.O_RDONLY | os.O_CLOEXEC))
        return True

    def _book(self, task: str) -> CopyBook:
        return self._books.setdefault(task, CopyBook())

    def _path(self, handle: StateHandle) -> Path:
        """Of a handle, which may come from storage: the names in it are no paths."""
        return self._folder / safe_name(_task_of(handle)) / safe_name(handle.digest)

    def _make_room(self, size: int) -> bool:
        facts = os.statvfs(self._folder)
        if facts.f_bavail * facts.f_frsize - size < facts.f_blocks * facts.f_frsize * _FREE_SHARE:
            return False
        found: dict[str, Found] = {}
        for path in self._folder.glob("*/*"):
            with suppress(FileNotFoundError):  # another process has let it go
                known = path.stat()
                found[str(path)] = Found(known.st_size, known.st_mtime)
        books = self._books.items()
        wanted = frozenset(str(self._folder / task / name) for task, book in books for name in book.wanted)
        going = to_let_go(found, wanted, size, self._most)
        for each in going or ():
            with suppress(FileNotFoundError):
                os.unlink(each)
        return going is not None


def _partial(name: str) -> str:
    """What a copy is called while this process writes it."""
    return f"{name}.{os.getpid()}"


def _task_of(handle: StateHandle) -> str:
    """The folder of a task, as its state files' names have it."""
    return handle.location.split("/")[-2] if handle.location.count("/") else ""


def _by_task(handles: Iterable[StateHandle]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for handle in handles:
        if handle.location:
            names.setdefault(safe_name(_task_of(handle)), []).append(handle.digest)
    return names


def _hold(folder: Path) -> int:
    """A shared lock on the folder, which is made again if somebody removes it meanwhile. Raises OSError where it is not
    this user's alone."""
    while True:
        held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
        facts = os.fstat(held)
        if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            os.close(held)
            raise PermissionError(f"{folder} is open to others, or theirs")
        fcntl.flock(held, fcntl.LOCK_SH)  # waits, if at all, for somebody who removes it
        if folder.exists() and os.path.samestat(facts, os.stat(folder)):
            return held
        os.close(held)
        folder.mkdir(mode=0o700, exist_ok=True)


def _remove_unheld(folder: Path, lock: int) -> None:
    """Remove the folder unless somebody else holds it, and let go of ``lock``."""
    try:
        fcntl.flock(lock, fcntl.LOCK_UN)  # of two that leave at once, each finds the other one gone
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


def _note(error: OSError) -> None:
    _log.warning("no local copy of a state is kept: %s", error)
