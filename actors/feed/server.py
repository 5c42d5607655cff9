"""Serves the feeds of a task to ranks in other processes: direct streams, never through Ray.

Rules:

1. Who connects is greeted like any process of the job: it must know the job's token (``transport.greeting``).
2. Each connection has two threads: one takes what the rank says, so that an acknowledgement never waits; the other
   waits with the rank for its batches and sends them.
3. A rank whose last connection has ended may be gone: if its world is not complete, its seat is free again.
4. What a rank says and cannot be read, and what goes wrong with an answer, is told to that rank as the last word on its
   connection. Other ranks notice nothing.
5. Where the feed is served stands in a notice, so a rank that loses its connection finds the process that has taken the
   place of this one.
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
from ...engine.feed.desk import FeedDesk
from ...engine.feed.messages import Reply
from ...engine.plan.plan import JobPlan
from ..transport.frames import GarbageError
from ..transport.greeting import Caller
from ..transport.listener import Listener
from ..transport.sockets import let_calls_return, send_parts, shut
from ..transport.tls import Certificate
from .hosting import HostedFeeds
from .notices import FeedNotices
from .wire import ReplyWriter, Request, failure_parts, garbage_parts, receive_request

QUESTIONS = 64
"""So many questions of a rank may wait for their answers; a reader asks one after the other."""
PARTING_SECONDS = 2.0
"""So long the last word to a rank may take."""

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
        self._notices = notices
        for feed, desk in self._desks.items():
            desk.ended = partial(self._announce, feed)
            self._announce(feed)

    def _announce(self, feed: str, batches: int | None = None) -> None:
        """Say where a feed is, and of how many batches it was when all have been read."""
        try:
            self._notices.serve(feed, self._listener.endpoint, batches)
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
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._connections[connection] = ""
        desk = self._desks.get(caller.peer.vertex)
        if desk is None:
            self._send_away(caller, connection)
            return
        requests: SimpleQueue[Request | str | None] = SimpleQueue()
        answering = threading.Thread(target=self._answer, args=(desk, connection, requests), daemon=True)
        try:
            let_calls_return(connection)
            answering.start()
            self._listen(desk, caller, connection, requests)
        finally:
            requests.put(None)
            if answering.ident is not None:
                answering.join(PARTING_SECONDS)
                shut(connection)
                answering.join()
            self._leave(desk, connection)

    def _send_away(self, caller: Caller, connection: socket.socket) -> None:
        """Tell a rank that its feed is not here, instead of leaving it to guess: it looks again who serves it."""
        reason = f"the process of feed {caller.peer.vertex!r}, which is not the one that it has dialled"
        try:
            let_calls_return(connection)
            receive_request(connection)  # answered before it has asked, it would find the connection broken
            send_parts(connection, ReplyWriter().parts(Reply(None, reason=reason)), lambda: self._closed)
        except (OSError, EOFError, GarbageError) as broken:
            _log.info("%s cannot be sent away: %s", caller.task, broken)
        finally:
            shut(connection)
            with self._lock:
                self._connections.pop(connection, None)
            connection.close()

    def _listen(
        self, desk: FeedDesk, caller: Caller, connection: socket.socket, requests: SimpleQueue[Request | str | None]
    ) -> None:
        """Take what a rank says, until its connection ends. What cannot be taken is answered with the reason, last."""
        try:
            while True:
                request = receive_request(connection)
                self._connections[connection] = request.ask.session
                if request.timeout is None:
                    desk.hear(request.ask)
                elif requests.qsize() >= QUESTIONS:
                    raise GarbageError(f"it asks for the {QUESTIONS + 1}th time without waiting for an answer")
                else:
                    requests.put(request)
        except (OSError, EOFError) as error:
            _log.info("the connection with %s has ended: %s", caller.task, error)
            shut(connection)
        except GarbageError as error:
            _log.warning("what %s says to feed %r cannot be read: %s", caller.task, caller.peer.vertex, error)
            requests.put(str(error))
        except Exception as error:
            if not self._closed:
                _log.exception("what %s says to feed %r cannot be taken", caller.task, caller.peer.vertex)
                requests.put(f"{type(error).__name__}: {error}")

    def _leave(self, desk: FeedDesk, connection: socket.socket) -> None:
        with self._lock:
            session = self._connections.pop(connection, "")
            is_gone = session not in self._connections.values()
        connection.close()
        if session and is_gone:
            desk.lose(session)

    def _answer(self, desk: FeedDesk, connection: socket.socket, requests: SimpleQueue[Request | str | None]) -> None:
        """Answer a rank, until there is nothing more to answer."""
        writer = ReplyWriter()
        try:
            while isinstance(request := requests.get(), Request):
                parts, last = self._reply(desk, writer, request)
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

    def _reply(self, desk: FeedDesk, writer: ReplyWriter, request: Request) -> tuple[list[Any], bool]:
        """What to send, and whether nothing may follow it."""
        try:
            reply = desk.serve(request.ask, request.timeout or 0.0)
        except PenstockError as error:
            return failure_parts(error), False
        except Exception as error:
            return self._bug(error)
        try:
            return writer.parts(reply), False
        except Exception as error:  # the rank does not know how far the writer has come
            return self._bug(error)

    def _bug(self, error: Exception) -> tuple[list[Any], bool]:
        if self._closed:  # what is left of the job may fail as it likes: the rank looks for who serves the feed next
            return [], True
        _log.error("a rank cannot be answered", exc_info=error)
        return failure_parts(error), True


def feeds_of(plan: JobPlan, task: TaskId) -> Sequence[str]:
    """The feeds that end in this task."""
    return [feed for feed in plan.feeds if plan.sinks[feed][0] == task.vertex]
