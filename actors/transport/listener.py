"""The sockets on which a process takes the streams of others: TCP on the node's address, a unix socket for neighbours.

Rules:

1. The TCP socket is bound to the node's own address and to a port that the system picks; the unix socket is abstract.
   Both are gone with ``close``, and with the process: nothing is left on disk.
2. Whoever connects is greeted on a thread of its own, so that nobody waits behind a stranger; of ``GREETINGS`` at the
   same time further ones are turned away. Only who passes is handed to ``door``, on that thread, which is the door's
   to keep (it reads the stream).
"""

from __future__ import annotations

import logging
import secrets
import select
import selectors
import socket
import ssl
import threading
from collections.abc import Callable

from ...engine.errors import SetupError
from .endpoint import Endpoint, this_machine
from .greeting import SECONDS, Caller, GreetingError, receive_greeting
from .sockets import shut, tune
from .tls import Certificate, SecureSocket

GREETINGS = 256
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
        #: connections that are being greeted; guarded by the lock
        self._greeted: set[socket.socket] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="penstock-listen", daemon=True)

    def open(self, door: Door) -> None:
        """Begin to take connections; until now they have waited."""
        self._door = door
        self._thread.start()

    def close(self) -> None:
        """Take no connections any more; whoever is being greeted is turned away."""
        with self._lock:
            self._closed = True
            for connection in self._greeted:
                shut(connection)
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
        except OSError as error:  # it hung up at once, or there are too many open files
            _log.warning("a connection could not be accepted: %s", error)
            select.select([self._woken], [], [], PAUSE)  # it still waits, and would be tried again at once
            return
        with self._lock:
            if self._closed or len(self._greeted) >= GREETINGS:
                connection.close()
                return
            self._greeted.add(connection)
        threading.Thread(target=self._greet, args=(connection,), name="penstock-read", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            tune(connection)
            if self._tls is not None and connection.family != socket.AF_UNIX:
                connection = self._secured(connection, self._tls)
            caller = receive_greeting(connection, self._token, self.endpoint.incarnation)
        except (GreetingError, OSError) as error:
            level = logging.WARNING if isinstance(error, GreetingError) else logging.INFO  # who hangs up may come again
            _log.log(level, "a connection to %s was turned away: %s", self.endpoint, error)
            self._forget(connection)
            connection.close()
            return
        self._forget(connection)
        if self._door is not None:
            self._door(caller, connection)

    def _secured(self, connection: socket.socket, context: ssl.SSLContext) -> socket.socket:
        """The connection, encrypted, in place of what is being greeted."""
        connection.settimeout(SECONDS)
        self._forget(connection)
        secured = SecureSocket(connection, context, server=True)
        with self._lock:
            if self._closed:
                shut(secured)
            self._greeted.add(secured)
        return secured

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._greeted.discard(connection)


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
