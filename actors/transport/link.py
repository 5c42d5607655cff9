"""One connection to the process of a task: a queue and a thread that write, and a thread that reads.

Rules:

1. Nothing that is put in blocks: the queue is bounded by the credit of the channels. It may be filled before there is
   a connection.
2. The reader always drains the wire. What it gets is handed to ``arrived`` before it waits for more; what has come
   meanwhile is delivered together, since each time another thread is woken.
3. A link ends once, in one of three ways: closed by us (the peer gets a ``Bye``), ended by the peer (with its own), or
   broken (``broken`` is called). After that nothing is taken and nothing is delivered. Broken is also what brings a
   message that was damaged: of it, and of what follows it, nothing is delivered.
4. Grants are coalesced: they wait up to ``GRANT_SECONDS``, unless they are worth ``GRANT_BYTES``. Every batch would
   otherwise cost a message back, which wakes two threads. Anything else leaves as soon as the wire takes it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum

from ...engine.core.identity import Attempt, TaskId
from ...engine.core.state_machine import StateMachine
from ...engine.exchange.channels import Frame, Upstream
from ..protocol.messages import Mailbox
from .dialling import Stop, UnreachableError
from .frames import DamagedError, GarbageError
from .protocol import BrokenLink
from .sockets import ClosedByPeerError, MessageReceiver, let_calls_return, send_parts, shut
from .wire import Bye, Codec, MessageDecoder, MessageEncoder, message

GRANT_SECONDS = 0.002
GRANT_BYTES = 2 * 1024 * 1024
"""An eighth of a channel's credit."""
SEND_BYTES = 256 * 1024
"""As soon as so much is encoded it is sent, before more is encoded."""
DELIVER_MESSAGES = 256
DELIVER_BYTES = 2 * 1024 * 1024
"""No more is handed on at once than so many messages, or the one with which their bodies reach so many bytes."""
CLOSE_SECONDS = 2.0

Arrived = Callable[[tuple[Frame, ...], tuple[Upstream, ...]], None]


