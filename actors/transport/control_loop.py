"""The thread that reads all control connections of a process, and writes to those that did not take all at once.

Rules:

1. ``send`` may be called from any thread and never blocks: it writes what the socket takes, the thread the rest.
2. What comes is handed to the connection's ``taken`` on the thread, which must not block; so is its end, to ``ended``,
   once. After ``close`` nothing is handed on. Whenever all that had come is handed on, ``through`` is called.
3. A connection that takes nothing, though ``LIMIT`` bytes wait for it, is broken: its process is stopped, or gone.
4. ``later`` calls something on the thread, after a while; ``close`` ends the thread and what it holds.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from .control_wire import Content, ControlDecoder, ControlNote
from .conversation import Packet
from .frames import GarbageError
from .sockets import let_calls_return, shut

RECEIVE_BYTES = 64 * 1024
SEND_BYTES = 256 * 1024
LIMIT = 256 * 1024 * 1024

Incoming: TypeAlias = ControlNote | Packet[Content]

_log = logging.getLogger(__name__)


class ControlConnection:
    """A greeted connection in the hands of a :class:`ControlLoop`."""

    def __init__(
        self,
        loop: ControlLoop,
        connection: socket.socket,
        taken: Callable[[ControlConnection, Incoming], None],
        ended: Callable[[ControlConnection, str], None],
    ) -> None:
        self._loop = loop
        self.socket = connection
        self._taken = taken
        self._ended = ended
        self._decoder = ControlDecoder()
        #: guards what follows
        self._lock = threading.Lock()
        #: what the socket has not taken yet
        self._unsent = bytearray()
        self._closed = False

    # ------------------------------------------------------------------ from any thread

    def send(self, data: bytes) -> None:
        """Send a message, behind those before it."""
        with self._lock:
            if self._closed:
                return
            waits = bool(self._unsent)
            self._unsent += data if waits else self._written(data)
            if waits and len(self._unsent) < LIMIT:
                return
            if not waits and self._write():
                return
        self._loop.look_at(self)

    def cut(self) -> None:
        """Lose the connection, as if the network had failed."""
        shut(self.socket)

    def close(self) -> None:
        """End it, without a word to ``ended``."""
        with self._lock:
            self._closed = True
        shut(self.socket)
        self._loop.look_at(self)

    # ------------------------------------------------------------------ the thread

    def write(self) -> bool:
        """Send what the socket takes. Whether it has taken everything."""
        with self._lock:
            return self._write()

    def _written(self, data: bytes) -> bytes:
        """What is left when the socket has taken what it takes at once: of most messages nothing."""
        try:
            return data[self.socket.send(data[:SEND_BYTES], socket.MSG_DONTWAIT) :]
        except OSError:
            return data  # _write finds out why

    def _write(self) -> bool:
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(bytes(self._unsent[:SEND_BYTES]), socket.MSG_DONTWAIT)]
        except BlockingIOError:
            if len(self._unsent) >= LIMIT:
                shut(self.socket)  # rule 3: the thread finds it ended
            return False
        except OSError:
            shut(self.socket)
            return True
        return True

    def read(self, buffer: memoryview) -> None:
        """Hand on what has come. Ends the connection if it has ended, or what comes is garbage."""
        try:
            while True:
                count = self.socket.recv_into(buffer, 0, socket.MSG_DONTWAIT)
                if count == 0:
                    self._end("it was closed")
                    return
                for each in self._decoder.feed(buffer[:count]):
                    if not self.is_closed:
                        self._taken(self, each)
                if count < len(buffer):
                    return
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error.strerror or str(error))
        except GarbageError as error:
            self._end(f"what comes is garbage: {error}")

    def release(self) -> None:
        """Let go of the socket."""
        with self._lock:
            self._closed = True
            self.socket.close()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _end(self, reason: str) -> None:
        with self._lock:
            told, self._closed = self._closed, True
        self._loop.forget(self)
        if not told:
            self._ended(self, reason)


class ControlLoop:
    """See the module's rules."""

    def __init__(self, through: Callable[[], None] | None = None) -> None:
        self._through = through
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        for each in (self._wake, self._woken):
            each.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        #: guards what follows
        self._lock = threading.Lock()
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._to_look_at: set[ControlConnection] = set()
        self._known: set[ControlConnection] = set()
        self._closed = False
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._thread = threading.Thread(target=self._run, name="penstock-control", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ from any thread

    def add(
        self,
        connection: socket.socket,
        taken: Callable[[ControlConnection, Incoming], None],
        ended: Callable[[ControlConnection, str], None],
    ) -> ControlConnection:
        """Take a greeted connection over. What it brings is handed on from now on, after this call."""
        let_calls_return(connection)
        made = ControlConnection(self, connection, taken, ended)
        self.look_at(made)
        return made

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do it on the thread, after so long."""
        with self._lock:
            heapq.heappush(self._actions, (time.monotonic() + seconds, next(self._numbers), action))
        self._rouse()

    def look_at(self, connection: ControlConnection) -> None:
        """Something has changed about it."""
        with self._lock:
            self._to_look_at.add(connection)
        self._rouse()

    def close(self) -> None:
        """End the thread and all connections."""
        with self._lock:
            self._closed = True
        self._rouse()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _rouse(self) -> None:
        with suppress(OSError):  # it is awake, or has ended
            self._wake.send(b"\0")

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(self._patience()):
                self._serve(key)
            for connection in self._take_to_look_at():
                self._look(connection)
            for action in self._take_due():
                self._guarded(action)
            if self._through is not None:
                self._guarded(self._through)
        for connection in (*self._known, *self._take_to_look_at()):
            connection.close()
            connection.release()
        self._selector.close()
        for each in (self._wake, self._woken):
            each.close()

    def _guarded(self, action: Callable[..., None], *given: Any) -> None:
        """An error in what others have given us ends nothing."""
        try:
            action(*given)
        except Exception:
            _log.exception("an action of the control connections has failed")

    def _serve(self, key: selectors.SelectorKey) -> None:
        connection = key.data
        if connection is None:
            with suppress(BlockingIOError):
                self._woken.recv(4096)
            return
        self._guarded(self._move, key, connection)

    def _move(self, key: selectors.SelectorKey, connection: ControlConnection) -> None:
        """Read, and write what waits."""
        connection.read(self._buffer)
        if key.events & selectors.EVENT_WRITE and connection in self._known and connection.write():
            self._selector.modify(connection.socket, selectors.EVENT_READ, connection)

    def _look(self, connection: ControlConnection) -> None:
        """Take it in, write to it as soon as it takes something, or let it go."""
        if connection.is_closed:
            self.forget(connection)
            return
        events = selectors.EVENT_READ if connection.write() else selectors.EVENT_READ | selectors.EVENT_WRITE
        if connection in self._known:
            self._selector.modify(connection.socket, events, connection)
        else:
            self._known.add(connection)
            self._selector.register(connection.socket, events, connection)
        self._guarded(connection.read, self._buffer)  # TLS may hold what the socket does not show

    def forget(self, connection: ControlConnection) -> None:
        """It has ended. On the thread."""
        if connection in self._known:
            self._known.discard(connection)
            self._selector.unregister(connection.socket)
        connection.release()

    def _patience(self) -> float | None:
        with self._lock:
            if self._to_look_at or self._closed:
                return 0.0
            return max(0.0, self._actions[0][0] - time.monotonic()) if self._actions else None

    def _take_to_look_at(self) -> list[ControlConnection]:
        with self._lock:
            found, self._to_look_at = list(self._to_look_at), set()
        return found

    def _take_due(self) -> list[Callable[[], None]]:
        due = []
        with self._lock:
            while self._actions and self._actions[0][0] <= time.monotonic():
                due.append(heapq.heappop(self._actions)[2])
        return due
