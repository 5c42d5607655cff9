"""How a reader reaches its feed server: the protocol, and the link within one process."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

import pyarrow as pa

from ...engine.core.errors import ConfigurationError
from ...engine.core.shown import hides_credentials
from ...engine.feed.messages import Ask, Reply, end_for
from ...engine.feed.server import FeedServer
from ...engine.feed.status import FeedStatus
from ...engine.plan.plan import JobPlan


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


class RemoteLink(FeedLink, Protocol):
    """One to another process."""

    @property
    def is_near(self) -> bool:
        """Whether that was found on this machine."""


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


@dataclass(frozen=True, slots=True)
class EndedRoute:
    """To a feed that was read to its end by a job that has finished, for ranks that have seen all ``batches`` of it:
    nobody serves it any more."""

    folder: str
    feed: str
    batches: int

    def open(self) -> EndedLink:
        """A link for one reader."""
        return EndedLink(self.feed, self.batches)


class EndedLink:
    """Says that nothing comes."""

    def __init__(self, feed: str, batches: int) -> None:
        self._feed, self._batches = feed, batches

    def ask(self, ask: Ask, timeout: float) -> Reply[pa.RecordBatch]:
        if ask.asks_status:
            return Reply(None, status=FeedStatus(self._feed, batches=self._batches))
        reply: Reply[pa.RecordBatch] | None = end_for(ask, self._batches)
        if reply is None:
            raise ConfigurationError(
                f"feed {self._feed!r} has been read to its end, batch {self._batches}, and its job has finished: batch "
                f"{ask.taken} is not kept any more",
                "to read it again, run it in another checkpoint folder",
            )
        return reply

    def notify(self, ask: Ask) -> None:
        """Nobody need know."""

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
    server: FeedServer | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.folder, self.key, self.job, self.feed, self.process)

    def open(self) -> LocalLink:
        """A link. Raises ConfigurationError in another process."""
        if self.process != os.getpid() or self.server is None:
            raise ConfigurationError(
                f"the feed {self.feed!r} of job {self.job!r} runs in another process and can be read in that one alone",
                "run the job with ps.run, on Ray: its feeds can be read from any process",
            )
        return LocalLink(self.server)


def local_route(folder: str, key: str, job: str, feed: str, server: FeedServer) -> LocalRoute:
    """The route to a feed of this process. ``key``: the job's UUID, by which a copy of the route finds the server."""
    return LocalRoute(folder, key, job, feed, os.getpid(), server)


_SERVED: WeakValueDictionary[tuple[str, str], FeedServer] = WeakValueDictionary()
"""The servers of this process, by the UUID of the job and their name: a route that was pickled finds its own again."""


def register(plan: JobPlan, feed: str, server: FeedServer) -> None:
    """The server takes the place of one of an earlier run of the job in this process."""
    former = _SERVED.get((plan.key, feed))
    _SERVED[plan.key, feed] = server
    if former is not None:
        message = f"job {plan.name or plan.key!r} was started anew"
        former.on_job_over(ConfigurationError(message, "take a handle of the new job's feed"))


def _unpickled(folder: str, key: str, job: str, feed: str, process: int) -> LocalRoute:
    server = _SERVED.get((key, feed)) if process == os.getpid() else None
    return LocalRoute(folder, key, job, feed, process, server)
