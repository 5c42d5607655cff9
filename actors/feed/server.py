"""Serves the feeds of a task to ranks in other processes: direct streams, never through Ray.

Rules:

1. Who connects is greeted like any process of the job: it must know the job's token (``transport.greeting``).
2. Each connection has two threads: one takes what the rank says, so that an acknowledgement never waits; the other
   waits with the rank for its batches and sends them.
3. A rank whose last connection has ended may be gone: if its world is not complete, its seat is free again.
4. Where the feed is served stands in a notice, so a rank that loses its connection finds the process that has taken the
   place of this one.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue

from ...coordinator.events import Event
from ...engine.errors import PenstockError
from ...engine.feed_desk import FeedDesk
from ...engine.identity import TaskId
from ...engine.plan import JobPlan
from ..transport.frames import GarbageError
from ..transport.greeting import Caller
from ..transport.listener import Listener
from ..transport.sockets import let_calls_return, send_parts, shut
from ..transport.tls import Certificate
from .hosting import HostedFeeds
from .notices import FeedNotices
from .wire import ReplyWriter, Request, failure_parts, receive_request

_log = logging.getLogger(__name__)


class FeedServer:
    """See the module's rules. ``host``: the node's address; ``report``: to the job's coordinator."""

    def __init__(
        self,
        plan: JobPlan,
        task: TaskId,
        notices: FeedNotices,
        token: bytes,
        incarnation: str,
        host: str,
        report: Callable[[Event], None],
        certificate: Certificate | None = None,
    ) -> None:
        self._feeds = HostedFeeds(plan, notices.folder, report, feeds_of(plan, task))
        self._desks = self._feeds.desks
        self._lock = threading.Lock()
        #: of each the readers' session, once it is known
        self._connections: dict[socket.socket, str] = {}
        self._closed = False
        self._listener = Listener(token, incarnation, host, certificate=certificate)
        self._listener.open(self._door)
        for feed in self._desks:
            try:
                notices.serve(feed, self._listener.endpoint)
            except OSError as error:
                _log.warning("ranks cannot be told where feed %r is: %s", feed, error)

    def close(self) -> None:
        """Take no connections any more and end those that there are."""
        with self._lock:
            self._closed = True
            for connection in self._connections:
                shut(connection)
        self._listener.close()
        self._feeds.close()

    def _door(self, caller: Caller, connection: socket.socket) -> None:
        desk = self._desks.get(caller.peer.vertex)
        with self._lock:
            if self._closed or desk is None:
                connection.close()
                return
            self._connections[connection] = ""
        let_calls_return(connection)
        requests: SimpleQueue[Request | None] = SimpleQueue()
        answering = threading.Thread(target=self._answer, args=(desk, connection, requests), daemon=True)
        answering.start()
        try:
            while True:
                request = receive_request(connection)
                self._connections[connection] = request.ask.session
                if request.timeout is None:
                    desk.hear(request.ask)
                else:
                    requests.put(request)
        except (OSError, EOFError, GarbageError) as error:
            _log.info("the connection with %s has ended: %s", caller.task, error)
        finally:
            requests.put(None)
            shut(connection)
            answering.join()
            with self._lock:
                session = self._connections.pop(connection, "")
                is_gone = session not in self._connections.values()
            connection.close()
            if session and is_gone:
                desk.lose(session)

    def _answer(self, desk: FeedDesk, connection: socket.socket, requests: SimpleQueue[Request | None]) -> None:
        writer = ReplyWriter()
        with suppress(OSError):
            while (request := requests.get()) is not None:
                try:
                    parts = writer.parts(desk.serve(request.ask, request.timeout or 0.0))
                except PenstockError as error:
                    parts = failure_parts(error)
                if not send_parts(connection, parts, lambda: self._closed):
                    return
        shut(connection)


def feeds_of(plan: JobPlan, task: TaskId) -> Sequence[str]:
    """The feeds that end in this task."""
    return [feed for feed in plan.feeds if plan.sinks[feed][0] == task.vertex]
