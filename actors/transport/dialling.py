"""From the address of a process to its endpoint, and to a greeted connection with it.

Rules:

1. An address (an actor's handle) outlives processes. So the process is asked for its endpoint first (``resolve``,
   which waits while the process is being replaced), and asked again whenever the endpoint does not lead to it.
2. A process that answers but cannot be connected to is unreachable when the time for that is over, but not before
   ``TRIES``; of one that is being replaced nobody knows how long it takes, so that waiting ends only with ``stop``.
3. Peers in one network namespace use the unix socket, all others TCP.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import msgspec

from ..protocol.messages import Address
from .greeting import SECONDS, Caller, GreetingError, greet
from .sockets import shut, tune
from .tls import Certificate, SecureSocket

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


class Endpoint(msgspec.Struct, frozen=True):
    """The sockets on which one process listens. The process that takes its place has another endpoint; who dials the
    old one is refused."""

    incarnation: str
    host: str
    """The node's own address, to which the TCP socket is bound."""
    port: int
    name: str = ""
    """Of the unix socket, in the abstract namespace, which leaves no file behind; empty if there is none."""
    machine: str = ""
    """What :func:`this_machine` says there."""

    @property
    def is_near(self) -> bool:
        """Whether the unix socket can be reached from this process."""
        return bool(self.name) and self.machine == this_machine()

    def __str__(self) -> str:
        return f"@{self.name}" if self.is_near else f"{self.host}:{self.port}"


def this_machine() -> str:
    """The same text in all processes that see the same abstract unix sockets; empty where there are none.

    Those are the processes of one network namespace: two containers on one host have the boot in common and no more.
    """
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink(_NETWORK)}"
    except OSError:
        return ""


RECONNECT_SECONDS = 10.0
"""How long a process that answers is tried to be reached, unless configured otherwise."""
TRIES = 3
PAUSE = 0.2
"""Seconds before the first repetition; each further one waits twice as long, up to ``LONGEST_PAUSE``."""
LONGEST_PAUSE = 2.0

Resolved = Callable[[Endpoint | None, BaseException | None], None]
Resolve = Callable[[Address, Resolved], None]
"""Asks a process for its endpoint; calls back with it, or with why there will never be one, from any thread, once."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the processes of a job, and nobody else, have. ``certificate``: between machines streams are encrypted."""

    token: bytes = field(repr=False)
    certificate: Certificate | None = field(default=None, repr=False)


class UnreachableError(Exception):
    """The process cannot be reached, and trying again would not help. The text says why, and what to do."""


class Stop:
    """Ends a dialler's waiting, from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._connection: socket.socket | None = None
        self._answers: SimpleQueue[tuple[Endpoint | None, BaseException | None]] = SimpleQueue()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Wake the dialler, whatever it waits for."""
        with self._lock:
            self._event.set()
            if self._connection is not None:
                shut(self._connection)
        self._answers.put((None, None))

    def pause(self, seconds: float) -> None:
        """Wait so long, or until stopped."""
        self._event.wait(seconds)

    def watch(self, connection: socket.socket | None) -> None:
        """Shut the connection when stopped (none any more with None)."""
        with self._lock:
            self._connection = connection
            if connection is not None and self._event.is_set():
                shut(connection)

    def ask(self, resolve: Resolve, address: Address) -> Endpoint | None:
        """The endpoint; None when stopped. Raises UnreachableError if there will never be one."""
        resolve(address, lambda endpoint, error: self._answers.put((endpoint, error)))
        endpoint, error = self._answers.get()
        if error is not None and not self.is_set:
            raise UnreachableError(str(error))
        return None if self.is_set else endpoint


def dial(
    address: Address, caller: Caller, secrets: Secrets, resolve: Resolve, seconds: float, stop: Stop
) -> socket.socket | None:
    """A greeted connection; None when stopped. Raises UnreachableError if there is none after so many ``seconds``."""
    tries, last, until = 0, "", 0.0
    while (endpoint := stop.ask(resolve, address)) is not None:
        if endpoint.incarnation != last:
            tries, last, until = 0, endpoint.incarnation, time.monotonic() + seconds
        tries += 1
        try:
            return connect(endpoint, caller, secrets, stop)
        except GreetingError as error:
            if not error.retry:
                raise UnreachableError(f"the process at {endpoint} is not the one sought: {error}") from error
            problem: Exception = error
        except OSError as error:
            problem = error
        if tries >= TRIES and time.monotonic() >= until and not stop.is_set:
            raise UnreachableError(_advice(endpoint, tries, problem)) from problem
        stop.pause(min(PAUSE * 2 ** (tries - 1), LONGEST_PAUSE))
    return None


def connect(endpoint: Endpoint, caller: Caller, secrets: Secrets, stop: Stop) -> socket.socket:
    """A greeted connection to the process at ``endpoint``. Raises GreetingError or OSError."""
    if endpoint.is_near:
        connection = socket.socket(socket.AF_UNIX)
    else:
        connection = socket.socket(socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET)
    try:
        stop.watch(connection)
        tune(connection)
        until = time.monotonic() + SECONDS
        connection.settimeout(SECONDS)
        connection.connect(f"\0{endpoint.name}" if endpoint.is_near else (endpoint.host, endpoint.port))
        if secrets.certificate is not None and not endpoint.is_near:
            connection = secured = SecureSocket(connection, secrets.certificate.context(server=False), server=False)
            stop.watch(connection)
            secured.greet(until)
        greet(connection, secrets.token, caller, endpoint.incarnation, until)
    except BaseException:
        stop.watch(None)
        connection.close()
        raise
    stop.watch(None)
    return connection


def _advice(endpoint: Endpoint, tries: int, problem: Exception) -> str:
    reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    remedy = "" if endpoint.is_near else "; the machines of a cluster must reach each other on all ports"
    return f"no connection to {endpoint} in {tries} tries, though the process answers: {reason}{remedy}"
