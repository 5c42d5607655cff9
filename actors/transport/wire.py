"""The bytes between two processes: messages, and how they stand on the wire. Pure: no sockets, no threads.

A message is a head of fixed size with lengths and checksums (``frames``), a *note* in MessagePack, and a body, which
only a batch has. Rules:

1. A channel is named once per connection and direction (``Open``); what follows names it by number.
2. A note is one of ``Note``; anything else is garbage and ends the connection.
3. ``Bye`` is the last message of a process that ends the connection on purpose. An end without it is a broken link.
4. A change of anything in this module, or in what a batch's body is, changes ``greeting.VERSION``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeAlias, get_args

import msgspec

from ...engine.core.elements import Batch, Element
from ...engine.core.errors import InternalError
from ...engine.core.identity import Attempt, Tally
from ...engine.exchange.edges import ChannelId, Grant, Upstream
from .frames import GarbageError, head_of

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

UPSTREAM: tuple[type, ...] = tuple(kind for kind in get_args(Upstream) if kind is not Grant)
"""The classes of the messages to producers other than grants, in the order of the union."""

_REST = {kind: [field.name for field in fields(kind)][2:] for kind in UPSTREAM}
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
    """The note that stands in ``data``."""
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


def upstream_note(channel: int, said: Upstream) -> UpstreamNote:
    """The note of a message to a producer that is no grant."""
    kind = type(said)
    return UpstreamNote(channel, _KINDS[kind], tuple(getattr(said, name) for name in _REST[kind]))


def upstream_of(note: UpstreamNote, channel: ChannelId, attempts: tuple[Attempt, Attempt]) -> Upstream:
    """The message to a producer back."""
    kind = UPSTREAM[note.kind] if 0 <= note.kind < len(UPSTREAM) else None
    if kind is None or len(note.rest) != len(_REST[kind]):
        raise GarbageError(f"it sends a message to a producer of the unknown kind {note.kind}")
    said: Upstream = kind(channel, attempts, *note.rest)
    return said
