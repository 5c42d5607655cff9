"""What a rank and the process of its feed say on their connection: requests one way, replies the other.

A message is a length and a note in MessagePack. A reply's note is followed by the pieces of its slices, each with a
length of its own: pieces of one Arrow IPC stream that lives as long as the connection, so that the schema travels once.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from ...coordinator.events import Failure
from ...engine.errors import PenstockError
from ...engine.feed_messages import Answer, Ask, FeedEnded, Refusal, Refused, Reply, Slice, World
from ..translate import error_of, failure_of
from ..transport.batches import BatchReader, BatchWriter
from ..transport.wire import GarbageError

LENGTH = struct.Struct("<Q")
NOTE_LIMIT = 1 << 20
PIECE_LIMIT = 64 * 2**30


class Request(msgspec.Struct, frozen=True):
    """``timeout`` None: no answer is wanted."""

    ask: Ask
    timeout: float | None


class SliceNote(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """A slice of so many ``pieces``, which follow."""

    generation: int
    rank: int
    batch: int
    first: int
    batch_rows: int
    fresh: tuple[bool, ...]


class EndedNote(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """There is no such batch."""

    generation: int
    batch: int
    batches: int


class RefusedNote(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """The rank may not read."""

    why: str
    generation: int
    batch: int | None


AnswerNote: TypeAlias = SliceNote | EndedNote | RefusedNote


class ReplyNote(msgspec.Struct, frozen=True):
    """A reply without its rows; or what has gone wrong."""

    world: World | None = None
    answers: tuple[AnswerNote, ...] = ()
    reason: str = ""
    settled: bool = False
    bound: tuple[tuple[str, str], ...] = ()
    failure: Failure | None = None


_REQUEST: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_REPLY: msgspec.msgpack.Decoder[ReplyNote] = msgspec.msgpack.Decoder(ReplyNote)


def request_bytes(ask: Ask, timeout: float | None) -> bytes:
    """A request as it is sent."""
    note = msgspec.msgpack.encode(Request(ask, timeout))
    return LENGTH.pack(len(note)) + note


def receive_request(connection: socket.socket) -> Request:
    """The next request. Raises EOFError at the end of the stream, GarbageError."""
    try:
        return _REQUEST.decode(_receive(connection, NOTE_LIMIT))
    except (msgspec.DecodeError, ValueError) as error:
        raise GarbageError(f"it asks for what no reader does ({error})") from error


class ReplyWriter:
    """Writes the replies of one connection."""

    def __init__(self) -> None:
        self._writer = BatchWriter()

    def parts(self, reply: Reply[pa.RecordBatch]) -> list[Any]:
        """What to send."""
        pieces: list[Any] = []
        notes = tuple(self._note(answer, pieces) for answer in reply.answers)
        note = msgspec.msgpack.encode(ReplyNote(reply.world, notes, reply.reason, reply.settled, reply.bound))
        return [LENGTH.pack(len(note)), note, *pieces]

    def _note(self, answer: Answer[pa.RecordBatch], pieces: list[Any]) -> AnswerNote:
        if isinstance(answer, FeedEnded):
            return EndedNote(answer.generation, answer.batch, answer.batches)
        if isinstance(answer, Refused):
            return RefusedNote(answer.why.name, answer.generation, answer.batch)
        assert isinstance(answer, Slice), "what is not there yet is no answer"
        fresh = []
        for records in answer.rows:
            piece, begins = self._writer.write(records)
            fresh.append(begins)
            pieces += [LENGTH.pack(sum(_size(part) for part in piece)), *piece]
        return SliceNote(answer.generation, answer.rank, answer.batch, answer.first, answer.batch_rows, tuple(fresh))


def failure_parts(error: BaseException) -> list[Any]:
    """What to send in place of a reply."""
    note = msgspec.msgpack.encode(ReplyNote(failure=failure_of(error)))
    return [LENGTH.pack(len(note)), note]


def _size(part: Any) -> int:
    return len(part) if isinstance(part, bytes) else int(part.size)


class ReplyReader:
    """Reads the replies of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = BatchReader()

    def next(self) -> Reply[pa.RecordBatch]:
        """The next reply. Raises EOFError, GarbageError, or the error that came in its place."""
        try:
            note = _REPLY.decode(_receive(self._connection, NOTE_LIMIT))
        except (msgspec.DecodeError, ValueError) as error:
            raise GarbageError(f"it answers what no feed does ({error})") from error
        if note.failure is not None:
            raise self._error(note.failure)
        return Reply(note.world, tuple(self._answers(note.answers)), note.reason, note.settled, note.bound)

    def _error(self, failure: Failure) -> PenstockError:
        return error_of(failure)

    def _answers(self, notes: Sequence[AnswerNote]) -> list[Answer[pa.RecordBatch]]:
        found: list[Answer[pa.RecordBatch]] = []
        for note in notes:
            if isinstance(note, EndedNote):
                found.append(FeedEnded(note.generation, note.batch, note.batches))
            elif isinstance(note, RefusedNote):
                found.append(Refused(Refusal[note.why], note.generation, note.batch))
            else:
                rows = tuple(self._reader.read(_receive(self._connection, PIECE_LIMIT), fresh) for fresh in note.fresh)
                found.append(Slice(note.generation, note.rank, note.batch, note.first, rows, note.batch_rows))
        return found


def _receive(connection: socket.socket, limit: int) -> Any:
    """A length and as many bytes, as a buffer."""
    head = bytearray(LENGTH.size)
    _fill(connection, memoryview(head))
    (size,) = LENGTH.unpack(head)
    if size > limit:
        raise GarbageError(f"it announces {size} bytes")
    buffer = pa.allocate_buffer(size)
    _fill(connection, memoryview(buffer).cast("B"))
    return buffer


def _fill(connection: socket.socket, view: memoryview) -> None:
    while view.nbytes:
        count = connection.recv_into(view, 0, socket.MSG_WAITALL)
        if count == 0:
            raise EOFError("the connection ended")
        view = view[count:]
