"""The protocol between the processes of two tasks: frames and upstream messages as bytes, and back. No sockets.

A message is a head of fixed size with lengths and checksums (``frames``), a *note* in MessagePack, and a body, which
only a batch has: one piece of the channel's Arrow IPC stream. :class:`MessageEncoder` and :class:`MessageDecoder` are
the two sides. Rules:

1. A channel is named once per connection and direction (``Open``); what follows names it by number.
2. A note is one of ``Note``; anything else is garbage and ends the connection.
3. ``Bye`` is the last message of a process that ends the connection on purpose. An end without it is a broken link.
4. Both sides forget everything with the connection: channels are numbered, and schemas and dictionaries sent, anew.
5. A change of anything in this module changes ``greeting.VERSION``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import pyarrow as pa

from ...engine.core.elements import Batch, Element, Tag
from ...engine.core.errors import InternalError
from ...engine.core.identity import Attempt, Tally
from ...engine.core.union_buffers import WholeUnions
from ...engine.exchange.channels import ChannelId, Frame, Grant, Upstream
from .frames import GarbageError, bytes_of, head_of

NOTE_LIMIT = 16 * 1024
"""A longer note is garbage: the longest that is sent is a channel's name."""

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What a decoder raises for bytes that nobody has encoded."""


class Open(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """From now on ``number`` stands for the channel between these attempts."""

    number: int
    channel: ChannelId
    attempts: tuple[Attempt, Attempt]


class BatchNote(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The body is a batch, which counts ``size`` bytes. ``fresh``: it begins a new Arrow stream, with a schema."""

    channel: int
    sequence: int
    tag: tuple[int, int, int]
    fresh: bool
    size: int | None


