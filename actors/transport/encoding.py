"""Frames and upstream messages of one connection as the parts to send, and back. Pure: no sockets, no threads.

Rules:

1. What is put in leaves in order, except grants: they count totals, so of several of one channel only the last leaves,
   when :meth:`MessageEncoder.take` is told to give them.
2. Both sides forget everything with the connection: channels are numbered, and schemas and dictionaries sent, anew.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...engine.core.elements import Batch, Tag
from ...engine.core.identity import Attempt
from ...engine.exchange.edges import ChannelId, Frame, Grant, Upstream
from .batches import BatchReader, BatchWriter, Codec
from .frames import GarbageError, bytes_of
from .wire import (
    BatchNote,
    Bye,
    ControlNote,
    GrantNote,
    Note,
    Open,
    UpstreamNote,
    control_note,
    element_of,
    message,
    upstream_note,
    upstream_of,
)

Name = tuple[ChannelId, tuple[Attempt, Attempt]]


class MessageEncoder:
    """What is to be sent on one connection. ``codecs``: the compression of each edge that has one."""

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
