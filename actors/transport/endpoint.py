"""Where a process can be reached by the streams of others. No sockets are touched here.

An endpoint is that of one *incarnation*: a process that takes the place of another has another endpoint, and whoever
reaches it by an old one is told so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The sockets on which one process listens."""

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
