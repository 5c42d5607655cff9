"""Serves the feeds of a task to ranks in other processes, on sockets: unix or TCP, never through Ray.

Rules:

1. A rank that connects is greeted like any process of the job: it must know the job's token (``transport.greeting``).
2. Each connection has two threads: one receives requests, so that an acknowledgement never waits; the other waits for
   the batches that the rank wants and sends them.
3. A rank whose last connection has ended may be gone: if its group is not complete, its rank is free again.
4. A request that cannot be read, and an answer that fails, are reported to that rank as the last message on its
   connection. Other ranks notice nothing.
5. A file in the checkpoint folder names the process that serves the feed (``discovery``), so a rank that loses its
   connection finds the process that replaces this one.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from ...coordinator.model.events import Event
from ...engine.core.errors import PenstockError
from ...engine.core.identity import TaskId
from ...engine.feed.messages import Reply
from ...engine.feed.server import FeedServer
from ...engine.plan.plan import JobPlan
from ..transport.frames import GarbageError
from ..transport.greeting import Caller
from ..transport.listener import Listener
from ..transport.sockets import let_calls_return, send_parts, shut
from ..transport.tls import Certificate
from .discovery import FeedDiscovery
from .job_feeds import JobFeeds
from .wire import ReplyWriter, Request, failure_parts, garbage_parts, receive_request

PENDING_REQUESTS = 64
"""So many requests of a rank may wait for their answers; a reader sends one after the other."""
FLUSH_SECONDS = 2.0
"""So long the last message to a rank may take."""

_log = logging.getLogger(__name__)


class TcpFeedServer:
    """See the module's rules. ``host``: the node's address; ``report``: to the job's coordinator."""

    def __init__(
        self,
        plan: JobPlan,
        task: TaskId,
        discovery: FeedDiscovery,
        token: bytes,
        incarnation: str,
        host: str,
        report: Callable[[Event], None],
        certificate: Certificate | None = None,
    ) -> None:
        self._feeds = JobFeeds(plan, discovery.folder, report, feeds_of(plan, task))
        self.servers = self._feeds.servers
        self._lock = threading.Lock()
        #: of each the readers' session, once it is known
        self._connections: dict[socket.socket, str] = {}
        self._closed = False
        self._listener = Listener(token, incarnation, host, certificate=certificate)
        self._listener.open(self._on_connection)
        self._discovery = discovery
        for feed, server in self.servers.items():
            server.on_end = partial(self._announce, feed)
            self._announce(feed)

    def _announce(self, feed: str, batches: int | None = None) -> None:
        """Publish where a feed is served, and how many batches it had when all have been read."""
        try:
            self._discovery.publish(feed, self._listener.endpoint, batches)
        except OSError as error:
            _log.warning("the address of feed %r cannot be published: %s", feed, error)

    def close(self) -> None:
        """Accept no connections any more and end those that there are."""
        with self._lock:
            self._closed = True
            for connection in self._connections:
                shut(connection)
        self._listener.close()
        self._feeds.close()

    def _on_connection(self, caller: Caller, connection: socket.socket) -> None:
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._connections[connection] = ""
        server = self.servers.get(caller.peer.vertex)
        if server is None:
            self._redirect(caller, connection)
            return
        requests: SimpleQueue[Request | str | None] = SimpleQueue()
        answering = threading.Thread(target=self._answer, args=(server, connection, requests), daemon=True)
        try:
            let_calls_return(connection)
            answering.start()
            self._receive(server, caller, connection, requests)
        finally:
            requests.put(None)
            if answering.ident is not None:
                answering.join(FLUSH_SECONDS)
                shut(connection)
                answering.join()
            self._on_end(server, connection)

    def _redirect(self, caller: Caller, connection: socket.socket) -> None:
        """Answer a rank whose feed is not here: it looks again who serves it."""
        reason = f"the process of feed {caller.peer.vertex!r}, which is another one than it has dialled"
        try:
            let_calls_return(connection)
            receive_request(connection)  # answered before it has asked, it would find the connection broken
            send_parts(connection, ReplyWriter().parts(Reply(None, reason=reason)), lambda: self._closed)
        except (OSError, EOFError, GarbageError) as broken:
            _log.info("%s cannot be redirected: %s", caller.task, broken)
        finally:
            shut(connection)
            with self._lock:
                self._connections.pop(connection, None)
            connection.close()

    def _receive(
        self, server: FeedServer, caller: Caller, connection: socket.socket, requests: SimpleQueue[Request | str | None]
    ) -> None:
        """Receive requests until the connection ends. One that cannot be handled is answered with the reason, last."""
        try:
            while True:
                request = receive_request(connection)
                self._connections[connection] = request.ask.session
                if request.timeout is None:
                    server.notify(request.ask)
                elif requests.qsize() >= PENDING_REQUESTS:
                    raise GarbageError(f"it asks for the {PENDING_REQUESTS + 1}th time without waiting for an answer")
                else:
                    requests.put(request)
        except (OSError, EOFError) as error:
            _log.info("the connection with %s has ended: %s", caller.task, error)
            shut(connection)
        except GarbageError as error:
            _log.warning("a request of %s to feed %r cannot be read: %s", caller.task, caller.peer.vertex, error)
            requests.put(str(error))
        except Exception as error:
            if not self._closed:
                _log.exception("a request of %s to feed %r cannot be handled", caller.task, caller.peer.vertex)
                requests.put(f"{type(error).__name__}: {error}")

    def _on_end(self, server: FeedServer, connection: socket.socket) -> None:
        with self._lock:
            session = self._connections.pop(connection, "")
            is_gone = session not in self._connections.values()
        connection.close()
        if session and is_gone:
            server.on_disconnect(session)

    def _answer(
        self, server: FeedServer, connection: socket.socket, requests: SimpleQueue[Request | str | None]
    ) -> None:
        """Answer a rank, until there is nothing more to answer."""
        writer = ReplyWriter()
        try:
            while isinstance(request := requests.get(), Request):
                parts, last = self._reply(server, writer, request)
                if not send_parts(connection, parts, lambda: self._closed) or last:
                    return
            if request is not None:
                send_parts(connection, garbage_parts(request), lambda: self._closed)
        except OSError as error:
            _log.info("a rank cannot be answered: %s", error)
        except Exception:
            _log.exception("a rank cannot be answered")
        finally:
            shut(connection)

    def _reply(self, server: FeedServer, writer: ReplyWriter, request: Request) -> tuple[list[Any], bool]:
        """What to send, and whether nothing may follow it."""
        try:
            reply = server.serve(request.ask, request.timeout or 0.0)
        except PenstockError as error:
            return failure_parts(error), False
        except Exception as error:
            return self._bug(error)
        try:
            return writer.parts(reply, request.ask.without_rows), False
        except Exception as error:  # the rank does not know how much of the stream was written
            return self._bug(error)

    def _bug(self, error: Exception) -> tuple[list[Any], bool]:
        if self._closed:  # an error while all is closing means nothing: the rank looks for the next server
            return [], True
        _log.error("a rank cannot be answered", exc_info=error)
        return failure_parts(error), True


def feeds_of(plan: JobPlan, task: TaskId) -> Sequence[str]:
    """The feeds that end in this task."""
    return [feed for feed in plan.feeds if plan.sinks[feed][0] == task.vertex]
