"""The sockets on which a process takes the streams of its peers: TCP on the node's address, a unix socket for those on
the same machine.

Rules:

1. The TCP socket is bound to the node's own address and to a port that the system picks; the unix socket is abstract.
   Both are gone with ``close``, and with the process: nothing is left on disk.
2. A process that connects is greeted on a thread of its own, so that no stranger keeps others waiting, till a deadline
   over the whole greeting. Open greetings are bounded (``Greetings``): a new one gets in, the oldest has to go. What
   passes is handed to ``door``, on that thread, which is the door's to keep (it reads the stream).
3. Whatever goes wrong with a connection, in the door as well, is logged and ends that connection alone.
"""

from __future__ import annotations

import logging
import secrets
import select
import selectors
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

from ...engine.core.errors import SetupError
from .dialling import Endpoint, this_machine
from .greeting import SECONDS, Caller, receive_greeting
from .sockets import shut, tune
from .tls import Certificate, SecureSocket

PER_PEER = 64
IN_ALL = 256

C = TypeVar("C")


class Greetings(Generic[C]):
    """Which connections are being greeted, and which has to go when there are too many.

    They are bounded per peer (a machine's address, or a process of this machine) and in all. Who comes is always let
    in; the oldest has to go for it: of the same peer, if that has its share, else of the peer with most. A member of
    the job needs milliseconds, so the oldest are those who do not get on, and strangers do not keep others out.
    """

    def __init__(self, per_peer: int = PER_PEER, in_all: int = IN_ALL) -> None:
        self._per_peer, self._in_all = per_peer, in_all
        #: of each connection its peer, the oldest first
        self._open: dict[C, str] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: C, peer: str) -> C | None:
        """Let a connection in; the one that has to go for it, if any."""
        self._open[connection] = peer
        counts = Counter(self._open.values())
        if counts[peer] <= self._per_peer:
            if len(self._open) <= self._in_all:
                return None
            peer = counts.most_common(1)[0][0]
        oldest = next(each for each, its in self._open.items() if its == peer)
        del self._open[oldest]
        return oldest

    def leave(self, connection: C) -> bool:
        """The greeting is over. False: it had to go before."""
        return self._open.pop(connection, None) is not None

    def all(self) -> list[C]:
        """Those that are being greeted."""
        return list(self._open)


PAUSE = 0.1

_log = logging.getLogger(__name__)

Door = Callable[[Caller, socket.socket], None]
"""Takes a greeted connection, which is the door's to close."""


class Listener:
    """See the module's rules. ``host``: the node's address. ``unix``: whether there is a unix socket as well.
    ``certificate``: TCP connections are encrypted with it."""

    def __init__(
        self, token: bytes, incarnation: str, host: str, unix: bool = True, certificate: Certificate | None = None
    ) -> None:
        self._token = token
        self._tls = None if certificate is None else certificate.context(server=True)
        self._sockets = [_tcp(host)]
        name = ""
        machine = this_machine() if unix else ""
        if machine:
            name = f"penstock-{secrets.token_hex(8)}"
            self._sockets.append(_unix(name))
        port = int(self._sockets[0].getsockname()[1])
        #: where others find this process
        self.endpoint = Endpoint(incarnation, host, port, name, machine)
        self._door: Door | None = None
        #: connections that are being greeted, and the threads that greet, or have not noticed yet that they need not;
        #: guarded by the lock
        self._greetings: Greetings[_Greeted] = Greetings()
        self._threads = 0
        self._closed = False
        self._lock = threading.Lock()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="penstock-listen", daemon=True)

    def open(self, door: Door) -> None:
        """Begin to take connections; until now they have waited."""
        self._door = door
        self._thread.start()

    def close(self) -> None:
        """Take no connections any more; those being greeted are turned away."""
        with self._lock:
            self._closed = True
            for greeted in self._greetings.all():
                shut(greeted.connection)
        self._wake.close()
        if self._door is None:
            self._release()
        else:
            self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for each in (*self._sockets, self._woken):
                selector.register(each, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in selector.select():
                    if isinstance(key.fileobj, socket.socket) and key.fileobj is not self._woken:
                        self._accept(key.fileobj)
        self._release()

    def _release(self) -> None:
        for each in (*self._sockets, self._woken):
            each.close()

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
            self._begin(connection)
        except Exception as error:  # it was closed at once, or there are too many open files, or threads
            _log.warning("a connection could not be accepted: %s", error)
            select.select([self._woken], [], [], PAUSE)  # it still waits, and would be tried again at once

    def _begin(self, connection: socket.socket) -> None:
        """Greet the process that has connected, on a thread of its own."""
        try:
            greeted = _Greeted(connection, time.monotonic() + SECONDS)
            peer = _peer_of(connection)
            with self._lock:
                if self._closed or self._threads >= 2 * IN_ALL:
                    raise OSError(f"{self._threads} greetings have not ended yet")
                if (leaves := self._greetings.admit(greeted, peer)) is not None:
                    shut(leaves.connection)
                self._threads += 1
            try:
                threading.Thread(target=self._serve, args=(greeted,), name="penstock-read", daemon=True).start()
            except BaseException:
                self._forget(greeted)
                raise
        except BaseException:
            connection.close()
            raise

    def _serve(self, greeted: _Greeted) -> None:
        """The thread of one connection. Whatever goes wrong on it ends this connection and nothing else."""
        try:
            caller = self._greet(greeted)
        except Exception as error:
            # who hangs up may come again
            level = logging.INFO if isinstance(error, OSError) else logging.WARNING
            _log.log(level, "a connection to %s was turned away: %s", self.endpoint, str(error) or type(error).__name__)
            self._forget(greeted)
            greeted.connection.close()
            return
        if not self._forget(greeted):
            greeted.connection.close()
            return
        try:
            if self._door is not None:
                self._door(caller, greeted.connection)
        except Exception:
            _log.exception("the connection of %s to %s has ended", caller.task, self.endpoint)
            shut(greeted.connection)
            greeted.connection.close()

    def _greet(self, greeted: _Greeted) -> Caller:
        tune(greeted.connection)
        if self._tls is not None and greeted.connection.family != socket.AF_UNIX:
            secured = SecureSocket(greeted.connection, self._tls, server=True)
            with self._lock:
                if self._closed or greeted not in self._greetings.all():
                    shut(secured)
                greeted.connection = secured
            secured.greet(greeted.until)
        return receive_greeting(greeted.connection, self._token, self.endpoint.incarnation, greeted.until)

    def _forget(self, greeted: _Greeted) -> bool:
        """The greeting is over. False: it had to go."""
        with self._lock:
            self._threads -= 1
            return self._greetings.leave(greeted)


class _Greeted:
    """A connection that is being greeted, ``until`` then at most. TLS puts another socket in its place."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self.connection = connection
        self.until = until


def _peer_of(connection: socket.socket) -> str:
    """Who knocks: the address of another machine, or the process on this one."""
    if connection.family == socket.AF_UNIX:
        size = struct.calcsize("3i")
        process, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return f"process {process}"
    return str(connection.getpeername()[0])


def _tcp(host: str) -> socket.socket:
    try:
        return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)
    except OSError as error:
        raise SetupError(
            f"no socket could be opened on {host}, which Ray says is the address of this machine: {error.strerror}",
            "start Ray with an address that this machine has: ray start --node-ip-address=…",
        ) from error


def _unix(name: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"\0{name}")
    listening.listen(1024)
    return listening
