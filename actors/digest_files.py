"""The digests of a feed's batches, in small files beside the checkpoints: what ``penstock verify-order`` compares.

They lie in ``<checkpoint folder>/<job>/feeds/<feed>/<first>-<end>-<random>.digests.arrow``: Arrow IPC files of one
column, the batch size in their metadata. Any Arrow tool can read them.

Rules:

1. A file never changes. Those of a chunk of ``CHUNK`` batches grow with each checkpoint: the next one holds what the
   one before it held, which is then removed. So there are as many files as chunks, and one more for each restart.
2. A file is complete before the checkpoint that covers it is: a feed that goes on from a checkpoint leaves no gap.
3. Batches may stand in several files; they should not contradict each other (``batch_digests.merged``).
4. A file without its end is being written, or its writer was killed: no checkpoint covers it, and nobody reads it.
"""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
from threading import Lock

import numpy as np
import pyarrow as pa
from pyarrow import fs, ipc

from ..engine.batch_digests import DigestRun, Recorded, merged
from ..engine.errors import ConfigurationError, StorageError
from ..engine.sources.files import absolute, make_durable, resolve, safe_name, storage_error

CHUNK = 4096
"""Batches of a file that is full: 32 KiB."""

_NAME = re.compile(r"(\d+)-(\d+)-[0-9a-f]+\.digests\.arrow")
_BATCH_SIZE = b"penstock.batch_size"


class DigestFiles:
    """The digests of one feed."""

    def __init__(self, folder: str, job: str, feed: str) -> None:
        self._url = f"{absolute(folder).rstrip('/')}/{safe_name(job)}/feeds/{safe_name(feed)}"
        self._filesystem, self._folder = resolve(self._url)
        self._lock = Lock()
        #: of the chunk that is not full
        self._open: DigestRun | None = None
        self._last = ""

    def record(self, run: DigestRun, batch_size: int) -> None:
        """Keep the digests of some more batches. Raises StorageError."""
        if len(run.digests):
            with self._lock:
                self._record(run, batch_size)

    def _record(self, run: DigestRun, batch_size: int) -> None:
        if self._open is not None and self._open.end == run.first:
            run = DigestRun(self._open.first, np.concatenate([self._open.digests, run.digests]))
        else:
            self._last = ""
        path = f"{self._folder}/{run.first:012}-{run.end:012}-{uuid.uuid4().hex[:8]}.digests.arrow"
        try:
            self._filesystem.create_dir(self._folder, recursive=True)
            self._write(path, run, batch_size)
            if self._last:
                with suppress(FileNotFoundError):
                    self._filesystem.delete_file(self._last)
        except OSError as error:
            raise storage_error("record the order of batches in", self._url, error) from error
        is_full = len(run.digests) >= CHUNK
        self._open, self._last = (None, "") if is_full else (run, path)

    def _write(self, path: str, run: DigestRun, batch_size: int) -> None:
        schema = pa.schema([("digest", pa.uint64())], metadata={_BATCH_SIZE: str(batch_size).encode()})
        try:
            with self._filesystem.open_output_stream(path) as stream, ipc.new_file(stream, schema) as writer:
                writer.write_batch(pa.record_batch([pa.array(run.digests)], schema=schema))
            make_durable(self._filesystem, path)
        except OSError:
            with suppress(OSError):
                self._filesystem.delete_file(path)
            raise

    def read(self) -> tuple[Recorded, int]:
        """What is recorded, and the batch size. Raises ConfigurationError if nothing is."""
        selector = fs.FileSelector(self._folder, allow_not_found=True)
        runs, sizes = [], set()
        for info in self._filesystem.get_file_info(selector):
            found = _NAME.fullmatch(info.base_name)
            if found is None:
                continue
            try:
                with self._filesystem.open_input_file(info.path) as file, ipc.open_file(file) as reader:
                    table = reader.read_all()
            except (FileNotFoundError, pa.ArrowInvalid):
                continue  # a running job has replaced it, or rule 4
            except OSError as error:
                raise StorageError(f"{info.path} cannot be read: {error}", "restore it, or remove it") from error
            runs.append(DigestRun(int(found[1]), table.column("digest").to_numpy()))
            sizes.add(int((table.schema.metadata or {}).get(_BATCH_SIZE, b"0")))
        if not runs:
            raise ConfigurationError(
                f"no order of batches is recorded in {self._url}",
                "name the checkpoint folder of a job that feeds ranks and has completed a checkpoint",
            )
        if len(sizes) > 1:
            known = ", ".join(map(str, sorted(sizes)))
            raise ConfigurationError(f"{self._url} records batches of {known} rows", "use a folder for each batch size")
        return merged(runs), sizes.pop()


def recorded_feeds(folder: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Job and feed of all digests below a checkpoint folder."""
    filesystem, inner = resolve(absolute(folder).rstrip("/"))
    found = []
    for job in filesystem.get_file_info(fs.FileSelector(inner, allow_not_found=True)):
        if job.type == fs.FileType.Directory:
            feeds = filesystem.get_file_info(fs.FileSelector(f"{job.path}/feeds", allow_not_found=True))
            found += [(job.base_name, feed.base_name) for feed in feeds if feed.type == fs.FileType.Directory]
    return sorted(found)
