"""The transport: one direct connection to the process of every task next to this one.

Rules:

1. Of two tasks the one whose id comes first dials. Their connection is for one pair of attempts: the dialler says for
   which, and a listener that has not been told of these attempts yet lets the connection wait.
2. A link that breaks is not mended: elements may be lost, so the coordinator gives both tasks new attempts, and these
   get new links. Links are replaced as a whole (``connect``), and those replaced get a ``Bye``.
3. Messages that come in go to ``arrived`` from the links' threads; they name their attempts, so the host that
   takes them drops what is stale.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial

from ...engine.core.errors import InternalError
from ...engine.core.identity import Attempt, TaskId
from ...engine.exchange.channels import Frame, Upstream
from ..protocol.messages import Address
from .dialling import RECONNECT_SECONDS, Resolve, Secrets, dial
from .greeting import Caller
from .link import Arrived, Link
from .listener import Listener
from .protocol import BrokenLink
from .sockets import shut
from .tls import Certificate
from .wire import Codec


class StreamTransport:
    """See the module's rules. It owns the ``listener`` and closes it.

    ``resolve`` asks the process behind an address for its endpoint. ``codecs``: how batches of an edge are compressed
    between machines; edges that are not named are not. ``reconnect``: seconds in which a peer must be reached.
    ``certificate``: TCP connections are encrypted with it, as the listener's are.
    """

    def __init__(
        self,
        task: TaskId,
        listener: Listener,
        token: bytes,
        resolve: Resolve,
        arrived: Arrived,
        broken: Callable[[BrokenLink], None],
        codecs: Mapping[str, Codec] | None = None,
        reconnect: float = RECONNECT_SECONDS,
        certificate: Certificate | None = None,
    ) -> None:
        self._task = task
        self._listener = listener
        self._secrets = Secrets(token, certificate)
        self._resolve = resolve
        self._arrived = arrived
        self._broken = broken
        self._codecs = dict(codecs or {})
        self._reconnect = reconnect
        #: guards everything below
        self._lock = threading.Lock()
        self._attempt: Attempt | None = None
        self._links: dict[TaskId, Link] = {}
        #: connections for attempts of ours that are still to come, the newest of each task
        self._waiting: dict[TaskId, tuple[Caller, socket.socket]] = {}
        #: links that were replaced and may still be closing
        self._leaving: list[Link] = []
        self._closed = False
        listener.open(self._take)

    def connect(self, peers: Mapping[TaskId, tuple[Attempt, Address]]) -> None:
        """Open a link to every task named, in place of all links before. The own task must be named, too."""
        if self._task not in peers:
            raise InternalError(f"{self._task} is to connect its peers, but is not told its own attempt")
        own, _ = peers[self._task]
        with self._lock:
            self._drop_links()
            self._attempt = own
            for task, (attempt, address) in peers.items():
                if task != self._task:
                    self._links[task] = link = Link(task, attempt, self._arrived, self._broken, self._codecs)
                    if self._task < task:
                        caller = Caller(self._task, own, task, attempt)
                        link.dial(partial(dial, address, caller, self._secrets, self._resolve, self._reconnect))
            came, self._waiting = self._waiting, {}
        for caller, connection in came.values():
            threading.Thread(target=self._take, args=(caller, connection), name="penstock-read", daemon=True).start()

    def send(self, frame: Frame) -> None:
        """Carry a frame to the process of its consumer."""
        link = self._links.get(frame.channel.consumer)
        if link is not None and link.attempt == frame.attempts[1]:
            link.put(frame)

    def reply(self, message: Upstream) -> None:
        """Carry a message to the process of its producer."""
        link = self._links.get(message.channel.producer)
        if link is not None and link.attempt == message.attempts[0]:
            link.put(message)

    def cut(self) -> None:
        """Lose all connections, as a network does: neither side gets a ``Bye``. For tests of recovery."""
        with self._lock:
            for link in self._links.values():
                link.cut()

    def close(self) -> None:
        """Drop what is queued, close all links, and release sockets and threads."""
        self._listener.close()
        with self._lock:
            self._closed = True
            self._drop_links()
            for _, connection in self._waiting.values():
                _turn_away(connection)
            leaving, self._leaving, self._waiting = self._leaving, [], {}
        for link in leaving:
            link.join()

    def _drop_links(self) -> None:
        """Close all links; the lock is held."""
        self._leaving = [link for link in self._leaving if not link.is_gone]
        for link in self._links.values():
            link.close()
            self._leaving.append(link)
        self._links = {}

    def _take(self, caller: Caller, connection: socket.socket) -> None:
        """A process has dialled and was greeted. This thread reads from the connection as long as it lives."""
        with self._lock:
            link = self._links.get(caller.task)
            current = self._attempt is not None and caller.peer_attempt == self._attempt
            if self._closed or caller.peer != self._task or (link is None and current):
                _turn_away(connection)
                return
            if not current or link is None:
                self._let_wait(caller, connection)
                return
            if link.attempt != caller.attempt:
                _turn_away(connection)
                return
        link.attach(connection)

    def _let_wait(self, caller: Caller, connection: socket.socket) -> None:
        """Keep the connection until our attempt comes; of several of a task, the newest. The lock is held."""
        before = self._waiting.get(caller.task)
        stale = self._attempt is not None and caller.peer_attempt < self._attempt
        if stale or (before is not None and caller.attempt < before[0].attempt):
            _turn_away(connection)
            return
        if before is not None:
            _turn_away(before[1])
        self._waiting[caller.task] = (caller, connection)


def _turn_away(connection: socket.socket) -> None:
    shut(connection)
    connection.close()
