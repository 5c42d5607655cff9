"""The messages of a rank and its feed server on their connection: requests one way, replies the other.

A message is a head with lengths and checksums (``transport.frames``) and a note in MessagePack. A reply's note is
followed by the rows of its slices, one slice after the other, in pieces with heads of their own: pieces of one Arrow
IPC stream that lives as long as the connection, so that the schema travels once. Small slices share a piece, as each
piece has its price at both ends. Rules:

1. What was damaged, or is none of these messages, is a GarbageError at the receiver, and ends the connection.
2. A note has ``NOTE_LIMIT`` bytes at most. A request grows with the models that wait to be bound and the batches that
   they skip: what would be too long is an error of the rank that makes it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from ...coordinator.model.events import Failure
from ...engine.core.errors import ConfigurationError, InternalError
from ...engine.feed.messages import Answer, Ask, FeedEnded, RankGroup, Refusal, Refused, Reply, Slice
from ...engine.feed.status import FeedStatus
from ..protocol.translate import error_of, failure_of
from ..transport.frames import HEAD_BYTES, GarbageError, head_of, read_head
from ..transport.wire import UNREADABLE, BatchReader, BatchWriter

NOTE_LIMIT = 16 << 20
DETAIL_LIMIT = 64 << 10
"""So much of an error's traceback travels."""
WAIT_LIMIT = 60.0
"""Seconds that a request may stay open."""
JOINED_BYTES = 1 << 20
"""Slices share a piece up to this size: more would be copied for little."""


Silent: TypeAlias = Callable[[int], None]


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


class ReplyNote(msgspec.Struct, frozen=True, rename={"group": "world"}):
    """A reply without its rows; or what has gone wrong. ``fresh``: of each piece that follows, whether it begins a new
    Arrow stream."""

    group: RankGroup | None = None
    answers: tuple[AnswerNote, ...] = ()
    reason: str = ""
    settled: bool = False
    bound: tuple[tuple[str, str], ...] = ()
    remarks: tuple[tuple[str, str], ...] = ()
    fresh: tuple[bool, ...] = ()
    status: FeedStatus | None = None
    without_rows: bool = False
    """No rows follow: the rank has asked for none."""
    failure: Failure | None = None
    garbage: str = ""
    """Why the rank's request cannot be read."""


_REFUSALS = {why: why.name for why in Refusal} | {Refusal.UNKNOWN_GROUP: "UNKNOWN_WORLD"}
"""By their names on the wire, which releases share."""
_REASONS = {name: why for why, name in _REFUSALS.items()}

_REQUEST: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_REPLY: msgspec.msgpack.Decoder[ReplyNote] = msgspec.msgpack.Decoder(ReplyNote)


def request_bytes(ask: Ask, timeout: float | None) -> bytes:
    """A request as it is sent. Raises ConfigurationError if it is too large."""
    note = msgspec.msgpack.encode(Request(ask, timeout))
    if len(note) > NOTE_LIMIT:
        skipped = sum(len(commit.skipped) for commit in ask.commits)
        raise ConfigurationError(
            f"rank {ask.rank} has {len(ask.commits)} models to bind, with {skipped} ranges of batches that they skip, "
            f"which is more than fits into a request of {NOTE_LIMIT} bytes",
            "flush() after each commit, and skip fewer, longer ranges of batches",
        )
    return head_of(note) + note


def receive_request(connection: socket.socket) -> Request:
    """The next request. Raises EOFError at the end of the stream, GarbageError."""
    note, _ = _receive(connection)
    try:
        request = _REQUEST.decode(note)
    except UNREADABLE as error:
        raise GarbageError(f"it sends a request that no reader makes ({error})") from error
    if not 0 <= (request.timeout or 0.0) <= WAIT_LIMIT:
        raise GarbageError(f"its request has a time limit of {request.timeout} seconds")
    return request


class ReplyWriter:
    """Writes the replies of one connection."""

    def __init__(self) -> None:
        self._writer = BatchWriter()

    def parts(self, reply: Reply[pa.RecordBatch], without_rows: bool = False) -> list[Any]:
        """What to send."""
        fresh: list[bool] = []
        pieces: list[Any] = []
        slices = () if without_rows else [answer for answer in reply.answers if isinstance(answer, Slice)]
        for records in _joined([each for found in slices for each in found.rows]):
            piece, begins = self._writer.write(records)
            fresh.append(begins)
            pieces += [head_of(b"", piece), *piece]
        notes = tuple(map(_note_of, reply.answers))
        told = (reply.group, notes, reply.reason, reply.settled, reply.bound, reply.remarks)
        note = ReplyNote(*told, tuple(fresh), reply.status, without_rows)
        return [*_note_parts(note), *pieces]


