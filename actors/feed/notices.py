"""Small files by which ranks in other processes find their feed, and learn that its job is over.

They lie in ``<checkpoint folder>/<job>/feeds``: ranks need not belong to the cluster, and the folder is what all of
them see. Rules:

1. ``<feed>.json`` names the process that serves the feed; a process that takes its place writes it anew. It holds no
   secret: whoever connects must know the job's token.
2. ``over.json`` says how a run of the job has ended. Both name the run, so that those of an earlier one mean nothing.
3. A folder that is gone means that the job is over: it kept its state in a temporary one.
"""

from __future__ import annotations

import hashlib
import uuid
from contextlib import suppress
from typing import TypeVar

import msgspec
from pyarrow import fs

from ...coordinator.events import Failure
from ...coordinator.statistics import JobStatus
from ...engine.errors import ConfigurationError, PenstockError
from ...engine.sources.files import absolute, resolve, safe_name
from ..translate import error_of, failure_of
from ..transport.endpoint import Endpoint

T = TypeVar("T")


class Served(msgspec.Struct, frozen=True):
    """Who serves a feed."""

    run: str
    endpoint: Endpoint


class Over(msgspec.Struct, frozen=True):
    """How a run has ended. ``finished``: everything has been read."""

    run: str
    finished: bool
    failure: Failure


def run_of(token: bytes) -> str:
    """The name of a run: the same for all who know its token, of no use to others."""
    return hashlib.sha256(b"run of " + token).hexdigest()[:16]


def how_it_ended(status: JobStatus, run: str) -> Over:
    """The notice of a job that is over."""
    message = f"job {status.job!r} is over: {status.state}"
    remedy = "run it again with the same checkpoint folder to go on reading"
    failure = status.failure or failure_of(ConfigurationError(message, remedy))
    return Over(run, status.state == "finished", failure)


def shut_down(job: str, run: str) -> Over:
    """The notice of a job that its script has ended."""
    error = ConfigurationError(f"job {job!r} was shut down", "run it again to go on reading")
    return Over(run, False, failure_of(error))


class FeedNotices:
    """The notices of one run of a job."""

    def __init__(self, folder: str, job: str, run: str) -> None:
        self.folder = folder
        self._files, root = resolve(absolute(folder))
        self._root = root.rstrip("/")
        self._folder = f"{self._root}/{safe_name(job)}/feeds"
        self._job = job
        self.run = run

    def serve(self, feed: str, endpoint: Endpoint) -> None:
        """Say who serves a feed. Raises OSError."""
        self._write(f"{safe_name(feed)}.json", Served(self.run, endpoint))

    def end(self, over: Over) -> None:
        """Say that the run is over; who cannot be told runs into a timeout."""
        with suppress(OSError):
            self._write("over.json", over)

    def server(self, feed: str) -> Endpoint | None:
        """Who serves a feed; None if nobody does yet."""
        found = self._read(f"{safe_name(feed)}.json", Served)
        return found.endpoint if found is not None and found.run == self.run else None

    def over(self) -> Over | None:
        """How the run has ended, if it has."""
        found = self._read("over.json", Over)
        if found is not None:
            return found if found.run == self.run else None
        if self._files.get_file_info(self._root).type == fs.FileType.NotFound:
            message = f"job {self._job!r} is over, and its temporary folder {self._root} gone"
            remedy = 'to go on reading later, run it with checkpoints=ps.Checkpoints("state/")'
            return Over(self.run, True, failure_of(ConfigurationError(message, remedy)))
        return None

    def _write(self, name: str, notice: Served | Over) -> None:
        self._files.create_dir(self._folder, recursive=True)
        aside = f"{self._folder}/.{name}.{uuid.uuid4().hex}"
        with self._files.open_output_stream(aside) as stream:
            stream.write(msgspec.json.encode(notice))
        self._files.move(aside, f"{self._folder}/{name}")

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            with self._files.open_input_stream(f"{self._folder}/{name}") as stream:
                return msgspec.json.decode(stream.read(), type=kind)
        except (OSError, msgspec.MsgspecError):
            return None


def error_of_end(over: Over) -> PenstockError:
    """What a rank is told."""
    return error_of(over.failure)
