"""The digests of a feed's batches, in small files beside the checkpoints: what ``penstock verify-order`` compares.

They lie in ``<checkpoint folder>/<job>/feeds/<feed>/<first>-<end>-<random>-<digest>.digests.arrow``: Arrow IPC files
of one column, with the batch size in their metadata, the attempt, and the first batch that no rank had taken. Any Arrow
tool can read them. The end of the name is the digest of the file's bytes.

Rules:

1. A file never changes. Those of a chunk of ``CHUNK`` batches grow with each checkpoint: the next one holds what the
   one before it held, which is then removed. So there are as many files as chunks, and one more for each restart.
2. A file is complete before the checkpoint that covers it is: a feed that goes on from a checkpoint leaves no gap.
3. Batches may be in several files; those that ranks took should not contradict each other (``digests.merged``).
4. A file appears whole. One whose bytes do not fit its name is damaged: an error, not a gap.
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

from ...engine.core.errors import ConfigurationError
from ...engine.feed.digests import DigestRun, Recorded, merged
from ...engine.files.durable import make_folder, put_file
from ...engine.files.paths import absolute, resolve, safe_name, storage_error
from ...engine.integrity.checksums import digest
from .damage import FROM_A_COPY, check_bytes
from .stores import checkpoint_folder

CHUNK = 4096
"""Batches of a file that is full: 32 KiB."""

_NAME = re.compile(r"(\d+)-(\d+)-[0-9a-f]+-([0-9a-f]{32})\.digests\.arrow")
_BATCH_SIZE, _TAKEN, _ATTEMPT = b"penstock.batch_size", b"penstock.taken", b"penstock.attempt"


class DigestFiles:
    """The digests of one feed."""

    def __init__(self, folder: str, job: str, feed: str) -> None:
        self._url = f"{absolute(folder).rstrip('/')}/{safe_name(job)}/feeds/{safe_name(feed)}"
        self._filesystem, self._folder = resolve(self._url)
        self._lock = Lock()
        #: of the chunk that is not full
        self._open: DigestRun | None = None
        self._last = ""
        self._made = False

    def record(self, run: DigestRun, batch_size: int) -> None:
        """Keep the digests of some more batches, or that ranks have taken more. Raises StorageError."""
        with self._lock:
            if len(run.digests) or (self._open is not None and self._open.end == run.first):
                self._record(run, batch_size)

    def _record(self, run: DigestRun, batch_size: int) -> None:
        if self._open is not None and self._open.end == run.first:
            taken = None if None in (self._open.taken, run.taken) else max(self._open.taken or 0, run.taken or 0)
            run = DigestRun(self._open.first, np.concatenate([self._open.digests, run.digests]), taken, run.attempt)
        else:
            self._last = ""
        data = _to_ipc(run, batch_size)
        name = f"{run.first:012}-{run.end:012}-{uuid.uuid4().hex[:8]}-{digest(data)}.digests.arrow"
        path = f"{self._folder}/{name}"
        try:
            if not self._made:
                make_folder(self._filesystem, self._folder)
                self._made = True
            put_file(self._filesystem, path, data)
            if self._last:
                with suppress(FileNotFoundError):
                    self._filesystem.delete_file(self._last)
        except OSError as error:
            self._made = False
            raise storage_error("record the order of batches in", self._url, error) from error
        is_full = len(run.digests) >= CHUNK
        self._open, self._last = (None, "") if is_full else (run, path)

    def read(self) -> tuple[Recorded, int]:
        """What is recorded, and the batch size. Raises ConfigurationError if nothing is."""
        selector = fs.FileSelector(self._folder, allow_not_found=True)
        runs, sizes = [], set()
        for info in self._filesystem.get_file_info(selector):
            found = _NAME.fullmatch(info.base_name)
            if found is None:
                continue
            try:
                with self._filesystem.open_input_stream(info.path) as stream:
                    data = stream.read()
            except FileNotFoundError:
                continue  # a running job has replaced it
            except OSError as error:
                raise storage_error("read", info.path, error) from error
            check_bytes(info.path, data, len(data), found[3], f"{FROM_A_COPY}, or remove it")
            with ipc.open_file(data) as reader:
                table = reader.read_all()
            told = table.schema.metadata or {}
            taken = int(told[_TAKEN]) if _TAKEN in told else None
            generation, _, number = told.get(_ATTEMPT, b"0.0").partition(b".")
            attempt = int(generation), int(number)
            runs.append(DigestRun(int(found[1]), table.column("digest").to_numpy(), taken, attempt))
            sizes.add(int(told.get(_BATCH_SIZE, b"0")))
        if not runs:
            raise ConfigurationError(
                f"no order of batches is recorded in {self._url}",
                "name the checkpoint folder of a job that feeds ranks and has completed a checkpoint",
            )
        if len(sizes) > 1:
            known = ", ".join(f"of {size:,} rows" if size else "by cost" for size in sorted(sizes))
            raise ConfigurationError(f"{self._url} records batches {known}", "use a folder for each kind of batches")
        return merged(runs), sizes.pop()


def _to_ipc(run: DigestRun, batch_size: int) -> bytes:
    told = {_BATCH_SIZE: str(batch_size).encode()}
    if run.taken is not None:
        told |= {_TAKEN: str(run.taken).encode(), _ATTEMPT: "{}.{}".format(*run.attempt).encode()}
    schema = pa.schema([("digest", pa.uint64())], metadata=told)
    sink = pa.BufferOutputStream()
    with ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(run.digests)], schema=schema))
    return bytes(sink.getvalue())


def recorded_feeds(folder: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Job and feed of all digests below a checkpoint folder."""
    filesystem, inner = resolve(checkpoint_folder(folder).rstrip("/"))
    found = []
    for job in filesystem.get_file_info(fs.FileSelector(inner, allow_not_found=True)):
        if job.type == fs.FileType.Directory:
            feeds = filesystem.get_file_info(fs.FileSelector(f"{job.path}/feeds", allow_not_found=True))
            found += [(job.base_name, feed.base_name) for feed in feeds if feed.type == fs.FileType.Directory]
    return sorted(found)