class ControlNote(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """A control element: the place of its class in ``CONTROL``, and its fields. ``sent``: as in the frame."""

    channel: int
    sequence: int
    kind: int
    fields: msgspec.Raw
    sent: Tally | None = None


class GrantNote(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """Credit for the channel."""

    channel: int
    total: int


class UpstreamNote(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """Any other message to a producer: the place of its class in ``UPSTREAM``, and what it says besides the channel."""

    channel: int
    kind: int
    rest: tuple[int | bool, ...]


class Bye(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """The sender ends the connection on purpose."""


Note: TypeAlias = Open | BatchNote | ControlNote | GrantNote | UpstreamNote | Bye

CONTROL: tuple[type, ...] = tuple(kind for kind in get_args(Element) if kind is not Batch)
"""The classes of the control elements, in the order of the union."""

UPSTREAM: tuple[type[Any], ...] = tuple(kind for kind in get_args(Upstream) if kind is not Grant)
"""The classes of the messages to producers other than grants, in the order of the union."""

_REST = {kind: kind.__struct_fields__[2:] for kind in UPSTREAM}
_KINDS = {kind: number for kinds in (CONTROL, UPSTREAM) for number, kind in enumerate(kinds)}
_FIELDS: tuple[msgspec.msgpack.Decoder[Any], ...] = tuple(msgspec.msgpack.Decoder(kind) for kind in CONTROL)
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Note] = msgspec.msgpack.Decoder(Note)


def message(note: Note, body: Sequence[Any] = ()) -> bytes:
    """Head and note of a message; the parts of its body follow."""
    encoded = _ENCODER.encode(note)
    if len(encoded) > NOTE_LIMIT:
        raise InternalError(
            f"the {type(note).__name__} of a channel takes {len(encoded)} bytes, more than {NOTE_LIMIT}"
        )
    return head_of(encoded, body) + encoded


def note_of(data: bytes | bytearray | memoryview) -> Note:
    """The note in ``data``."""
    try:
        return _DECODER.decode(data)
    except UNREADABLE as error:
        raise GarbageError(f"it sends no message of this protocol ({error})") from error


def control_note(channel: int, sequence: int, element: Element, sent: Tally | None = None) -> ControlNote:
    """The note of a control element."""
    return ControlNote(channel, sequence, _KINDS[type(element)], msgspec.Raw(_ENCODER.encode(element)), sent)


def element_of(note: ControlNote) -> Element:
    """The control element back."""
    if not 0 <= note.kind < len(CONTROL):
        raise GarbageError(f"it sends an element of the unknown kind {note.kind}")
    try:
        element: Element = _FIELDS[note.kind].decode(note.fields)
    except UNREADABLE as error:
        raise GarbageError(f"it sends a broken {CONTROL[note.kind].__name__} ({error})") from error
    return element


def upstream_note(channel: int, reply: Upstream) -> UpstreamNote:
    """The note of a message to a producer that is no grant."""
    kind = type(reply)
    return UpstreamNote(channel, _KINDS[kind], tuple(getattr(reply, name) for name in _REST[kind]))


def upstream_of(note: UpstreamNote, channel: ChannelId, attempts: tuple[Attempt, Attempt]) -> Upstream:
    """The message to a producer back."""
    kind = UPSTREAM[note.kind] if 0 <= note.kind < len(UPSTREAM) else None
    if kind is None or len(note.rest) != len(_REST[kind]):
        raise GarbageError(f"it sends a message to a producer of the unknown kind {note.kind}")
    reply: Upstream = kind(channel, attempts, *note.rest)
    return reply


Codec: TypeAlias = Literal["lz4", "zstd"]

Piece: TypeAlias = list[Any]
"""The parts of a piece, ``bytes`` and ``pa.Buffer``, which follow one another on the wire."""

GATHERED_BYTES = 16 * 1024
"""Parts below this size are copied together: a part of its own costs a call."""


class BatchWriter:
    """Writes the batches of one channel: an Arrow IPC stream, cut into one piece per batch.

    The schema travels with the first piece, and again when it changes, which begins a new stream. A dictionary travels
    when it differs from the one before: if it only grew, the new values alone. Large buffers are not copied: a piece
    refers to the batch's own, cut to its rows.
    """

    def __init__(self, codec: Codec | None = None) -> None:
        self._options = pa.ipc.IpcWriteOptions(compression=codec, emit_dictionary_deltas=True)
        self._parts = _Parts()
        self._schema: pa.Schema | None = None
        #: writes into ``_buffered``, which fills ``_parts``; both belong to the stream of ``_schema``
        self._writer: Any = None
        self._buffered: Any = None

    def write(self, records: pa.RecordBatch) -> tuple[Piece, bool]:
        """The batch as a piece, and whether the piece begins a new stream."""
        fresh = self._schema is None or not records.schema.equals(self._schema, check_metadata=True)
        if fresh:
            self._schema = records.schema
            self._buffered = pa.BufferedOutputStream(pa.PythonFile(self._parts, mode="w"), GATHERED_BYTES)
            self._writer = pa.ipc.new_stream(self._buffered, self._schema, options=self._options)
        self._writer.write_batch(records)
        self._buffered.flush()
        return self._parts.take(), fresh


class BatchReader:
    """Reads what one :class:`BatchWriter` wrote: each piece once, in order, for it remembers dictionaries. A batch lies
    in the one buffer that was received."""

    def __init__(self) -> None:
        self._source = _Source()
        self._whole = WholeUnions()
        self._reader: Any = None

    def read(self, piece: pa.Buffer, fresh: bool) -> pa.RecordBatch:
        """The batch of a piece. Raises an Arrow error if the piece is none."""
        self._source.begin(piece)
        if fresh:
            self._reader = pa.ipc.open_stream(pa.PythonFile(self._source, mode="r"))
        elif self._reader is None:
            raise pa.ArrowInvalid("a batch came before its schema")
        try:
            return self._whole(self._reader.read_next_batch())
        finally:
            self._source.end()


class _File:
    """What pyarrow asks of a Python file."""

    closed = False

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """A stream that ends takes nothing with it."""


class _Parts(_File):
    """Keeps what is written: small parts come as ``bytes``, large ones as the buffers of the batch."""

    def __init__(self) -> None:
        self._parts: Piece = []

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        self._parts.append(part)
        return len(part) if isinstance(part, bytes) else int(part.size)

    def take(self) -> Piece:
        parts, self._parts = self._parts, []
        return parts


class _Source(_File):
    """Gives slices of the piece that is being read."""

    def __init__(self) -> None:
        self._piece: Any = None
        self._at = 0

    def readable(self) -> bool:
        return True

    def begin(self, piece: pa.Buffer) -> None:
        self._piece, self._at = piece, 0

    def end(self) -> None:
        self._piece = None

    def read(self, size: int) -> Any:
        part = self._piece.slice(self._at, min(size, self._piece.size - self._at))
        self._at += part.size
        return part


Name = tuple[ChannelId, tuple[Attempt, Attempt]]


class MessageEncoder:
    """What is to be sent on one connection, in order. Grants alone wait until :meth:`take` is told to give them: they
    count totals, so of several of one channel the last is enough. ``codecs``: the compression of each edge that has
    one."""

    def __init__(self, codecs: dict[str, Codec]) -> None:
        self._codecs = codecs
        self._numbers: dict[Name, int] = {}
        self._writers: dict[int, BatchWriter] = {}
        self._parts: list[Any] = []
        #: bytes of the parts that wait to be taken
        self.bytes = 0
        #: the newest total of each channel that was granted something since the last ``take``
        self._grants: dict[int, int] = {}
        #: the newest total of each channel
        self._totals: dict[int, int] = {}
        #: bytes of credit in the grants that wait to be taken
        self.granted = 0

    def put(self, put_in: Frame | Upstream) -> None:
        """Add a message."""
        number = self._number(put_in.channel, put_in.attempts)
        if isinstance(put_in, Grant):
            self.granted += put_in.total - self._totals.get(number, 0)
            self._totals[number] = self._grants[number] = put_in.total
        elif not isinstance(put_in, Frame):
            self._add(message(upstream_note(number, put_in)))
        elif isinstance(put_in.element, Batch):
            self._put_batch(number, put_in, put_in.element)
        else:
            self._add(message(control_note(number, put_in.sequence, put_in.element, put_in.sent)))

    def take(self, grants: bool = True) -> list[Any]:
        """The parts to send now, with or without the grants."""
        if grants:
            for number, total in self._grants.items():
                self._add(message(GrantNote(number, total)))
            self._grants, self.granted = {}, 0
        parts, self._parts, self.bytes = self._parts, [], 0
        return parts

    def _number(self, channel: ChannelId, attempts: tuple[Attempt, Attempt]) -> int:
        name = (channel, attempts)
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers)
            self._add(message(Open(number, channel, attempts)))
        return number

    def _put_batch(self, number: int, frame: Frame, batch: Batch) -> None:
        writer = self._writers.get(number)
        if writer is None:
            edge = next(channel.edge for (channel, _), each in self._numbers.items() if each == number)
            writer = self._writers[number] = BatchWriter(self._codecs.get(edge))
        piece, fresh = writer.write(batch.records)
        tag = batch.tag
        note = BatchNote(number, frame.sequence, (tag.round, tag.lane, tag.sequence), fresh, frame.size)
        self._add(message(note, piece))
        self._parts += piece
        self.bytes += sum(map(bytes_of, piece))

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self.bytes += len(part)


class MessageDecoder:
    """What came in on one connection."""

    def __init__(self) -> None:
        self._names: dict[int, Name] = {}
        self._readers: dict[int, BatchReader] = {}

    def decode(self, note: Note, body: pa.Buffer | None) -> Frame | Upstream | None:
        """The message of a note and its body; None if it was for the decoder itself. Raises GarbageError."""
        if isinstance(note, Open):
            self._names[note.number] = (note.channel, note.attempts)
            return None
        if isinstance(note, Bye):
            return None
        channel, attempts = self._name(note.channel)
        match note:
            case BatchNote():
                batch = Batch(self._records(note, body), Tag(*note.tag))
                return Frame(channel, attempts, note.sequence, batch, note.size)
            case ControlNote():
                return Frame(channel, attempts, note.sequence, element_of(note), sent=note.sent)
            case GrantNote():
                return Grant(channel, attempts, note.total)
            case UpstreamNote():
                return upstream_of(note, channel, attempts)

    def _name(self, number: int) -> Name:
        try:
            return self._names[number]
        except KeyError:
            raise GarbageError(f"it names a channel by the number {number}, which it has not introduced") from None

    def _records(self, note: BatchNote, body: pa.Buffer | None) -> pa.RecordBatch:
        if body is None:
            raise GarbageError("it sends a batch without a body")
        reader = self._readers.setdefault(note.channel, BatchReader())
        try:
            return reader.read(body, note.fresh)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise GarbageError(f"it sends a batch that cannot be read ({error})") from error
