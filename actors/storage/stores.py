"""Where a checkpoint folder keeps its keys: from its address to a store on a file system, or in a bucket.

The protocol is :class:`penstock.coordinator.model.store.Store`; a folder can be copied from one kind to the other. The
owners of an output are kept in a store, too.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from contextlib import suppress

from pyarrow import fs

from ...coordinator.model.store import Store
from ...engine.core.errors import ConfigurationError
from ...engine.files.durable import LOCAL, appear, make_folder, sync_file, sync_folder
from ...engine.files.object_files import files_of
from ...engine.files.object_store import Bucket, bucket_of
from ...engine.files.paths import absolute, is_local, local_path, storage_error
from .memory_store import log_in_memory


class FileStore:
    """A folder on a file system: local, or shared by all machines (NFS and its like). ``link`` makes a hard link.

    1. A key appears whole or not at all. Its bytes are written to a hidden file beside it, flushed to the disk, and
       then linked to the key's name, which fails if the name is taken: the link is the decision.
    2. Where the file system has no links, an exclusively created claim file decides, and a rename makes the key appear.
       A creator that dies between the two blocks the key; the error of the next one says which file to delete.
    3. Names that begin with ``.`` are the store's own; keys cannot have them.
    4. Whatever the operating system refuses is raised as OSError, as the protocol asks.
    5. A folder into which this store has written and that is gone is not made again: a log that goes on without its
       entries stops no stale coordinator, and nothing can be gone on with from it.
    """

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
        if folder not in self._made:
            make_folder(LOCAL, folder)
            self._made.add(folder)
        elif not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
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
        return os.path.join(self._folder, *_parts(key))


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


class BucketStore:
    """The objects below a folder of a bucket. Of several puts with ``If-None-Match: *`` one makes the object, whole; a
    put whose reply was lost is told from somebody else's (``engine.files.object_store``, rule 3)."""

    def __init__(self, bucket: Bucket, folder: str) -> None:
        self._bucket = bucket
        self._root = f"{folder}/" if folder else ""

    def create(self, key: str, data: bytes) -> bool:
        """Create ``key`` unless it exists."""
        return self._bucket.create(self._object(key), data)

    def read(self, key: str) -> bytes | None:
        """The bytes of ``key``, or None if there is none."""
        try:
            return self._bucket.read(self._object(key))
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> list[str]:
        """All keys that begin with ``prefix``, sorted."""
        below = f"{self._root}{prefix}".rpartition("/")[0]  # the store lists whole folders
        keys = (found.key.removeprefix(self._root) for found in self._bucket.below(below))
        return sorted(key for key in keys if key.startswith(prefix) and not _is_hidden(key))

    def delete(self, key: str) -> None:
        """Delete ``key``; nothing happens if it does not exist."""
        self._bucket.delete(self._object(key))

    def _object(self, key: str) -> str:
        return self._root + "/".join(_parts(key))


def _parts(key: str) -> list[str]:
    """The parts of a key. Raises ConfigurationError if it is none."""
    parts = key.split("/")
    if "\0" in key or any(not part or part.startswith(".") for part in parts):
        raise ConfigurationError(
            f"{key!r} cannot be a key of the checkpoint folder",
            "a key is a relative path; none of its parts may be empty or begin with a dot",
        )
    return parts


def _is_hidden(key: str) -> bool:
    return any(part.startswith(".") for part in key.split("/"))


def checkpoint_folder(url: str | os.PathLike[str]) -> str:
    """The folder that a user's address means: a local path, or a folder of a bucket. Raises ConfigurationError."""
    place = absolute(url).rstrip("/") or "/"
    found = bucket_of(place)
    if found is None:
        return local_path(
            url,
            "the checkpoint folder",
            "give a local path, file:///… on storage that all machines share, or a folder of a bucket: s3://…, "
            "gs://… or az://…; the log needs a store that creates an object only if it is absent",
        )
    return plain_address(place, "the checkpoint folder")


def plain_address(url: str | os.PathLike[str], what: str) -> str:
    """The place that a user's address means, which is written down with the job: so one in a bucket must not say who
    asks, or how to get there. Raises ConfigurationError."""
    place = absolute(url)
    found = bucket_of(place)
    if found is not None and (found[0].settings or "?" in place):
        raise ConfigurationError(
            f"{what} {place} holds more than a place",
            "give s3://bucket/folder alone: the address is written down with the job; who asks, region and endpoint "
            "belong into storage_options=, or the environment (AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL, …)",
        )
    return place


def open_store(url: str | os.PathLike[str]) -> Store:
    """The store in the folder, which is made if it does not exist; or the one in memory that stands for it. Raises
    ConfigurationError if it cannot be used.

    Who only reads has nothing to sync: the store syncs the folder, and all above it, with the first thing in it.
    """
    if (kept := log_in_memory(os.fspath(url))) is not None:
        return kept
    path = checkpoint_folder(url)
    found = bucket_of(path)
    if found is not None:
        return BucketStore(*found)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        failed = storage_error("make the checkpoint folder", path, error)
        raise ConfigurationError(failed.message, "make its parent writable, or choose another folder") from error
    return FileStore(path)


def check_creates(bucket: Bucket, folder: str, what: str) -> None:
    """Raise ConfigurationError if the store makes an object that is there already: two jobs would both get the place,
    and a coordinator that was superseded would not be stopped. What is tried is removed."""
    address = f"{bucket.address}/{folder}"
    try:
        keeps = bucket.keeps_first(folder)
    except OSError as error:
        failed = storage_error(f"write into {what}", address, error)
        raise ConfigurationError(failed.message, failed.remedy) from error
    if not keeps:
        raise ConfigurationError(
            f"the store of {what} {address} replaces an object that was to be created only if it is absent: it ignores "
            "If-None-Match, by which one of several jobs gets a place",
            "use a store that knows conditional puts, as those of AWS, Google and Azure do, or a newer version of this "
            "one; or a folder that all machines share",
        )


def store_in(filesystem: fs.FileSystem, folder: str) -> Store | None:
    """The store in a folder of this file system; None if that cannot create what is absent."""
    if is_local(filesystem):
        return FileStore(folder)
    objects = files_of(filesystem)
    return None if objects is None else BucketStore(objects.bucket, objects.key(folder))


def is_gone(folder: str) -> bool:
    """Whether a checkpoint folder is known not to be there. Nothing is made to find out."""
    return "://" not in folder and not os.path.isdir(folder)


def may_hold_log(place: str) -> bool:
    """Whether there may be a log in a job's folder. Nothing is made to find out."""
    return log_in_memory(os.path.dirname(place)) is not None or not is_gone(f"{place}/log")
