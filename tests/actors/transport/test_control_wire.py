"""Orders and reports as bytes: every kind comes back as it was, and nothing else is taken."""

from __future__ import annotations

import random
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from penstock.actors.hosting.task_host import TaskHost
from penstock.actors.transport.control_wire import (
    CONTENTS,
    Alive,
    Beat,
    Begin,
    ControlDecoder,
    Refused,
    Seen,
    encode_note,
    encode_packet,
)
from penstock.actors.transport.conversation import Packet
from penstock.actors.transport.frames import GarbageError
from penstock.engine.core.errors import InternalError
from penstock.engine.core.identity import Attempt

NOTES = [Begin("uuid", Attempt(2, 3), "one", 4), Refused(5), Seen(6), Beat(7), Alive(8)]


def made(kind: Any, chance: random.Random) -> Any:
    """Some value of a type."""
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return made(chance.choice(arguments), chance)
    if get_origin(kind) is tuple:
        if arguments[-1] is Ellipsis:
            return tuple(made(arguments[0], chance) for _ in range(chance.randrange(3)))
        return tuple(made(each, chance) for each in arguments)
    if get_origin(kind) is dict:
        return {made(arguments[0], chance): made(arguments[1], chance) for _ in range(chance.randrange(3))}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{name: made(each, chance) for name, each in get_type_hints(kind).items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return chance.choice(list(kind))
    plain = {
        int: lambda: chance.choice((0, -1, 2**62, 2**63)),
        float: chance.random,
        str: lambda: chance.choice(("", "name", "é")),
        bool: lambda: chance.random() < 0.5,
        bytes: lambda: chance.randbytes(3),
        type(None): lambda: None,
        Any: lambda: chance.choice((None, 1, 0.5, "text", [1, "two"], {"key": [None]})),
    }
    return plain[kind]()


@pytest.mark.parametrize("kind", CONTENTS, ids=lambda kind: kind.__name__)
def test_every_order_and_report_comes_back_as_it_was(kind: Any) -> None:
    chance = random.Random(kind.__name__)
    for number in range(30):
        packet = Packet(number, 1, 2, made(kind, chance))
        assert list(ControlDecoder().feed(encode_packet(packet))) == [packet]


def test_messages_are_cut_wherever_the_connection_cuts_them() -> None:
    chance = random.Random(1)
    sent = [chance.choice((*NOTES, Packet(1, 1, 0, made(chance.choice(CONTENTS), chance)))) for _ in range(60)]
    data = b"".join(encode_packet(each) if isinstance(each, Packet) else encode_note(each) for each in sent)
    decoder, came, at = ControlDecoder(), [], 0
    while at < len(data):
        size = chance.choice((1, 7, 300, 5000))
        came += decoder.feed(data[at : at + size])
        at += size
    assert came == sent


def test_nothing_is_taken_of_what_was_damaged() -> None:
    data = bytearray(encode_packet(Packet(1, 1, 0, made(CONTENTS[0], random.Random(2)))))
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x55
        with pytest.raises(GarbageError):
            list(ControlDecoder().feed(bytes(damaged)))


def test_what_is_no_order_and_no_report_cannot_be_said() -> None:
    with pytest.raises(InternalError, match="no order and no report"):
        encode_packet(Packet(1, 1, 0, TaskHost))
