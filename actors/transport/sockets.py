"""What streams need of sockets: options, sending of parts, receiving of messages. No threads of its own.

Sockets block, but a call that cannot go on returns after ``PATIENCE`` seconds, so that a thread notices that its
connection has been closed.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from .frames import HEAD_BYTES, bytes_of, read_head
from .wire import NOTE_LIMIT, Note, note_of

PATIENCE = 0.5
"""Seconds for which a blocked call may keep its thread from noticing that the connection was closed."""

SOCKET_BYTES = 1024 * 1024
"""The kernel's buffers of a unix socket, so that the sides of a connection take turns seldom. Those of TCP are left to
the kernel, which adapts them to the line; a size that is set stays."""

SEND_BYTES = 512 * 1024
"""The most that one call sends: the other side begins to copy while the rest is sent."""

GATHERED_BYTES = 64 * 1024
"""Parts that are smaller together are copied into one before they are sent."""

RECEIVE_BYTES = 64 * 1024
"""The buffer for what is received. What it holds of a body is copied out of it; the rest is received in its place."""

HALF_OPEN_SECONDS = 20
"""After so long without an answer of the other machine a TCP connection is broken."""


def tune(connection: socket.socket) -> None:
    """Set the options of a connection on which nothing has been sent yet."""
    if connection.family == socket.AF_UNIX:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
    else:
        tcp, probes = socket.IPPROTO_TCP, 4
        connection.setsockopt(tcp, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(tcp, socket.TCP_KEEPIDLE, HALF_OPEN_SECONDS // 2)
        connection.setsockopt(tcp, socket.TCP_KEEPINTVL, HALF_OPEN_SECONDS // 2 // probes)
        connection.setsockopt(tcp, socket.TCP_KEEPCNT, probes)
        connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, HALF_OPEN_SECONDS * 1000)


def hurry(connection: socket.socket, until: float) -> None:
    """Let the next call take until then at most. Raises TimeoutError if that is over."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("the greeting took too long")
    connection.settimeout(left)


def let_calls_return(connection: socket.socket, silence: float = 0.0) -> None:
    """From now on no call of ``send`` blocks for longer than ``PATIENCE``, and none of ``recv`` for longer than
    ``silence``, if that is given: it ends with BlockingIOError. Without, it ends when the socket is shut."""
    connection.settimeout(None)
    for option, seconds in ((socket.SO_SNDTIMEO, PATIENCE), (socket.SO_RCVTIMEO, silence)):
        timeout = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, option, timeout)


def shut(connection: socket.socket) -> None:
    """End both directions: blocked calls return. The socket itself stays open."""
    with suppress(OSError):  # it is not connected any more, or not yet
        connection.shutdown(socket.SHUT_RDWR)


def send_parts(connection: socket.socket, parts: Sequence[Any], is_cancelled: Callable[[], bool]) -> bool:
    """Send ``bytes`` and buffers one after another. False: cancelled meanwhile, perhaps in the middle."""
    return all(_send(connection, memoryview(part).cast("B"), is_cancelled) for part in _gathered(parts))


def _send(connection: socket.socket, view: memoryview, is_cancelled: Callable[[], bool]) -> bool:
    while view.nbytes:
        try:
            sent = connection.send(view[:SEND_BYTES])
        except BlockingIOError:  # nothing left for a while (SO_SNDTIMEO)
            if is_cancelled():
                return False
            continue
        view = view[sent:]
    return True


def _gathered(parts: Sequence[Any]) -> list[Any]:
    """The parts, with small ones that follow each other copied together."""
    gathered: list[Any] = []
    small: list[Any] = []
    size = 0
    for part in parts:
        length = bytes_of(part)
        if size + length > GATHERED_BYTES:
            if small:
                gathered.append(b"".join(small))
            small, size = [], 0
        if length > GATHERED_BYTES:
            gathered.append(part)
        else:
            small.append(part)
            size += length
    if small:
        gathered.append(b"".join(small))
    return gathered


class ClosedByPeerError(Exception):
    """The stream ended."""


class MessageReceiver:
    """Cuts what a connection brings into messages. ``before_wait`` is called whenever nothing more has come yet."""

    def __init__(self, connection: socket.socket, before_wait: Callable[[], None]) -> None:
        self._connection = connection
        self._before_wait = before_wait
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        #: what was received and not yet given out is ``_buffer[_start:_end]``
        self._start = 0
        self._end = 0

    def next(self) -> tuple[Note, Any]:
        """The next message: its note, and its body as a buffer (None without one). Waits. Raises GarbageError."""
        self._need(HEAD_BYTES)
        head = read_head(self._buffer, NOTE_LIMIT, self._start)
        self._need(HEAD_BYTES + head.note)
        self._start += HEAD_BYTES
        note = self._buffer[self._start : self._start + head.note]
        self._start += head.note
        body = self._body(head.body) if head.body else None
        head.check(note, b"" if body is None else body)
        return note_of(note), body

    def _body(self, size: int) -> Any:
        """A buffer of its own, so that it lives as long as the batch in it, and no longer."""
        body = pa.allocate_buffer(size)
        view = memoryview(body).cast("B")
        there = min(size, self._end - self._start)
        view[:there] = self._buffer[self._start : self._start + there]
        self._start += there
        if there < size:
            self._fill(view[there:])
        return body

    def _fill(self, view: memoryview) -> None:
        """Receive so many bytes. Once what has come already is taken, one call waits for all the rest."""
        left = view[self._received(view) :]
        while left:
            self._before_wait()
            count = self._connection.recv_into(left, 0, socket.MSG_WAITALL)
            if count == 0:
                raise ClosedByPeerError
            left = left[count:]

    def _need(self, size: int) -> None:
        """Receive until ``size`` bytes are there, and whatever else has come."""
        if self._end - self._start >= size:
            return
        rest = self._end - self._start
        self._buffer[:rest] = bytes(self._buffer[self._start : self._end])
        self._start, self._end = 0, rest
        while self._end < size:
            self._end += self._received(self._buffer[self._end :])

    def _received(self, view: memoryview) -> int:
        try:
            count = self._connection.recv_into(view, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._before_wait()
            count = self._connection.recv_into(view)
        if count == 0:
            raise ClosedByPeerError
        return count


assert HEAD_BYTES + NOTE_LIMIT <= RECEIVE_BYTES
