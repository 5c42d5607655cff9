"""Service discovery: small files by which ranks in other processes find their feed server, and learn of the job's end.

They lie in ``<checkpoint folder>/<job>/feeds``: ranks need not belong to the cluster, and all of them see that folder.
Rules:

1. ``<feed>.json`` names the process that serves the feed; a process that replaces it writes the file anew. It holds no
   secret: a rank that connects must know the job's token. When everything has been read the file has the number of
   batches: ranks that need nothing more may ask when that process is gone.
2. ``over.json`` says how a run of the job has ended. Both name the run, so that those of an earlier one mean nothing.
3. They are sealed: a damaged one is an error. One of an older format is an earlier run's and means nothing.
4. A folder that is gone means that the job is over: it kept its state in a temporary one. The process of the script
   that has ended the job remembers how many batches there were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeVar

import msgspec
from pyarrow import fs

from ...coordinator.model.events import Failure
from ...coordinator.model.records import FormatError, decode_record, encode_record
from ...coordinator.model.statistics import JobStatus
from ...engine.core.errors import ConfigurationError, PenstockError
from ...engine.files.durable import make_folder, put_file
from ...engine.files.paths import absolute, resolve, safe_name
from ..protocol.translate import error_of, failure_of
from ..storage.damage import decoding
from ..transport.dialling import Endpoint

T = TypeVar("T")

FORMAT = 3
"""Version of the files' form. 2: sealed. 3: how many batches there were."""


class ServerNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which process serves a feed."""

    run: str
    endpoint: Endpoint
    format: int = FORMAT
    batches: int | None = None
    """All of them, when they have been read."""


class EndNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a run has ended. ``finished``: everything has been read."""

    run: str
    finished: bool
    failure: Failure
    format: int = FORMAT


_SERVERS, _ENDS = msgspec.json.Decoder(ServerNotice), msgspec.json.Decoder(EndNotice)


_REMEMBERED: dict[tuple[str, str], int] = {}
"""By run and feed: how many batches there were, of jobs whose folder has gone and that this process has ended
(rule 4): routes come pickled, so nothing of the job itself is at hand."""


def run_of(token: bytes) -> str:
    """The name of a run: the same for all processes that know its token, of no use to others."""
    return hashlib.sha256(b"run of " + token).hexdigest()[:16]


WAYS_ON = {
    "finished": "its feed has been read to the end: to read it again, run it in another checkpoint folder, and with "
    "other outputs if it has some",
    "stopped": "go on from its savepoint in another checkpoint folder: ps.run(flow, from_snapshot=…)",
    "superseded": "another run has taken it over: take a handle of that one's feed, job.feed()",
}
"""By the state that a job has ended in."""
GO_ON = "run it again with the same checkpoint folder to go on reading"
"""After any other."""


def end_of_job(status: JobStatus) -> PenstockError:
    """The error for ranks that still wait when the job is over, or come later."""
    if status.failure is not None:
        return error_of(status.failure)
    return ConfigurationError(f"job {status.job!r} is over: {status.state}", WAYS_ON.get(status.state, GO_ON))


def how_it_ended(status: JobStatus, run: str) -> EndNotice:
    """The notice of a job that is over."""
    return EndNotice(run, status.state == "finished", status.failure or failure_of(end_of_job(status)))


def shut_down(job: str, run: str) -> EndNotice:
    """The notice of a job that its script has ended."""
    error = ConfigurationError(f"job {job!r} was shut down", "run it again to go on reading")
    return EndNotice(run, False, failure_of(error))


class FeedDiscovery:
    """The files of one run of a job."""

    def __init__(self, folder: str, job: str, run: str) -> None:
        self.folder = folder
        self._files, root = resolve(absolute(folder))
        self._root = root.rstrip("/")
        self._folder = f"{self._root}/{safe_name(job)}/feeds"
        self._job = job
        self.run = run

    def publish(self, feed: str, endpoint: Endpoint, batches: int | None = None) -> None:
        """Publish which process serves a feed, and how many batches it had when all have been read. Raises OSError."""
        self._write(f"{safe_name(feed)}.json", ServerNotice(self.run, endpoint, batches=batches))

    def publish_end(self, end: EndNotice) -> None:
        """Publish that the run is over, unless that was done: a later shutdown says less than how the run has ended.
        Ranks that do not find it run into a timeout."""
        with suppress(OSError):
            if not self._has_ended():
                self._write("over.json", end)

    def _has_ended(self) -> bool:
        try:
            found = self._read("over.json", _ENDS)
            return found is not None and found.run == self.run
        except PenstockError:  # a damaged file is written anew
            return False

    def server(self, feed: str) -> Endpoint | None:
        """Which process serves a feed; None if none does yet."""
        found = self._served(feed)
        return None if found is None else found.endpoint

    def batches(self, feed: str) -> int | None:
        """How many batches a feed had that has been read to its end; None if it is not known to have been."""
        found = self._served(feed)
        return _REMEMBERED.get((self.run, feed)) if found is None else found.batches

    def remember(self, feeds: Iterable[str]) -> None:
        """Keep in this process how many batches they had: the folder goes."""
        for feed in feeds:
            if (batches := self.batches(feed)) is not None:
                _REMEMBERED[self.run, feed] = batches

    def _served(self, feed: str) -> ServerNotice | None:
        found = self._read(f"{safe_name(feed)}.json", _SERVERS)
        return found if found is not None and found.run == self.run else None

    def end_of_run(self) -> EndNotice | None:
        """How the run has ended, if it has."""
        found = self._read("over.json", _ENDS)
        if found is not None:
            return found if found.run == self.run else None
        if self._files.get_file_info(self._root).type == fs.FileType.NotFound:
            message = f"job {self._job!r} is over, and its temporary folder {self._root} gone"
            remedy = 'to go on reading later, run it with checkpoints=ps.Checkpoints("state/")'
            return EndNotice(self.run, True, failure_of(ConfigurationError(message, remedy)))
        return None

    def _write(self, name: str, notice: ServerNotice | EndNotice) -> None:
        make_folder(self._files, self._folder)
        put_file(self._files, f"{self._folder}/{name}", encode_record(notice))

    def _read(self, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
        path = f"{self._folder}/{name}"
        try:
            with self._files.open_input_stream(path) as stream:
                data = stream.read()
        except OSError:
            return None
        with decoding(path, "remove that file, and start the job again if it does not go on"), suppress(FormatError):
            return decode_record(data, decoder, FORMAT)
        return None


def error_of_end(end: EndNotice) -> PenstockError:
    """The error for a rank."""
    return error_of(end.failure)
