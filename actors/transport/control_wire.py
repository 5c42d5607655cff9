"""Control messages as bytes, and back: orders of the coordinator, reports of processes, signs of life. No sockets.

A message is a head with lengths and checksums (``frames``), a note in MessagePack, and a body, which only what has a
number has: the order or report. Rules:

1. The first note in each direction is :class:`Begin`, and the answer to one that is not wanted :class:`Refused`.
2. What a body holds is said by the place of its class in ``CONTENTS``, and decoded as that class and nothing else:
   nothing is unpickled.
3. A change of anything here, or of a class that is named here, needs no new version: the processes of a job run one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, get_args

import msgspec

from ...coordinator.model import events
from ...engine.core.errors import InternalError
from ...engine.core.identity import Attempt, TaskId
from ..protocol.messages import Order, SplitBegun
from .conversation import Packet
from .frames import HEAD_BYTES, GarbageError, in_one, read_head
from .wire import UNREADABLE

NOTE_LIMIT = 4096
BODY_LIMIT = 1024 * 1024 * 1024
"""A longer order or report is garbage."""

COORDINATOR = TaskId("(coordinator)", 0)
"""Who dials, in the greeting. No stage can have this name."""


class Begin(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """Who speaks to whom, and what has been taken. ``attempt``: the newest that the process is known to have taken; its
    generation is the coordinator's."""

    job: str
    attempt: Attempt
    incarnation: str
    seen: int


class Refused(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The process does not talk to that coordinator: it is of another job, or one of ``generation`` came after it."""

    generation: int


class Said(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """A message of the conversation; the body is of the class ``kind``."""

    number: int
    oldest: int
    seen: int
    kind: int


class Seen(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """What has come so far, for want of anything else to say."""

    seen: int


class Beat(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """Are you there?"""

    seen: int


class Alive(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """Yes."""

    seen: int


ControlNote: TypeAlias = Begin | Refused | Seen | Beat | Alive

Report: TypeAlias = (
    events.TaskDeployed
    | events.RoundProposed
    | events.MixtureSteered
    | events.TaskAcked
    | events.TaskDeclined
    | events.TaskDescribed
    | events.TaskCommitted
    | events.DataEnded
    | events.TaskFinished
    | events.TaskFailed
    | events.TaskLost
    | events.CheckpointRequested
    | events.PinRequested
    | events.UnpinRequested
    | events.SplitsAssigned
    | events.WindowDrained
    | events.NoticeGiven
    | SplitBegun
)
"""What a process tells the coordinator."""

Content: TypeAlias = Order | Report
CONTENTS: tuple[type[Any], ...] = get_args(Content)
_KINDS = {kind: number for number, kind in enumerate(CONTENTS)}
_ENCODER = msgspec.msgpack.Encoder()
_NOTES: msgspec.msgpack.Decoder[ControlNote | Said] = msgspec.msgpack.Decoder(ControlNote | Said)
_BODIES: tuple[msgspec.msgpack.Decoder[Any], ...] = tuple(msgspec.msgpack.Decoder(kind) for kind in CONTENTS)


def encode_note(note: ControlNote) -> bytes:
    """A message without a body."""
    return in_one(_ENCODER.encode(note), b"")


def encode_packet(packet: Packet[Content]) -> bytes:
    """A message of the conversation."""
    kind = _KINDS.get(type(packet.content))
    if kind is None:
        raise InternalError(f"{type(packet.content).__name__} is no order and no report of a process")
    note = _ENCODER.encode(Said(packet.number, packet.oldest, packet.seen, kind))
    return in_one(note, _ENCODER.encode(packet.content))


class ControlDecoder:
    """Cuts what a connection brings into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[ControlNote | Packet[Content]]:
        """The messages that are complete now. Raises GarbageError."""
        rest = self._rest
        if rest:
            rest += data
            data = rest
        at = 0
        try:
            while len(data) - at >= HEAD_BYTES:
                head = read_head(data, NOTE_LIMIT, at)
                if head.body > BODY_LIMIT:
                    raise GarbageError(f"it announces an order or report of {head.body} bytes")
                end = at + HEAD_BYTES + head.note + head.body
                if len(data) < end:
                    break
                content = bytes(data[at + HEAD_BYTES : end])
                head.check(content)
                at = end
                yield _decoded(content[: head.note], content[head.note :])
        finally:
            if data is rest:
                del rest[:at]
            else:
                rest += data[at:]


def _decoded(data: bytes, body: bytes) -> ControlNote | Packet[Content]:
    try:
        note = _NOTES.decode(data)
        if not isinstance(note, Said):
            return note
        if not 0 <= note.kind < len(CONTENTS):
            raise GarbageError(f"it says something of the unknown kind {note.kind}")
        return Packet(note.number, note.oldest, note.seen, _BODIES[note.kind].decode(body))
    except UNREADABLE as error:
        raise GarbageError(f"it sends what is no control message ({error})") from error
