"""From the address of a checkpoint folder to the store that keeps its log, and from a folder of an output to the one
that keeps its owners."""

from __future__ import annotations

import os

from pyarrow import fs

from ...coordinator.model.store import Store
from ...engine.core.errors import ConfigurationError
from ...engine.files.object_files import files_of
from ...engine.files.object_store import bucket_of
from ...engine.files.paths import absolute, is_local, local_path, storage_error
from .bucket_store import BucketStore
from .file_store import FileStore


def checkpoint_folder(url: str | os.PathLike[str]) -> str:
    """The folder that a user's address means: a local path, or a folder of a bucket. Raises ConfigurationError."""
    place = absolute(url).rstrip("/") or "/"
    found = bucket_of(place)
    if found is None:
        return local_path(
            url,
            "the checkpoint folder",
            "give a local path, file:///… on storage that all machines share, or a folder of a bucket: s3://… or "
            "gs://…; the log needs a store that creates an object only if it is absent",
        )
    return plain_address(place, "the checkpoint folder")


def plain_address(url: str | os.PathLike[str], what: str) -> str:
    """The place that a user's address means, which is written down with the job: so one in a bucket must not say who
    asks, or how to get there. Raises ConfigurationError."""
    place = absolute(url)
    found = bucket_of(place)
    if found is not None and (found[0].settings or "?" in place):
        raise ConfigurationError(
            f"{what} {place} says more than where it is",
            "give s3://bucket/folder alone: the address is written down with the job; who asks, region and endpoint "
            "belong into the environment (AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL, …)",
        )
    return place


def open_store(url: str | os.PathLike[str]) -> Store:
    """The store in the folder, which is made if it does not exist. Raises ConfigurationError if it cannot be used.

    Who only reads has nothing to sync: the store syncs the folder, and all above it, with the first thing in it.
    """
    path = checkpoint_folder(url)
    found = bucket_of(path)
    if found is not None:
        return BucketStore(*found)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        told = storage_error("make the checkpoint folder", path, error)
        raise ConfigurationError(told.message, "make its parent writable, or choose another folder") from error
    return FileStore(path)


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
    return not is_gone(f"{place}/log")
