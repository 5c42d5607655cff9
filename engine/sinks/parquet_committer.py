"""The second phase of the Parquet sink: prepared files become data files, once.

Rules:

1. A file appears whole or not at all: by a rename where the file system has an atomic one (local, HDFS), by a copy
   on object stores, where an object is visible only when it is complete. It is committed once the folder is synced.
2. A data file that is there already was committed before: its name belongs to one committable alone. The committable
   states the size, so that a copy broken off on some other file system is told from a whole one.
3. Committables come from storage, so their paths are checked to lie inside the folder.
4. ``clean`` is for moments when no task of the sink writes: before a job starts and after it has ended.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from pyarrow import fs

from ..durable import sync_folder
from ..errors import StorageError
from ..identity import CommitPermit, Committable
from ..sources.files import is_local, safe_name, storage_error
from .parquet_writer import STAGING, remove

_ATOMIC_RENAME = {"local", "hdfs"}


class ParquetCommitter:
    """Commits the committables of one sink of ``job``. Holds no state of its own."""

    def __init__(self, filesystem: fs.FileSystem, folder: str, job: str) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._staging = f"{STAGING}/{safe_name(job)}"

    def commit(self, permit: CommitPermit) -> None:
        """Make the files of the permit visible; those that are visible already stay as they are."""
        files = [file for each in permit.committables for file in each.payload["files"]]
        try:
            for file in files:
                self._publish(self._inside(file["staged"]), self._inside(file["final"]), int(file["bytes"]))
            if files:
                sync_folder(self._filesystem, self._folder)
        except OSError as error:
            raise storage_error("commit files in", self._folder, error) from error

    def _publish(self, staged: str, final: str, size: int) -> None:
        here, there = self._filesystem.get_file_info([staged, final])
        if there.type == fs.FileType.File and there.size == size:
            remove(self._filesystem, staged)
            return
        if here.type != fs.FileType.File:
            # another committer of the same permit may have been faster
            if self._filesystem.get_file_info(final).size != size:
                raise self._lost(staged, final)
        elif self._filesystem.type_name not in _ATOMIC_RENAME:
            self._filesystem.copy_file(staged, final)
            remove(self._filesystem, staged)
        elif there.type != fs.FileType.NotFound:
            raise StorageError(
                f"{final} is there, but is not the file that {staged} should become",
                "keep other programs out of the output folder: move that file away and start the job again",
            )
        else:
            with suppress(FileNotFoundError):
                self._filesystem.move(staged, final)
            if self._filesystem.get_file_info(final).size != size:
                raise self._lost(staged, final)

    def _lost(self, staged: str, final: str) -> StorageError:
        return StorageError(
            f"neither the prepared file {staged} nor the committed file {final} is there",
            "something else removed it; start over with an empty output folder and an empty checkpoint folder",
        )

    def clean(self, keep: Sequence[Committable]) -> None:
        """Remove the job's staged files that ``keep`` does not name, and the staging folder once it is empty."""
        kept = {self._inside(file["staged"]) for each in keep for file in each.payload["files"]}
        staging = f"{self._folder}/{self._staging}"
        try:
            found = self._filesystem.get_file_info(fs.FileSelector(staging, allow_not_found=True))
            left = [each.path for each in found if each.path not in kept]
            for path in left:
                self._filesystem.delete_file(path)
            if len(left) == len(found):
                self._remove_staging(staging)
        except OSError as error:
            raise storage_error("remove abandoned files from", staging, error) from error

    def _remove_staging(self, staging: str) -> None:
        if not is_local(self._filesystem):
            # on object stores an empty folder is nothing, or one marker object of this job's own
            if self._filesystem.get_file_info(staging).type == fs.FileType.Directory:
                self._filesystem.delete_dir(staging)
            return
        for folder in (staging, os.path.dirname(staging)):
            # another job's files may be staged beside ours
            with suppress(OSError):
                os.rmdir(folder)

    def _inside(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise StorageError(f"the prepared file {name!r} lies outside {self._folder}", "the checkpoint was altered")
        return f"{self._folder}/{name}"
