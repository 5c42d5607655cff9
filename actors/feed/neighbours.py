"""The rows of a slice in memory that processes of one machine share, and the socket over which it is passed on.

Rules:

1. The memory has no name (memfd) and is sealed before anybody else has it: nobody changes it. The kernel frees it with
   the last process that has it, however that ends, so there is nothing to clean up after a kill.
2. The socket is an abstract one, so at most one rank has it, and it goes with its process. Its name can be told by
   those alone who have the job's token, and both sides look whose process the other is.
3. A neighbour has one question open, and waits for its answer for as long as it said and ``PATIENCE`` more at most.
   What fails or makes no sense ends the connection.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa

from ...engine.feed.messages import Slice
from ..transport.frames import bytes_of
from ..transport.sockets import shut
from ..transport.wire import UNREADABLE, BatchReader, BatchWriter
from .board import Board, Offer

PATIENCE = 1.0
LONGEST_WAIT = 5.0
"""Seconds that a question may stay open."""
PIECES = 256
"""A slice in more pieces is not shared."""
MESSAGE_BYTES = 16 << 10
PARTS_AT_ONCE = 512
"""So many buffers one call writes; the system takes 1,024."""

CAN_SHARE = hasattr(os, "memfd_create") and hasattr(socket, "SO_PEERCRED")

_SEALS = "F_ADD_SEALS", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE", "F_SEAL_SEAL"


class Question(msgspec.Struct, array_like=True, frozen=True):
    """A batch, and how many seconds to wait for one that is coming, and for one that is not asked for yet."""

    batch: int
    coming: float
    later: float


class RowsAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The answer. ``offer``: why it cannot be had, by its name; else the memory comes with it: pieces of so many bytes.
    ``first`` and ``rows``: of the slice, as a check."""

    offer: str = ""
    sizes: tuple[int, ...] = ()
    first: int = 0
    rows: int = 0


_QUESTION: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_ANSWER: msgspec.msgpack.Decoder[RowsAnswer] = msgspec.msgpack.Decoder(RowsAnswer)