class LinkState(Enum):
    """How far a link has come. The last three are ends (rule 3)."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"
    ENDED_BY_PEER = "ended by the peer"
    BROKEN = "broken"


_ENDS = frozenset({LinkState.CLOSED, LinkState.ENDED_BY_PEER, LinkState.BROKEN})
LEGAL_LINK_MOVES: Mapping[LinkState, frozenset[LinkState]] = {
    LinkState.CONNECTING: frozenset({LinkState.CONNECTED, LinkState.CLOSED, LinkState.BROKEN}),
    LinkState.CONNECTED: _ENDS,
    **{end: frozenset() for end in _ENDS},
}


class Link:
    """See the module's rules. ``codecs``: compression by edge, used between machines only."""

    def __init__(
        self,
        task: TaskId,
        attempt: Attempt,
        arrived: Arrived,
        broken: Callable[[BrokenLink], None],
        codecs: dict[str, Codec],
    ) -> None:
        self.task = task
        self.attempt = attempt
        self._arrived = arrived
        self._broken = broken
        self._codecs = codecs
        self._outbox: Mailbox[Frame | Upstream | None] = Mailbox()
        #: ends the waiting of a thread that dials
        self._stop = Stop()
        #: guards what follows
        self._lock = threading.Lock()
        self._machine = StateMachine(f"the link to {task}", LEGAL_LINK_MOVES, LinkState.CONNECTING)
        self._connection: socket.socket | None = None
        #: threads that still use the connection; the last one closes it
        self._users = 0
        self._threads: list[threading.Thread] = []
        #: why nothing more could be written; the reader finds out whether that was announced
        self._unwritable = ""

    # ------------------------------------------------------------------ from any thread

    def put(self, put_in: Frame | Upstream) -> None:
        """Queue a message."""
        if not self._has_ended:
            self._outbox.post(put_in)

    @property
    def _has_ended(self) -> bool:
        return self._machine.state in _ENDS

    @property
    def is_gone(self) -> bool:
        """Whether all threads have ended."""
        with self._lock:
            return not any(thread.is_alive() for thread in self._threads)

    def dial(self, dialled: Callable[[Stop], socket.socket | None]) -> None:
        """Get the connection, on a thread of its own. ``dialled`` raises UnreachableError if there is none to get."""
        self._start(self._dial, dialled)

    def attach(self, connection: socket.socket) -> None:
        """Use a connection that the peer has dialled. The calling thread reads from it until the link ends."""
        with self._lock:
            self._threads.append(threading.current_thread())
        self._use(connection, self._write, self._read)

    def close(self) -> None:
        """Drop what is queued, send the peer a ``Bye``, and end; does not wait for it."""
        self._end(LinkState.CLOSED)

    def cut(self) -> None:
        """Lose the connection, as if the network had failed."""
        with self._lock:
            if self._connection is not None:
                shut(self._connection)

    def join(self) -> None:
        """Wait, for ``CLOSE_SECONDS`` at most, until all threads have ended."""
        until = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    # ------------------------------------------------------------------ beginning and end

    def _start(self, target: Callable[..., None], argument: object) -> None:
        thread = threading.Thread(target=target, args=(argument,), name=f"penstock-link-{self.task}", daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _connected(self, connection: socket.socket) -> bool:
        """Take the connection for two threads. False: it is too late, or there is one already."""
        with self._lock:
            usable = self._machine.state is LinkState.CONNECTING
            if usable:
                self._machine.move(LinkState.CONNECTED)
                let_calls_return(connection)
                self._connection = connection
                self._users = 2
        if not usable:
            connection.close()
        return usable

    def _use(self, connection: socket.socket, other: Callable[..., None], own: Callable[..., None]) -> None:
        """Read and write, one of it on another thread, the other one on this."""
        try:
            if not self._connected(connection):
                return
            self._start(other, connection)
        except Exception as error:  # no thread, or no connection any more
            self._end(LinkState.BROKEN, f"the connection cannot be used: {type(error).__name__}: {error}")
            connection.close()
            return
        own(connection)

    def _release(self, connection: socket.socket) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            connection.close()

    def _end(self, end: LinkState, reason: str = "") -> None:
        """The link ends so, unless it has ended."""
        with self._lock:
            if self._has_ended:
                return
            self._machine.move(end)
            # the writer shuts the connection of a closed link, after the ``Bye``
            if self._connection is not None and end is not LinkState.CLOSED:
                shut(self._connection)
        self._stop.set()
        self._outbox.post(None)
        if end is LinkState.BROKEN:
            self._broken(BrokenLink(self.task, self.attempt, reason))

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        with self._lock:
            state, connected = self._machine.state, self._connection is not None
            if connected if state is LinkState.CONNECTING else not connected and state not in _ENDS:
                raise AssertionError(f"the link to {self.task} is {state.value}, with {self._connection}")
            if not 0 <= self._users <= (2 if connected else 0):
                raise AssertionError(f"{self._users} threads use the connection to {self.task}")

    # ------------------------------------------------------------------ the thread that dials and writes

    def _dial(self, dialled: Callable[[Stop], socket.socket | None]) -> None:
        try:
            connection = dialled(self._stop)
        except UnreachableError as error:
            self._end(LinkState.BROKEN, str(error))
            return
        except Exception as error:  # whatever it is, there will be no connection
            self._end(LinkState.BROKEN, f"it could not be dialled: {type(error).__name__}: {error}")
            return
        if connection is not None:
            self._use(connection, self._read, self._write)

    def _write(self, connection: socket.socket) -> None:
        try:
            if self._write_all(connection) and self._machine.state is LinkState.CLOSED:
                send_parts(connection, [message(Bye())], lambda: True)
        except OSError as error:
            self._unwritable = _reason(error)
        except Exception as error:
            self._end(LinkState.BROKEN, f"a message could not be written: {type(error).__name__}: {error}")
        finally:
            shut(connection)
            self._release(connection)

    def _write_all(self, connection: socket.socket) -> bool:
        """Write until the link has ended. False: the last message could not be completed."""
        encoder = MessageEncoder(self._codecs if connection.family != socket.AF_UNIX else {})
        grants_due: float | None = None
        while not self._has_ended:
            patience = None if grants_due is None else max(0.0, grants_due - time.monotonic())
            for each in self._outbox.take(patience):
                if each is None:
                    return True
                encoder.put(each)
                if encoder.bytes >= SEND_BYTES and not self._send(connection, encoder.take(grants=False)):
                    return False
            grants = encoder.bytes > 0 or encoder.granted >= GRANT_BYTES
            grants = grants or (grants_due is not None and time.monotonic() >= grants_due)
            if (parts := encoder.take(grants)) and not self._send(connection, parts):
                return False
            if encoder.granted == 0:
                grants_due = None
            elif grants_due is None:
                grants_due = time.monotonic() + GRANT_SECONDS
        return True

    def _send(self, connection: socket.socket, parts: list[object]) -> bool:
        return send_parts(connection, parts, lambda: self._has_ended)

    # ------------------------------------------------------------------ the thread that reads

    def _read(self, connection: socket.socket) -> None:
        try:
            self._read_all(connection)
        except ClosedByPeerError:
            why = f" ({self._unwritable})" if self._unwritable else ""
            self._end(LinkState.BROKEN, f"the connection closed unexpectedly{why}; its process has probably died")
        except OSError as error:
            self._end(LinkState.BROKEN, _reason(error))
        except DamagedError as error:
            self._end(LinkState.BROKEN, f"a message of {self.task} was damaged on its way {_way(connection)}: {error}")
        except GarbageError as error:
            self._end(LinkState.BROKEN, f"what comes in from {self.task} {_way(connection)} is garbage: {error}")
        except Exception as error:  # whatever it is, elements are lost
            self._end(LinkState.BROKEN, f"what comes in cannot be taken: {type(error).__name__}: {error}")
        finally:
            self._release(connection)

    def _read_all(self, connection: socket.socket) -> None:
        received = _Received(self._deliver)
        receiver, decoder = MessageReceiver(connection, received.give), MessageDecoder()
        while True:
            note, body = receiver.next()
            received.add(decoder.decode(note, body), 0 if body is None else body.size)
            if isinstance(note, Bye):
                received.give()
                self._end(LinkState.ENDED_BY_PEER)
                return

    def _deliver(self, frames: tuple[Frame, ...], upstream: tuple[Upstream, ...]) -> None:
        if not self._has_ended:
            self._arrived(frames, upstream)


class _Received:
    """Messages that have been received and not been handed on yet."""

    def __init__(self, arrived: Arrived) -> None:
        self._arrived = arrived
        self._frames: list[Frame] = []
        self._upstream: list[Upstream] = []
        self._bytes = 0

    def add(self, message: Frame | Upstream | None, size: int) -> None:
        """Keep a message whose body has ``size`` bytes, and hand all on when there are enough."""
        if isinstance(message, Frame):
            self._frames.append(message)
        elif message is not None:
            self._upstream.append(message)
        self._bytes += size
        if self._bytes >= DELIVER_BYTES or len(self._frames) + len(self._upstream) >= DELIVER_MESSAGES:
            self.give()

    def give(self) -> None:
        """Hand on what is there."""
        if self._frames or self._upstream:
            frames, upstream = tuple(self._frames), tuple(self._upstream)
            self._frames, self._upstream, self._bytes = [], [], 0
            self._arrived(frames, upstream)


def _way(connection: socket.socket) -> str:
    """Between which sockets, for who looks after the network."""
    if connection.family == socket.AF_UNIX:
        return "over a unix socket"
    with suppress(OSError):
        return "from {}:{} to {}:{}".format(*connection.getpeername()[:2], *connection.getsockname()[:2])
    return "over TCP"


def _reason(error: OSError) -> str:
    return f"the connection failed: {error.strerror or error}"
