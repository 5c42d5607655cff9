"""The second phase of a sink of files: prepared files become data files, once.

Rules:

1. A file appears whole or not at all: by a rename where the file system has an atomic one (local, HDFS), by a copy
   on object stores, where an object is visible only when it is complete. It is committed once the folder is synced;
   what was staged is removed then, and not before.
2. A data file that is there already was committed before if its content has the digest that the committable states.
   Anything else there is an error, and stays: locally a file appears by a link, which fails if the name is taken; on
   object stores a copy is never seen half done. (On other file systems it may be, and is copied again.)
3. Before each commit the folder must still be ours (``CommitPermit.by``), and an exclusive one must hold no file of
   anybody else.
4. Committables come from storage, so their paths are checked to lie inside the folder.
5. Files that are overwritten go once all files of a permit are there, and safe from a power cut: until the first rows
   are committed the folder is as it was, and a job that dies in between removes the rest when it commits again. For a
   moment a reader may see both. Folders of values that are empty then go, too.
6. ``clean`` is for moments when no task of the sink writes: before a job starts and after it has ended. It touches
   only what was staged under the job's own UUID, by claims in its own log.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyarrow import fs

from ..core.errors import ConfigurationError, StorageError
from ..core.identity import CommitPermit, Committable, JobIdentity
from ..files.durable import appear, make_folder, sync_folder
from ..files.object_files import files_of
from ..files.paths import is_local, safe_name, storage_error
from ..integrity.checksums import digest_of
from .file_writer import STAGING, UNCLAIMED, remove
from .output_folder import OWNERS, Mode, OutputFolder, append_prefix, part_of

_ATOMIC_RENAME = {"hdfs"}
_PIECE = 1 << 20


class FileCommitter:
    """Commits the committables of one sink of ``job``. Holds no state of its own."""

    def __init__(self, output: OutputFolder, job: str, mode: Mode) -> None:
        self._output, self._mode = output, mode
        self._filesystem = output.filesystem
        self._folder = output.folder
        self._staging = f"{STAGING}/{safe_name(job)}"

    def commit(self, permit: CommitPermit) -> None:
        """Make the files of the permit visible; those that are visible already stay as they are."""
        files = [file for each in permit.committables for file in each.payload["files"]]
        replaced: Sequence[str] = ()
        try:
            if permit.by is not None:
                replaced = self._check_owner(permit.by)
            folders = sorted({os.path.dirname(self._inside(file["final"])) for file in files})
            for folder in folders:
                if folder != self._folder and files_of(self._filesystem) is None:
                    make_folder(self._filesystem, folder)
            for file in files:
                self._publish(self._inside(file["staged"]), self._inside(file["final"]), file)
            for folder in folders:
                sync_folder(self._filesystem, folder)
            for file in files:
                remove(self._filesystem, self._inside(file["staged"]))
            if files:
                self._remove_replaced(replaced)
        except OSError as error:
            raise storage_error("commit files in", self._folder, error) from error

    def _check_owner(self, identity: JobIdentity) -> Sequence[str]:
        """Rule 3. The names of files that are overwritten."""
        prefix = OWNERS if self._mode == "exclusive" else append_prefix(identity.lineage[0])
        _, owner = self._output.newest(prefix)
        if owner is None or not owner.is_of(identity):
            whose = "nobody" if owner is None else f"generation {owner.generation} of job {owner.job!r} ({owner.uuid})"
            raise ConfigurationError(
                f"the output folder {self._folder} belongs to {whose} now: it was taken over while this job wrote",
                "let one job at a time write there; what this one has not committed stays in its checkpoints",
            )
        if self._mode == "append":
            return ()
        replaced, foreign = self._output.told_apart(self._output.others(identity.lineage), identity.lineage)
        if foreign:
            raise ConfigurationError(
                f"the output folder {self._folder} holds {len(foreign)} files that are not this job's: "
                f"{foreign[0]} is one",
                "move them away and start the job again: it goes on from its last checkpoint; several writers "
                'need mode="append"',
            )
        return replaced

    def _remove_replaced(self, names: Sequence[str]) -> None:
        """Rule 5."""
        for name in names:
            with suppress(FileNotFoundError):
                self._filesystem.delete_file(self._inside(name))
        folders = {os.path.dirname(name) for name in names}
        for folder in folders:
            sync_folder(self._filesystem, f"{self._folder}/{folder}".rstrip("/"))
        for folder in folders - {""} if is_local(self._filesystem) else ():
            with suppress(OSError):  # it has files still
                os.removedirs(self._inside(folder))

    def _publish(self, staged: str, final: str, file: Mapping[str, Any]) -> None:
        here, there = self._filesystem.get_file_info([staged, final])
        if there.type == fs.FileType.NotFound and here.type == fs.FileType.File:
            self._appear(staged, final)
            if self._filesystem.get_file_info(final).size != int(file["bytes"]):
                raise self._lost(staged, final)
        elif there.type == fs.FileType.NotFound and self._is_retired(file["final"]):
            return
        elif not self._is_committed(final, file):
            if there.type == here.type == fs.FileType.File and self._copies and files_of(self._filesystem) is None:
                self._filesystem.copy_file(staged, final)  # a copy that was broken off: nobody else has this name
            elif there.type == fs.FileType.NotFound:
                raise self._lost(staged, final)
            else:
                raise StorageError(
                    f"{final} is there, but is not the file that {staged} should become",
                    "keep other programs out of the output folder: move that file away and start the job again",
                )

    @property
    def _copies(self) -> bool:
        return not is_local(self._filesystem) and self._filesystem.type_name not in _ATOMIC_RENAME

    def _is_retired(self, name: str) -> bool:
        """Whether the file was committed, and may have been taken away since."""
        part = part_of(name, 0)
        retired = None if part is None else self._output.retired(self._output.lineage_of(part.uuid))
        return retired is not None and retired.covers(name)

    def _appear(self, staged: str, final: str) -> None:
        if is_local(self._filesystem):
            with suppress(FileNotFoundError):  # another committer of the permit was faster
                appear(staged, final)
        elif self._copies:
            self._filesystem.copy_file(staged, final)
        else:
            with suppress(FileNotFoundError):
                self._filesystem.move(staged, final)

    def _is_committed(self, final: str, file: Mapping[str, Any]) -> bool:
        """Whether the file is there, with the content that was prepared."""
        info = self._filesystem.get_file_info(final)
        if info.type != fs.FileType.File or info.size != int(file["bytes"]):
            return False
        with self._filesystem.open_input_stream(final, compression=None) as stream:  # as it is, whatever it is called
            return bool(digest_of(iter(lambda: stream.read(_PIECE), b"")) == file["digest"])

    def _lost(self, staged: str, final: str) -> StorageError:
        return StorageError(
            f"neither the prepared file {staged} nor the committed file {final} is there",
            "something else removed it; start over with an empty output folder and an empty checkpoint folder",
        )

    def clean(self, keep: Sequence[Committable], claims: Sequence[str] = ()) -> None:
        """Remove what the claims have staged and ``keep`` does not name, and the folders that are empty then."""
        kept = {self._inside(file["staged"]) for each in keep for file in each.payload["files"]}
        staging = f"{self._folder}/{self._staging}"
        try:
            for claim in claims or (UNCLAIMED,):
                self._clean_claim(f"{staging}/{safe_name(claim)}", kept)
            for folder in (staging, os.path.dirname(staging)):
                self._remove_empty(folder)
        except OSError as error:
            raise storage_error("remove abandoned files from", staging, error) from error

    def _clean_claim(self, folder: str, kept: Collection[str]) -> None:
        found = self._filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        left = [each.path for each in found if each.path not in kept]
        for path in left:
            self._filesystem.delete_file(path)
        if len(left) == len(found):
            self._remove_empty(folder)

    def _remove_empty(self, folder: str) -> None:
        if is_local(self._filesystem):
            with suppress(OSError):  # another job's files may be staged beside ours
                os.rmdir(folder)
        elif self._staging in folder:
            # on object stores an empty folder is nothing, or one marker object of this job's own
            found = self._filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
            if not found and self._filesystem.get_file_info(folder).type == fs.FileType.Directory:
                self._filesystem.delete_dir(folder)

    def _inside(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise StorageError(f"the prepared file {name!r} lies outside {self._folder}", "the checkpoint was altered")
        return f"{self._folder}/{name}"
