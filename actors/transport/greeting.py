"""How two processes of a job make sure of each other, before anything else travels on a connection.

Both send ``MAGIC`` and their version. The dialler says who it is and whom it expects (``Hello``), the listener answers
with a proof that it knows the job's token (``Challenge``), the dialler proves the same, and is welcomed. Rules:

1. The token never travels. A proof is an HMAC over what was sent before it, random bytes of both sides included, and
   proofs are compared in constant time.
2. Nothing that an unknown process sends is trusted, or read beyond ``LIMIT`` bytes. The whole greeting, that of TLS
   included, ends by one deadline, ``SECONDS`` after it began, however the bytes trickle in. A process that does not
   begin with ``MAGIC`` gets no answer.
3. Who is refused gets the reason, with the remedy. ``retry``: another process has taken the place of the one expected.
4. What follows the greeting is checked for damage (``frames``), but neither encrypted nor signed: the network between
   the machines is trusted with data, and every process that knows the token is trusted with everything.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from typing import TypeAlias

import msgspec

from ...engine.core.identity import Attempt, TaskId
from .sockets import hurry
from .wire import UNREADABLE

MAGIC = b"PENSTOCK"
VERSION = 2
"""2: messages carry checksums, barriers and ends of data the tally of what was sent before them."""
LIMIT = 4096
SECONDS = 10.0

_PRELUDE = struct.Struct("<8sI")
_LENGTH = struct.Struct("<I")

_TOKEN_REMEDY = "it belongs to another job; if it does not, report a bug"
_VERSION_REMEDY = "install the same version of penstock on all machines"


class Caller(msgspec.Struct, frozen=True):
    """Who dials, and for which attempt it wants the connection."""

    task: TaskId
    attempt: Attempt
    peer: TaskId
    peer_attempt: Attempt


class Hello(msgspec.Struct, tag=True, frozen=True):
    """The dialler's first message."""

    caller: Caller
    incarnation: str
    """Of the process that is expected to listen."""
    nonce: bytes


class Challenge(msgspec.Struct, tag=True, frozen=True):
    """The listener's answer."""

    nonce: bytes
    proof: bytes


class Answer(msgspec.Struct, tag=True, frozen=True):
    """The last message of either side: the dialler's proof, or the listener's refusal (none: welcome)."""

    proof: bytes = b""
    refusal: str = ""
    retry: bool = False


Greeting: TypeAlias = Hello | Challenge | Answer

_GREETING: msgspec.msgpack.Decoder[Greeting] = msgspec.msgpack.Decoder(Greeting)


class GreetingError(Exception):
    """The other side is not the one expected, or refuses. ``retry``: ask for the process that is there now."""

    def __init__(self, reason: str, retry: bool = False) -> None:
        super().__init__(reason, retry)
        self.reason = reason
        self.retry = retry

    def __str__(self) -> str:
        return self.reason


def greet(connection: socket.socket, token: bytes, caller: Caller, incarnation: str, until: float) -> None:
    """The dialler's part, which must end by ``until``. Raises GreetingError, or OSError if the connection fails."""
    hurry(connection, until)
    connection.sendall(_PRELUDE.pack(MAGIC, VERSION))
    hello = _send(connection, Hello(caller, incarnation, secrets.token_bytes(32)), until)
    _check_version(_exactly(connection, _PRELUDE.size, until))
    answer, received = _receive(connection, until)
    if not isinstance(answer, Challenge):
        raise _refusal(answer)
    if not hmac.compare_digest(answer.proof, _proof(token, b"listener", hello, answer.nonce)):
        raise GreetingError(f"it does not know the token of this job; {_TOKEN_REMEDY}")
    _send(connection, Answer(_proof(token, b"dialler", hello, received)), until)
    last, _ = _receive(connection, until)
    if not isinstance(last, Answer) or last.refusal:
        raise _refusal(last)


def receive_greeting(connection: socket.socket, token: bytes, incarnation: str, until: float) -> Caller:
    """The listener's part, which must end by ``until``: who dials. Raises GreetingError after it has sent the dialler
    the reason, OSError otherwise."""
    prelude = _exactly(connection, _PRELUDE.size, until)
    if _PRELUDE.unpack(prelude)[0] == MAGIC:
        connection.sendall(_PRELUDE.pack(MAGIC, VERSION))
    _check_version(prelude)
    hello, received = _receive(connection, until)
    if not isinstance(hello, Hello):
        raise _refusal(hello)
    if hello.incarnation != incarnation:
        raise _refused(connection, "another process has taken the place of the one that is sought", until, retry=True)
    nonce = secrets.token_bytes(32)
    sent = _send(connection, Challenge(nonce, _proof(token, b"listener", received, nonce)), until)
    answer, _ = _receive(connection, until)
    if not isinstance(answer, Answer) or not hmac.compare_digest(
        answer.proof, _proof(token, b"dialler", received, sent)
    ):
        raise _refused(connection, f"you do not know the token of this job; {_TOKEN_REMEDY}", until)
    _send(connection, Answer(), until)
    return hello.caller


def _refused(connection: socket.socket, refusal: str, until: float, retry: bool = False) -> GreetingError:
    _send(connection, Answer(refusal=refusal, retry=retry), until)
    return GreetingError(refusal, retry)


def _refusal(message: Greeting) -> GreetingError:
    """What came in place of the message that was expected."""
    if isinstance(message, Answer) and message.refusal:
        return GreetingError(f"it refuses: {message.refusal}", message.retry)
    return GreetingError(f"it sends {type(message).__name__} where something else was expected")


def _proof(token: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    lengths = struct.pack("<QQ", len(first), len(second))
    return hmac.digest(token, role + lengths + first + second, "sha256")


def _check_version(prelude: bytes) -> None:
    magic, version = _PRELUDE.unpack(prelude)
    if magic != MAGIC:
        raise GreetingError("what is there is no process of Penstock; another program may have taken the port")
    if version != VERSION:
        raise GreetingError(f"it speaks version {version} of the protocol, we speak {VERSION}; {_VERSION_REMEDY}")


def _send(connection: socket.socket, message: msgspec.Struct, until: float) -> bytes:
    data = msgspec.msgpack.encode(message)
    hurry(connection, until)
    connection.sendall(_LENGTH.pack(len(data)) + data)
    return data


def _receive(connection: socket.socket, until: float) -> tuple[Greeting, bytes]:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, until))
    if length > LIMIT:
        raise GreetingError(f"it sends {length} bytes where a few hundred were expected")
    data = _exactly(connection, length, until)
    try:
        return _GREETING.decode(data), data
    except UNREADABLE as error:
        raise GreetingError(f"it sends what no version of Penstock does ({error})") from error


def _exactly(connection: socket.socket, size: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        hurry(connection, until)
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the connection closed during the greeting")
        data += part
    return bytes(data)
