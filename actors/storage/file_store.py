"""The log's store on a file system: local, or shared by all machines (NFS and its like).

Rules:

1. A key appears whole or not at all. Its bytes are written to a hidden file beside it, flushed to the disk, and then
   linked to the key's name, which fails if the name is taken: the link is the decision.
2. Where the file system has no links, an exclusively created claim file decides, and a rename makes the key appear.
   A creator that dies between the two blocks the key; the error of the next one says which file to delete.
3. Names that begin with ``.`` are the store's own; keys cannot have them.
4. Whatever the operating system refuses is raised as OSError, as the protocol asks.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from contextlib import suppress

from ...engine.core.errors import ConfigurationError
from ...engine.files.durable import LOCAL, appear, make_folder, sync_file, sync_folder
from ...engine.files.paths import local_path


class FileStore:
    """A folder as a :class:`penstock.coordinator.model.store.Store`. ``link`` is what makes a hard link."""

    def __init__(self, folder: str | os.PathLike[str], link: Callable[[str, str], None] = os.link) -> None:
        self._folder = local_path(folder, "the store")
        self._link = link
        #: folders that this store has made, or found, and synced with all above them
        self._made: set[str] = set()

    def create(self, key: str, data: bytes) -> bool:
        """Create ``key`` unless it exists. Returns once it is safe from a power cut."""
        path = self._path(key)
        folder, name = os.path.split(path)
        if os.path.exists(path):
            # it may be ours, of a first try that failed here: now it counts as stored
            sync_folder(LOCAL, folder)
            return False
        if folder not in self._made or not os.path.isdir(folder):
            make_folder(LOCAL, folder)
            self._made.add(folder)
        aside = os.path.join(folder, f".{name}.{uuid.uuid4().hex}")
        try:
            with open(aside, "xb") as file:
                file.write(data)
            sync_file(LOCAL, aside)
            created = appear(aside, path, link=self._link, without_links=_appear_without_link)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(aside)
        sync_folder(LOCAL, folder)
        return created

    def read(self, key: str) -> bytes | None:
        """The bytes of ``key``, or None if there is none."""
        try:
            with open(self._path(key), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def list(self, prefix: str) -> list[str]:
        """All keys that begin with ``prefix``, sorted."""
        below = prefix.rpartition("/")[0]
        root = self._path(below) if below else self._folder
        keys: list[str] = []
        for folder, folders, names in os.walk(root, onerror=_unless_missing):
            folders[:] = [name for name in folders if not name.startswith(".")]
            inside = os.path.relpath(folder, self._folder)
            keys += [os.path.normpath(os.path.join(inside, name)) for name in names if not name.startswith(".")]
        return sorted(key for key in keys if key.startswith(prefix))

    def delete(self, key: str) -> None:
        """Delete ``key``; nothing happens if it does not exist."""
        path = self._path(key)
        for each in (path, _claim_of(path)):
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(each)

    def _path(self, key: str) -> str:
        parts = key.split("/")
        if "\0" in key or any(not part or part.startswith(".") for part in parts):
            raise ConfigurationError(
                f"{key!r} cannot be a key of the checkpoint folder",
                "a key is a relative path; none of its parts may be empty or begin with a dot",
            )
        return os.path.join(self._folder, *parts)


def _claim_of(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".claim.{name}")


def _appear_without_link(aside: str, path: str) -> bool:
    claim = _claim_of(path)
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        if os.path.exists(path):
            return False
        busy = f"claimed by another creator; if none is running, one died here: delete {claim}"
        raise OSError(errno.EBUSY, busy, path) from None
    if os.path.exists(path):
        return False
    os.rename(aside, path)
    return True


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
