"""A reader's connection with a feed server in another process, on this machine or another one.

Rules:

1. A connection that breaks, or leads to a process that does not serve the feed any more, is dropped; the next request
   looks up who serves the feed now.
2. Whenever the feed cannot be reached the link looks whether the job is over, and raises the job's own error.
3. A server that sends nothing for ``SILENCE_SECONDS``, though every request has its time limit, gives reason to look
   whether the job lives and who serves the feed; after ``LOST_SECONDS`` it counts as stopped, or gone, and its
   connection is dropped. So a rank that waits knows for what.
4. A message that was damaged ends the connection, and is requested again on a new one: nothing of it is used. If it
   happens ``DAMAGES`` times without an answer in between, repeating does not help, and it is an error.
"""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from ...engine.core.errors import SetupError, TaskLostError
from ...engine.core.identity import Attempt, TaskId
from ...engine.core.shown import hides_credentials
from ...engine.feed.messages import Ask, Reply, end_for
from ...engine.files.store_options import StoreAccess
from ..transport.dialling import Endpoint, Secrets, Stop, connect
from ..transport.frames import GarbageError
from ..transport.greeting import Caller, GreetingError
from ..transport.sockets import let_calls_return, send_parts, shut
from .discovery import FeedDiscovery, error_of_end, run_of
from .link import BrokenFeedLinkError, FeedLink
from .sharing import SharingLink
from .wire import ReplyReader, request_bytes

SILENCE_SECONDS = 5.0
LOST_SECONDS = 20.0
DAMAGES = 5

_NOBODY = Attempt(0, 0)

_log = logging.getLogger(__name__)


@hides_credentials
@dataclass(frozen=True, slots=True)
class TcpRoute:
    """To a feed of a job on Ray, from any process that sees its checkpoint folder and reaches its machines.

    It holds the job's token: any process that has it may read the feed.
    """

    folder: str
    job: str
    feed: str
    secrets: Secrets = field(repr=False)
    access: StoreAccess = field(default_factory=StoreAccess, repr=False, compare=False)
    """By which readers find the folder, if it is in a bucket."""

    def open(self) -> FeedLink:
        """A link for one reader."""
        return SharingLink(TcpLink(self), self.secrets.token, f"{self.job} {self.feed}")


class TcpLink:
    """See the module's rules."""

    def __init__(self, route: TcpRoute) -> None:
        self._route = route
        self._discovery = FeedDiscovery(route.folder, route.job, run_of(route.secrets.token))
        self._stop = Stop()
        self._sending = threading.Lock()
        self._endpoint: Endpoint | None = None
        self._connection: socket.socket | None = None
        self._is_near = False
        self._replies: ReplyReader | None = None
        #: messages that were damaged since the last answer
        self._damages = 0

    @property
    def is_near(self) -> bool:
        return self._is_near

    def ask(self, ask: Ask, timeout: float) -> Reply[pa.RecordBatch]:
        try:
            request = request_bytes(ask, timeout)
            replies = self._replies or self._connect(ask)
            self._send(request)
            reply = replies.next()
            self._damages = 0
        except (OSError, EOFError, GarbageError, GreetingError) as error:
            self._drop()
            return self._explain(ask, f"its process, which cannot be reached: {error}", error)
        if reply.group is None and not reply.answers and self._discovery.server(self._route.feed) != self._endpoint:
            self._drop()
        if reply.group is None and not reply.settled and (over := self._discovery.end_of_run()) is not None:
            raise error_of_end(over)
        return reply

    def notify(self, ask: Ask) -> None:
        request = request_bytes(ask, None)
        with suppress(OSError):
            self._send(request)

    def close(self) -> None:
        self._stop.set()
        self._drop()

    def _explain(self, ask: Ask, reason: str, error: Exception) -> Reply[pa.RecordBatch]:
        """Why there is no answer: the job is over, or it will go on."""
        over = self._discovery.end_of_run()
        if over is not None and over.finished and ask.leaves:
            return Reply(None, settled=True)
        if over is not None and over.finished and (end := self._end_for(ask)) is not None:
            return end
        if over is not None:
            raise error_of_end(over)
        if isinstance(error, GreetingError) and not error.retry:
            raise SetupError(f"feed {self._route.feed!r} cannot be read: {error}", "make the handle anew: job.feed(…)")
        if isinstance(error, GarbageError):
            self._note_damage(ask, error)
        raise BrokenFeedLinkError(reason) from error

    def _end_for(self, ask: Ask) -> Reply[pa.RecordBatch] | None:
        """The feed's end, for a rank that needs nothing more of it (its process is gone)."""
        batches = self._discovery.batches(self._route.feed)
        return None if batches is None else end_for(ask, batches)

    def _note_damage(self, ask: Ask, error: GarbageError) -> None:
        self._damages += 1
        where = f"between rank {ask.rank} and the process of feed {self._route.feed!r} at {self._endpoint}"
        _log.warning("a message %s was damaged: %s", where, error)
        if self._damages >= DAMAGES:
            remedy = "look at the network and the memory of both machines"
            raise TaskLostError(f"{self._damages} messages {where} were damaged, one after the other: {error}", remedy)

    def _on_silence(self, times: int) -> None:
        """Nothing has come for a while. Raises TimeoutError if there is reason to look for another server."""
        if times * SILENCE_SECONDS >= LOST_SECONDS:
            raise TimeoutError(f"no message for {times * SILENCE_SECONDS:.0f} s; it may be stopped")
        if self._discovery.end_of_run() is not None or self._discovery.server(self._route.feed) != self._endpoint:
            raise TimeoutError("no message, and another process serves the feed now")

    def _connect(self, ask: Ask) -> ReplyReader:
        endpoint = self._discovery.server(self._route.feed)
        if endpoint is None:
            raise OSError("no process serves it yet")
        me, feed = TaskId("(rank)", ask.rank), TaskId(self._route.feed, 0)
        connection = connect(endpoint, Caller(me, _NOBODY, feed, _NOBODY), self._route.secrets, self._stop)
        let_calls_return(connection, SILENCE_SECONDS)
        with self._sending:
            self._endpoint, self._connection, self._is_near = endpoint, connection, endpoint.is_near
        self._stop.watch(connection)
        self._replies = ReplyReader(connection, self._on_silence)
        return self._replies

    def _send(self, data: bytes) -> None:
        with self._sending:
            if self._connection is not None and not send_parts(self._connection, [data], lambda: self._stop.is_set):
                raise OSError("the reader is closed")

    def _drop(self) -> None:
        self._stop.watch(None)
        if self._connection is not None:
            shut(self._connection)  # a thread that sends on it returns, and releases the lock
        with self._sending:
            connection, self._connection = self._connection, None
        self._replies = None
        if connection is not None:
            connection.close()