class SharedRows:
    """The rows of a slice in such memory. Raises OSError where there is none to be had, ValueError for rows that are no
    stream of one schema."""

    def __init__(self, found: Slice[pa.RecordBatch]) -> None:
        writer = BatchWriter()
        parts: list[Any] = []
        sizes: list[int] = []
        for records in found.rows:
            piece, fresh = writer.write(records)
            if fresh and sizes:
                raise ValueError("the pieces of the slice have several schemas")
            parts += piece
            sizes.append(sum(map(bytes_of, piece)))
        rows = sum(each.num_rows for each in found.rows)
        self.answer = msgspec.msgpack.encode(RowsAnswer("", tuple(sizes), found.first, rows))
        self._fd = os.memfd_create("penstock-feed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            _write(self._fd, parts)
            _seal(self._fd)
            self.rows = rows_in(self._fd, sizes)
        except BaseException:
            os.close(self._fd)
            raise

    def send(self, connection: socket.socket) -> None:
        """Pass it on."""
        socket.send_fds(connection, [self.answer], [self._fd])

    def close(self) -> None:
        """Who has mapped it keeps it."""
        os.close(self._fd)


def _write(fd: int, parts: Sequence[Any]) -> None:
    views = [view for part in parts if (view := memoryview(part).cast("B")).nbytes]
    while views:
        written = os.writev(fd, views[:PARTS_AT_ONCE])
        while views and written >= views[0].nbytes:
            written -= views.pop(0).nbytes
        if written:
            views[0] = views[0][written:]


def _seal(fd: int) -> None:
    import fcntl  # where there is no memfd there may be none

    command, *seals = (getattr(fcntl, name) for name in _SEALS)
    fcntl.fcntl(fd, command, sum(seals))


def rows_in(fd: int, sizes: Sequence[int]) -> tuple[pa.RecordBatch, ...]:
    """The rows of a slice, which lie in the memory. Raises OSError, ValueError or an Arrow error if it has others."""
    if not sizes:
        return ()
    whole = pa.py_buffer(mmap.mmap(fd, sum(sizes), access=mmap.ACCESS_COPY))  # a loop may write into what it gets
    reader, at, rows = BatchReader(), 0, []
    for size in sizes:
        rows.append(reader.read(whole.slice(at, size), fresh=at == 0))
        at += size
    return tuple(rows)


def _is_own(connection: socket.socket) -> bool:
    """Whether the other process is of the same user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.geteuid())


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Fetcher:
    """The rank of a machine that fetches, and its neighbours. Raises OSError if another one does."""

    def __init__(self, name: str) -> None:
        self._board: Board[SharedRows] = Board()
        self._changed = threading.Condition()
        self._closed = False
        self._connections: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        self._listener = _socket()
        try:
            self._listener.bind(name)
            self._listener.listen()
        except OSError:
            self._listener.close()
            raise
        self._start(self._accept)

    def _start(self, work: Any, *given: Any) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=work, args=given, name="penstock-feed-neighbours", daemon=True)
        self._threads.append(thread)
        thread.start()

    def ask(self, wanted: Iterable[int], taken: int) -> None:
        """Its own rank asks for these."""
        with self._changed:
            _close(self._board.ask(wanted, taken))
            self._changed.notify_all()

    def arrive(self, slices: Sequence[Slice[pa.RecordBatch]], least: int) -> dict[int, tuple[pa.RecordBatch, ...]]:
        """These have come; those of ``least`` bytes are shared, if somebody is there to take them. By batch, the rows
        of those, where they lie now."""
        with self._changed:
            is_wanted = self._board.is_wanted
        shared: dict[int, SharedRows] = {}
        for found in slices if is_wanted else ():
            if slice_bytes(found) >= least and len(found.rows) <= PIECES:
                with suppress(OSError, ValueError):
                    shared[found.batch] = SharedRows(found)
        rows = {batch: each.rows for batch, each in shared.items()}
        with self._changed:
            if self._closed:
                _close(shared.values())
            else:
                self._board.arrive([found.batch for found in slices], shared)
            self._changed.notify_all()
        return rows

    def close(self) -> None:
        """End all connections. What a fork has inherited of the socket answers nobody."""
        with self._changed:
            self._closed = True
            _close(self._board.clear())
            shut(self._listener)
            for connection in self._connections.values():
                shut(connection)
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._listener.close()

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                if self._closed or not _is_own(connection):
                    connection.close()
                    continue
                number += 1
                self._connections[number] = connection
                self._board.come(number)
                self._start(self._serve, number, connection)

    def _serve(self, number: int, connection: socket.socket) -> None:
        try:
            while question := connection.recv(MESSAGE_BYTES):
                self._answer(number, connection, _QUESTION.decode(question))
        except (OSError, *UNREADABLE):
            pass
        finally:
            with self._changed:
                del self._connections[number]
                _close(self._board.leave(number))
            connection.close()

    def _answer(self, number: int, connection: socket.socket, question: Question) -> None:
        batch = question.batch
        with self._changed:
            self._wait_while(Offer.LATER, batch, question.later)
            self._wait_while(Offer.COMING, batch, question.coming)
            found = self._board.find(batch)
            if isinstance(found, Offer):
                connection.send(msgspec.msgpack.encode(RowsAnswer(found.name)))
            else:
                found.send(connection)
                _close(self._board.give(number, batch))

    def _wait_while(self, offer: Offer, batch: int, seconds: float) -> None:
        most = min(LONGEST_WAIT, max(0.0, seconds))
        self._changed.wait_for(lambda: self._closed or self._board.find(batch) is not offer, most)


def _close(shared: Iterable[SharedRows]) -> None:
    for each in shared:
        each.close()


def slice_bytes(found: Slice[pa.RecordBatch]) -> int:
    """The bytes of a slice's rows."""
    return sum(each.nbytes for each in found.rows)


class Neighbour:
    """A rank that takes what another one of its machine has fetched. Raises OSError if there is none."""

    def __init__(self, name: str) -> None:
        #: held while the socket is used: it is closed by nobody else then
        self._using = threading.Lock()
        #: whether it has given any rows
        self.has_given = False
        self._connection = _socket()
        self._connection.settimeout(PATIENCE)
        try:
            self._connection.connect(name)
            if not _is_own(self._connection):
                raise PermissionError("a process of another user has the socket")
        except OSError:
            self._connection.close()
            raise

    def take(self, wanted: Slice[pa.RecordBatch], coming: float, later: float) -> tuple[pa.RecordBatch, ...] | Offer:
        """The rows of a slice that came without them, or why they cannot be had. Waits so many seconds for one that is
        coming, or that is not asked for yet. Raises OSError, also for an answer that makes no sense; TimeoutError."""
        with self._using:
            self._connection.settimeout(coming + later + PATIENCE)
            self._connection.send(msgspec.msgpack.encode(Question(wanted.batch, coming, later)))
            data, descriptors, _, _ = socket.recv_fds(self._connection, MESSAGE_BYTES, 1)
        try:
            if not data:
                raise EOFError
            found = _ANSWER.decode(data)
            if found.offer:
                return Offer[found.offer]
            if (found.first, found.rows) != (wanted.first, wanted.left_out):
                raise ValueError(f"it has {found.rows} rows from {found.first} on as batch {wanted.batch}")
            rows = rows_in(descriptors[0], found.sizes)
            self.has_given = True
            return rows
        except (EOFError, LookupError, pa.ArrowException, *UNREADABLE) as error:
            raise OSError(f"its neighbour gives no rows: {type(error).__name__} {error}") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def close(self) -> None:
        """End the connection."""
        shut(self._connection)
        with self._using:
            self._connection.close()