def _note_of(answer: Answer[pa.RecordBatch]) -> AnswerNote:
    if isinstance(answer, FeedEnded):
        return EndedNote(answer.generation, answer.batch, answer.batches)
    if isinstance(answer, Refused):
        return RefusedNote(_REFUSALS[answer.why], answer.generation, answer.batch)
    assert isinstance(answer, Slice), "a batch that is not there yet has no answer"
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
    failure = failure_of(error)
    failure = replace(
        failure,
        message=_shortened(failure.message),
        remedy=_shortened(failure.remedy),
        operator=_shortened(failure.operator),
        detail=failure.detail[-DETAIL_LIMIT:],
    )
    return _note_parts(ReplyNote(failure=failure))


def _shortened(text: str) -> str:
    """What does not fit into an answer would never arrive, and be requested for ever."""
    return text if len(text) <= DETAIL_LIMIT else f"{text[:DETAIL_LIMIT]} …"


def garbage_parts(why: str) -> list[Any]:
    """The last message to a rank whose request cannot be read."""
    return _note_parts(ReplyNote(garbage=why[:DETAIL_LIMIT]))


def _note_parts(note: ReplyNote) -> list[Any]:
    encoded = msgspec.msgpack.encode(note)
    if len(encoded) > NOTE_LIMIT:
        raise InternalError(f"an answer to a rank takes {len(encoded)} bytes, more than {NOTE_LIMIT}")
    return [head_of(encoded), encoded]


class ReplyReader:
    """Reads the replies of one connection. ``silent``: called whenever the connection says that nothing has come for a
    while (BlockingIOError), with how often in a row; it may raise."""

    def __init__(self, connection: socket.socket, silent: Silent | None = None) -> None:
        self._connection = connection
        self._reader = BatchReader()
        self._silent = silent

    def next(self) -> Reply[pa.RecordBatch]:
        """The next reply. Raises EOFError, GarbageError, or the error that came in its place."""
        data, _ = _receive(self._connection, self._silent)
        try:
            note = _REPLY.decode(data)
        except UNREADABLE as error:
            raise GarbageError(f"it sends a reply that no feed server makes ({error})") from error
        if note.failure is not None:
            raise error_of(note.failure)
        if note.garbage:
            raise GarbageError(f"it cannot read our request: {note.garbage}")
        pieces = [self._piece(fresh) for fresh in note.fresh]
        answers = tuple(_answers(note.answers, None if note.without_rows else _Rows(pieces)))
        return Reply(note.group, answers, note.reason, note.settled, note.bound, note.remarks, note.status)

    def _piece(self, fresh: bool) -> pa.RecordBatch:
        _, piece = _receive(self._connection, self._silent)
        try:
            return self._reader.read(piece, fresh)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise GarbageError(f"it sends rows that cannot be read ({error})") from error


def _answers(notes: Sequence[AnswerNote], rows: _Rows | None) -> Iterator[Answer[pa.RecordBatch]]:
    for note in notes:
        if isinstance(note, EndedNote):
            yield FeedEnded(note.generation, note.batch, note.batches)
        elif isinstance(note, RefusedNote):
            if note.why not in _REASONS:
                raise GarbageError(f"it refuses for an unknown reason {note.why!r}")
            yield Refused(_REASONS[note.why], note.generation, note.batch)
        else:
            place = (note.generation, note.rank, note.batch, note.first)
            taken, left_out = ((), note.rows) if rows is None else (rows.take(note.rows), 0)
            yield Slice(*place, taken, note.batch_rows, note.epoch, note.last, left_out)


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
                    raise GarbageError("it sends fewer rows than it announced")
            taken = min(rows, self._piece.num_rows - self._at)
            found.append(self._piece.slice(self._at, taken))
            self._at, rows = self._at + taken, rows - taken
        return tuple(found)


def _receive(connection: socket.socket, silent: Silent | None = None) -> tuple[Any, Any]:
    """Note and body of a message, as buffers. Raises EOFError, GarbageError."""
    data = bytearray(HEAD_BYTES)
    _fill(connection, memoryview(data), silent)
    head = read_head(data, NOTE_LIMIT)
    note, body = (pa.allocate_buffer(size) for size in head[:2])
    for buffer in (note, body):
        _fill(connection, memoryview(buffer).cast("B"), silent)
    head.check(note, body)
    return note, body


def _fill(connection: socket.socket, view: memoryview, silent: Silent | None) -> None:
    silences = 0
    while view.nbytes:
        try:
            count = connection.recv_into(view, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            silences += 1
            if silent is not None:
                silent(silences)
            continue
        if count == 0:
            raise EOFError("the connection was closed")
        view, silences = view[count:], 0
