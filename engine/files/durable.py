"""What is stored, so that a power cut does not take it back: files, folders, and files that appear whole.

A thing is stored when its bytes and every new entry of a folder that leads to it have been synced. Everything that
counts as stored goes through these functions: log, state, savepoints, split sets, models, notices, digests, sinks.

Rules:

1. First the bytes of a file, then its name: a name that is there after a power cut has its bytes behind it.
2. ``make_folder`` syncs every folder above, up to the mount point, also those that it finds: somebody else may have
   made one a moment ago and died before its entry was synced. So it costs a sync a level; who writes many files into
   one folder calls it once.
3. Several files of one folder are synced together: each file, then the folder once.
4. What lies in a folder that goes with this process is not synced (``goes_with_process``): nothing goes on from it.
5. Only local paths (and what is mounted, NFS among it) are synced. Object stores and HDFS store by themselves; an
   object also appears whole by itself.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from contextlib import suppress

from pyarrow import fs

from .object_files import files_of

LOCAL = fs.LocalFileSystem()

_CANNOT_SYNC_FOLDERS = {errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EROFS}
"""What file systems say that do not sync folders, or that nobody can have written to."""


_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
"""What file systems say that have no links."""


_PASSING: set[str] = set()
"""Folders that go with this process, as they are and without links."""


def goes_with_process(folder: str) -> None:
    """Nobody looks for what is in the folder once this process is over."""
    _PASSING.update((folder, os.path.realpath(folder)))


def was_removed(folder: str) -> None:
    """The folder was removed, before the process is over."""
    _PASSING.difference_update((folder, os.path.realpath(folder)))


def _is_passing(path: str) -> bool:
    """Whether the path is such a folder, or lies in one."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in tuple(_PASSING))


def make_folder(filesystem: fs.FileSystem, folder: str) -> None:
    """Make the folder and those above it, and return once they survive a power cut."""
    if _is_local(filesystem) and _is_passing(folder):
        os.makedirs(folder, exist_ok=True)
    elif _is_local(filesystem):
        _make_local(os.path.realpath(folder))
    else:
        filesystem.create_dir(folder, recursive=True)


def make_durable(filesystem: fs.FileSystem, *paths: str) -> None:
    """Return once these files survive a power cut. Their folders were made by ``make_folder``."""
    for path in paths:
        sync_file(filesystem, path)
    for folder in {os.path.dirname(path): None for path in paths}:
        sync_folder(filesystem, folder)


def sync_file(filesystem: fs.FileSystem, path: str) -> None:
    """Return once the bytes of a file survive a power cut; its name may not."""
    if _is_local(filesystem):
        _sync(path)


def sync_folder(filesystem: fs.FileSystem, folder: str) -> None:
    """Return once the names in a folder survive a power cut."""
    if _is_local(filesystem):
        try:
            _sync(folder)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC_FOLDERS:
                raise


def put_file(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    """Write a file that appears whole, in place of the one that may be there, and survives a power cut."""
    if (objects := files_of(filesystem)) is not None:
        objects.bucket.put(objects.key(path), data)
        return
    folder, name = os.path.split(path)
    aside = f"{folder}/.{name}.{uuid.uuid4().hex}"
    try:
        with filesystem.open_output_stream(aside) as stream:
            stream.write(data)
        sync_file(filesystem, aside)
        filesystem.move(aside, path)
    except OSError:
        with suppress(OSError):
            filesystem.delete_file(aside)
        raise
    sync_folder(filesystem, folder)


def appear(
    aside: str,
    path: str,
    *,
    link: Callable[[str, str], None] | None = None,
    without_links: Callable[[str, str], bool] | None = None,
) -> bool:
    """Let the local file ``aside`` have the name ``path``; False: the name is another file's. It is done by a link
    (``link``), which fails if the name is taken, and by ``without_links`` where the file system has none: if not given,
    by a rename, for names that nobody else wants. ``aside`` may stay. The folder is to be synced."""
    try:
        (link or os.link)(aside, path)
    except FileExistsError:
        # a file server may have made the link and lost the reply; then the file has two names
        return os.stat(aside).st_nlink > 1
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return (without_links or _rename)(aside, path)
    return True


def _rename(aside: str, path: str) -> bool:
    os.rename(aside, path)
    return True


def _is_local(filesystem: fs.FileSystem) -> bool:
    return isinstance(filesystem, fs.LocalFileSystem)


def _make_local(folder: str) -> None:
    """``folder``: a real path. Each level is looked at once: the rest of the work is the syncs."""
    path, found = folder, _status(folder)
    levels: list[tuple[str, str, bool]] = []
    while (parent := os.path.dirname(path)) != path:
        above = _status(parent)
        if found is not None and above is not None and found.st_dev != above.st_dev:
            break  # where something is mounted
        levels.append((parent, path, found is not None))
        path, found = parent, above
    for parent, path, was_there in reversed(levels):
        _make_level(parent, path, was_there)


def _status(path: str) -> os.stat_result | None:
    """What the path is; None if it cannot be seen: making it tells why."""
    try:
        return os.stat(path)
    except OSError:
        return None


def _make_level(parent: str, folder: str, found: bool) -> None:
    if not found:
        with suppress(FileExistsError):
            os.mkdir(folder)
    try:
        sync_folder(LOCAL, parent)
    except PermissionError:
        # of a folder that is not ours to read, nobody of us can be expected to have made the entry
        if not found:
            raise


def _sync(path: str) -> None:
    if _is_passing(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
