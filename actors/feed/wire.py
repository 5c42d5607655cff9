"""What a rank and the process of its feed say on their connection: requests one way, replies the other.

A message is a length and a note in MessagePack. A reply's note is followed by the rows of its slices, one slice behind
the other, in pieces with a length of their own: pieces of one Arrow IPC stream that lives as long as the connection, so
that the schema travels once. Small slices share a piece, as each piece has its price at both ends.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from ...coordinator.events import Failure
from ...engine.errors import PenstockError
from ...engine.feed_messages import Answer, Ask, FeedEnded, Refusal, Refused, Reply, Slice, World
from ..translate import error_of, failure_of
from ..transport.batches import BatchReader, BatchWriter
from ..transport.frames import GarbageError

LENGTH = struct.Struct("<Q")
NOTE_LIMIT = 1 << 20
PIECE_LIMIT = 64 * 2**30
JOINED_BYTES = 1 << 20
"""Slices share a piece up to this size: more would be copied for little."""


class Request(msgspec.Struct, frozen=True):
    """``timeout`` None: no answer is wanted."""

    ask: Ask
    timeout: float | None


class SliceNote(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """A slice of so many ``rows``, which follow."""

    generation: int
    rank: int
    batch: int
    first: int
    batch_rows: int
    rows: int
    epoch: int = 0
    last: bool = False


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
    """A reply without its rows; or what has gone wrong. ``fresh``: of each piece that follows, whether it begins a new
    Arrow stream."""

    world: World | None = None
    answers: tuple[AnswerNote, ...] = ()
    reason: str = ""
    settled: bool = False
    bound: tuple[tuple[str, str], ...] = ()
    fresh: tuple[bool, ...] = ()
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
        fresh: list[bool] = []
        pieces: list[Any] = []
        for records in _joined([each for answer in reply.answers if isinstance(answer, Slice) for each in answer.rows]):
            piece, begins = self._writer.write(records)
            fresh.append(begins)
            pieces += [LENGTH.pack(sum(_size(part) for part in piece)), *piece]
        notes = tuple(map(_note_of, reply.answers))
        told = ReplyNote(reply.world, notes, reply.reason, reply.settled, reply.bound, tuple(fresh))
        note = msgspec.msgpack.encode(told)
        return [LENGTH.pack(len(note)), note, *pieces]


def _note_of(answer: Answer[pa.RecordBatch]) -> AnswerNote:
    if isinstance(answer, FeedEnded):
        return EndedNote(answer.generation, answer.batch, answer.batches)
    if isinstance(answer, Refused):
        return RefusedNote(answer.why.name, answer.generation, answer.batch)
    assert isinstance(answer, Slice), "what is not there yet is no answer"
    rows = sum(each.num_rows for each in answer.rows)
    place = (answer.generation, answer.rank, answer.batch, answer.first, answer.batch_rows)
    return SliceNote(*place, rows, answer.epoch, answer.last)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows; small batches that follow one another as one."""
    held: list[pa.RecordBatch] = []
    size = 0
    for records in batches:
        more = records.nbytes
        if held and (size + more > JOINED_BYTES or not records.schema.equals(held[0].schema, check_metadata=True)):
            yield from _as_one(held)
            held, size = [], 0
        held.append(records)
        size += more
    yield from _as_one(held)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowException:  # a type that Arrow cannot put together
        return batches


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
        pieces = [self._reader.read(_receive(self._connection, PIECE_LIMIT), fresh) for fresh in note.fresh]
        answers = tuple(_answers(note.answers, pieces))
        return Reply(note.world, answers, note.reason, note.settled, note.bound)

    def _error(self, failure: Failure) -> PenstockError:
        return error_of(failure)


def _answers(notes: Sequence[AnswerNote], pieces: Sequence[pa.RecordBatch]) -> Iterator[Answer[pa.RecordBatch]]:
    rows = _Rows(pieces)
    for note in notes:
        if isinstance(note, EndedNote):
            yield FeedEnded(note.generation, note.batch, note.batches)
        elif isinstance(note, RefusedNote):
            yield Refused(Refusal[note.why], note.generation, note.batch)
        else:
            place = (note.generation, note.rank, note.batch, note.first)
            yield Slice(*place, rows.take(note.rows), note.batch_rows, note.epoch, note.last)


class _Rows:
    """Cuts pieces into slices, from the first row on."""

    def __init__(self, pieces: Sequence[pa.RecordBatch]) -> None:
        self._pieces = iter(pieces)
        self._piece: Any = None
        self._at = 0

    def take(self, rows: int) -> tuple[pa.RecordBatch, ...]:
        """The next so many rows. Raises GarbageError if there are not so many."""
        found = []
        while rows > 0:
            if self._piece is None or self._at == self._piece.num_rows:
                self._piece, self._at = next(self._pieces, None), 0
                if self._piece is None:
                    raise GarbageError("it sends fewer rows than it tells")
            taken = min(rows, self._piece.num_rows - self._at)
            found.append(self._piece.slice(self._at, taken))
            self._at, rows = self._at + taken, rows - taken
        return tuple(found)


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
