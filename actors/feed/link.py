"""How a reader reaches its feed server: the protocol, and the link within one process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from ...engine.core.errors import ConfigurationError
from ...engine.core.shown import hides_credentials
from ...engine.feed.messages import Ask, Reply
from ...engine.feed.server import SERVERS, FeedServer


class BrokenFeedLinkError(Exception):
    """The feed's process cannot be reached now. The text says why; trying again may help."""


class FeedLink(Protocol):
    """A reader's connection with its feed server."""

    def ask(self, ask: Ask, timeout: float) -> Reply[pa.RecordBatch]:
        """The answer, after ``timeout`` seconds at most. Raises BrokenFeedLinkError, or the error of a job that is
        over."""

    def notify(self, ask: Ask) -> None:
        """Send a request that needs no answer, also while ``ask`` waits; it may get lost."""

    def close(self) -> None:
        """Free its resources."""


class FeedRoute(Protocol):
    """How readers reach a feed. It travels to them, so it can be pickled. ``folder``: the job's checkpoints."""

    @property
    def folder(self) -> str: ...

    def open(self) -> FeedLink:
        """A link for one reader."""


class LocalLink:
    """Function calls within the process."""

    def __init__(self, server: FeedServer) -> None:
        self._server = server

    def ask(self, ask: Ask, timeout: float) -> Reply[pa.RecordBatch]:
        return self._server.serve(ask, timeout)

    def notify(self, ask: Ask) -> None:
        self._server.notify(ask)

    def close(self) -> None:
        """Nothing is held."""


@hides_credentials
@dataclass(frozen=True, slots=True)
class LocalRoute:
    """To a feed of a job that runs in this process, and nowhere else."""

    folder: str
    key: str
    job: str
    feed: str
    process: int

    def open(self) -> LocalLink:
        """A link. Raises ConfigurationError in another process."""
        if self.process != os.getpid():
            raise ConfigurationError(
                f"the feed {self.feed!r} of job {self.job!r} runs in another process and can be read in that one alone",
                "run the job with ps.run, on Ray: its feeds can be read from any process",
            )
        return LocalLink(SERVERS.of(self.key, self.feed))


def local_route(folder: str, key: str, job: str, feed: str) -> LocalRoute:
    """The route to a feed of this process. ``key``: the job's UUID, by which its server is found."""
    return LocalRoute(folder, key, job, feed, os.getpid())
